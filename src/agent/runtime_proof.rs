//! Knows whether the container runtime has started a pod through the chain, and finds the evidence
//! that it cannot. Pure but for random waits.
//!
//! A chain is provisional until the runtime has shown that it can run the plugin. While the chain is
//! provisional and a pod of the node gets no sandbox, the agent asks the API server for the Events
//! of that pod. If they show twice, in the runtime's words, that it cannot run the plugin, the agent
//! takes the plugin entry out again. A pod without sandbox alone is no evidence: it may wait for a
//! volume or for the primary CNI. The reasons are in
//! `docs/decisions/0014-withdraw-only-on-an-event.md`.

pub mod evidence;
pub mod evidence_search;
pub mod sandbox;
mod stuck_pods;

use std::time::{Duration, Instant, SystemTime};

use crate::agent::status_body::{ChainProof, RuntimeStatus};
use crate::cni::args::PodRef;
use crate::node::withdrawal::Evidence;
use sandbox::Sandbox;
use stuck_pods::StuckPods;

/// Time after a change of the chain within which neither a call of the plugin nor an Event tells
/// anything about the new chain: the runtime may have read the network config before the change,
/// and an Event has whole seconds.
pub const SETTLING_TIME: Duration = Duration::from_secs(2);

/// The plugin as it is chained now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// [`ChainDigest`](crate::node::chain_digest::ChainDigest) of the chain.
    pub digest: String,
    /// When the network config and the plugin binary were last changed, by the node's clock.
    pub since: SystemTime,
}

/// What the container runtime has shown of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// The runtime has not started a pod through the chain.
    Provisional,
    /// The runtime has called the plugin, or has made the sandbox of a pod.
    Proven,
    /// The runtime cannot run the plugin. The agent removes the plugin entry, and does not add it
    /// again.
    Withdrawn(Evidence),
}

/// A request for the Events of a pod that gets no sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub pod: PodRef,
    /// The chain that the answer is about.
    pub chain: Chain,
}

/// What came of a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    CannotRun(Evidence),
    /// No Event says that the runtime cannot run the plugin.
    SaysNothing,
    /// The agent may not list Events. The text is the API server's.
    Denied(String),
    /// The request failed. The API server asks to wait for this time.
    Failed(Duration),
}

#[derive(Debug)]
pub struct RuntimeProof {
    /// The chain that the last pass found in place, or that is withdrawn, with its state.
    chain: Option<(Chain, ChainState)>,
    /// Whether the last pass found the chain in place.
    is_in_place: bool,
    /// Newest time at which the kubelet accepted a pod that has a sandbox.
    newest_with_sandbox: Option<SystemTime>,
    stuck_pods: StuckPods,
    /// Why the agent does not see the pods of its node.
    watch_problem: Option<String>,
    /// Why the agent cannot list Events.
    events_problem: Option<String>,
    /// The last problem that was logged.
    logged_problem: Option<String>,
}

impl RuntimeProof {
    /// `watch_problem` is why the settings keep the agent from watching the pods of its node.
    pub fn new(watch_problem: Option<String>, now: Instant) -> RuntimeProof {
        RuntimeProof {
            chain: None,
            is_in_place: false,
            newest_with_sandbox: None,
            stuck_pods: StuckPods::new(now),
            watch_problem,
            events_problem: None,
            logged_problem: None,
        }
    }

    /// Returns the state of the chain with this digest. `None` if nothing is known of the chain.
    pub fn state(&self, digest: &str) -> Option<&ChainState> {
        match &self.chain {
            Some((chain, state)) if chain.digest == digest => Some(state),
            _ => None,
        }
    }

    /// Records which chain a pass found in place. `None` if the pass found none, or the chain of
    /// another agent, or if the runtime calls the plugin only for some pods. A chain whose digest is
    /// new is provisional.
    pub fn observe_chain(&mut self, found: Option<Chain>, now: Instant) {
        self.is_in_place = found.is_some();
        let Some(found) = found else { return };
        match &mut self.chain {
            Some((chain, state)) if chain.digest == found.digest => {
                let was_written_again = chain.since != found.since;
                if was_written_again && *state == ChainState::Provisional {
                    self.stuck_pods.restart(now);
                }
                chain.since = found.since;
            }
            Some(_) | None => {
                self.chain = Some((found, ChainState::Provisional));
                self.stuck_pods.restart(now);
            }
        }
        self.judge_sandboxes();
    }

    /// Records that an earlier agent, or an earlier pass, has withdrawn the chain.
    pub fn adopt_withdrawal(&mut self, digest: &str, evidence: Evidence) {
        let chain = Chain { digest: digest.to_owned(), since: SystemTime::UNIX_EPOCH };
        self.chain = Some((chain, ChainState::Withdrawn(evidence)));
        self.is_in_place = false;
    }

    /// Forgets the withdrawal, so that the agent chains the plugin again.
    pub fn forget_withdrawal(&mut self) {
        if let Some((_, ChainState::Withdrawn(_))) = self.chain {
            self.chain = None;
        }
    }

    /// Records that the runtime called the plugin at `date`.
    pub fn record_call(&mut self, date: SystemTime) {
        if let Some(chain) = self.provisional_chain()
            && date > chain.since + SETTLING_TIME
        {
            self.set_state(ChainState::Proven);
        }
    }

    /// Records the pods of a complete list, each with its sandbox.
    pub fn record_pods(&mut self, pods: &[(PodRef, Sandbox)], now: Instant) {
        self.watch_problem = None;
        self.stuck_pods.retain(|uid| pods.iter().any(|(pod, _)| pod.uid == uid));
        for (pod, sandbox) in pods {
            self.record_pod(pod, *sandbox, now);
        }
    }

    /// Records what an update of the watch shows of a pod's sandbox.
    pub fn record_pod(&mut self, pod: &PodRef, sandbox: Sandbox, now: Instant) {
        match sandbox {
            Sandbox::Missing => self.stuck_pods.add(pod, now),
            Sandbox::Leaving => self.stuck_pods.remove(&pod.uid),
            Sandbox::Made { accepted } => {
                self.stuck_pods.remove(&pod.uid);
                self.newest_with_sandbox = self.newest_with_sandbox.max(accepted);
                self.judge_sandboxes();
            }
        }
    }

    /// Records that a pod was deleted, or has ended.
    pub fn forget_pod(&mut self, uid: &str) {
        self.stuck_pods.remove(uid);
    }

    /// Records that the agent may not list and watch the pods of its node.
    pub fn record_denied_watch(&mut self, why: String) {
        self.watch_problem = Some(why);
    }

    /// The chain is proven if a pod has a sandbox that the kubelet accepted after the last change of
    /// the chain. The kubelet accepts a pod before the runtime makes its sandbox, and both times are
    /// of the node's clock.
    fn judge_sandboxes(&mut self) {
        if let Some(chain) = self.provisional_chain()
            && let Some(accepted) = self.newest_with_sandbox
            && accepted > chain.since + SETTLING_TIME
        {
            self.set_state(ChainState::Proven);
        }
    }

    /// Returns the chain if it is provisional, in place or not.
    fn provisional_chain(&self) -> Option<&Chain> {
        match &self.chain {
            Some((chain, ChainState::Provisional)) => Some(chain),
            Some((_, ChainState::Proven | ChainState::Withdrawn(_))) | None => None,
        }
    }

    fn set_state(&mut self, new_state: ChainState) {
        if let Some((_, state)) = &mut self.chain {
            *state = new_state;
        }
    }

    /// Returns the chain if it is in place and provisional. Questions are asked about no other.
    fn unproven_chain(&self) -> Option<&Chain> {
        if !self.is_in_place {
            return None;
        }
        self.provisional_chain()
    }

    fn has_unproven_chain(&self) -> bool {
        self.unproven_chain().is_some()
    }

    /// Returns when the next question may be asked. `None` while there is nothing to ask.
    pub fn due(&self) -> Option<Instant> {
        if !self.has_unproven_chain() {
            return None;
        }
        self.stuck_pods.due()
    }

    /// Takes the next question, if one is due.
    pub fn next_question(&mut self, now: Instant) -> Option<Question> {
        let chain = self.unproven_chain()?.clone();
        if self.stuck_pods.due()? > now {
            return None;
        }
        let pod = self.stuck_pods.take(now)?;
        Some(Question { pod, chain })
    }

    /// Records the answer to a question. An answer about an earlier chain, or about a pod that has
    /// got its sandbox meanwhile, has no effect on the state of this one.
    pub fn record_answer(&mut self, question: &Question, answer: Answer, now: Instant) {
        match answer {
            Answer::CannotRun(evidence) => {
                self.events_problem = None;
                if self.is_open(question) {
                    self.set_state(ChainState::Withdrawn(evidence));
                }
            }
            Answer::SaysNothing => self.events_problem = None,
            Answer::Denied(why) => {
                self.events_problem = Some(why);
                self.stuck_pods.discount(&question.pod.uid);
                self.stuck_pods.pause_for_permission(now);
            }
            Answer::Failed(wait) => {
                self.stuck_pods.discount(&question.pod.uid);
                self.stuck_pods.pause(now + wait);
            }
        }
    }

    /// Returns whether the question is still about the chain in place, and about a pod without
    /// sandbox.
    fn is_open(&self, question: &Question) -> bool {
        self.unproven_chain() == Some(&question.chain)
            && self.stuck_pods.contains(&question.pod.uid)
    }

    /// Returns why the agent cannot find evidence. `None` if it can.
    pub fn problem(&self) -> Option<&str> {
        if let Some(why) = &self.watch_problem {
            return Some(why);
        }
        self.events_problem.as_deref()
    }

    /// Returns why the agent cannot find evidence against a provisional chain, if that is not logged
    /// yet.
    pub fn take_problem_to_log(&mut self) -> Option<String> {
        if !self.has_unproven_chain() {
            return None;
        }
        let problem = self.problem()?.to_owned();
        if self.logged_problem.as_ref() == Some(&problem) {
            return None;
        }
        self.logged_problem = Some(problem.clone());
        Some(problem)
    }

    pub fn is_proven(&self) -> bool {
        matches!(self.chain, Some((_, ChainState::Proven)))
    }

    /// Returns what `/status` says. `None` if no chain of this agent is in place or withdrawn.
    pub fn status(&self) -> Option<RuntimeStatus> {
        let (_, state) = self.chain.as_ref()?;
        if let ChainState::Withdrawn(evidence) = state {
            let Evidence { pod, message, .. } = evidence;
            let note = Some(format!("cannot run the plugin for pod {pod}: {message}"));
            return Some(RuntimeStatus { chain: ChainProof::Withdrawn, note });
        }
        if !self.is_in_place {
            return None;
        }
        if self.is_proven() {
            return Some(RuntimeStatus { chain: ChainProof::Proven, note: None });
        }
        let (chain, note) = match self.problem() {
            Some(why) => (ChainProof::Unprovable, why),
            None => (ChainProof::Provisional, NOT_CALLED),
        };
        Some(RuntimeStatus { chain, note: Some(note.to_owned()) })
    }
}

/// What `/status` says of a provisional chain.
pub const NOT_CALLED: &str = "not called by the runtime yet";

#[cfg(test)]
mod tests;
