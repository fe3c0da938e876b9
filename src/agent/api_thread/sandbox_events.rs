//! Asks the API server for the Events of pods that get no sandbox, as
//! [`runtime_proof`](crate::agent::runtime_proof) decides, and tells the main loop what it learned.

use std::mem;
use std::time::{Duration, Instant, SystemTime};

use tracing::{info, warn};

use super::ApiHandle;
use super::worker::{Worker, retry_after};
use crate::agent::runtime_proof::evidence_search::Moment;
use crate::agent::runtime_proof::{Answer, Chain, ChainState, Question, RuntimeProof};
use crate::agent::settings::Settings;
use crate::agent::status_body::RuntimeStatus;
use crate::cni::args::PodRef;
use crate::kube::FORBIDDEN;
use crate::kube::connection::Error;
use crate::kube::pod_events::{self, PodEvent};
use crate::node::withdrawal::Evidence;

/// Effect of the missing permission, and what to do.
const DENIED: &str = "the agent may not list Events, so it does not notice that the container \
    runtime cannot run the plugin; grant it in the agent's ClusterRole";
/// Why the settings keep the agent from watching the pods of its node.
const NO_WATCH: &str = "the agent does not watch the pods of its node, so it does not notice that \
    the container runtime cannot run the plugin; set the value `watchPods` to `true`";

/// Returns why the settings keep the agent from watching the pods of its node. `None` if they do
/// not.
pub fn watch_problem(settings: &Settings) -> Option<String> {
    let can_watch = settings.watch_pods
        && settings.node_name.is_some()
        && settings.node.run_dir.is_some()
        && settings.api_host.is_some();
    if can_watch { None } else { Some(NO_WATCH.to_owned()) }
}

impl ApiHandle {
    /// Calls `update` with what is known of the runtime and the chain. Wakes the main loop if the
    /// state of the chain changes.
    pub fn update_runtime_proof(&self, update: impl FnOnce(&mut RuntimeProof)) {
        if self.change_runtime_proof(update) {
            self.pass_waker.wake();
        }
    }

    /// Records that the runtime has called the plugin.
    pub fn record_plugin_call(&self) {
        self.update_runtime_proof(|proof| proof.record_call(SystemTime::now()));
    }

    /// Records which chain a pass found in place, see [`RuntimeProof::observe_chain`].
    pub fn observe_chain(&self, found: Option<Chain>) {
        // The main loop is not woken, because it calls this.
        self.change_runtime_proof(|proof| proof.observe_chain(found, Instant::now()));
    }

    /// Calls `update`. Logs that the chain is proven, or why it cannot be, and wakes the thread if it
    /// has to ask earlier than before. Returns whether the state has changed.
    fn change_runtime_proof(&self, update: impl FnOnce(&mut RuntimeProof)) -> bool {
        let mut state = self.state();
        let proof = &mut state.runtime_proof;
        let before = ProofSummary::read(proof);
        update(proof);
        let after = ProofSummary::read(proof);
        let problem = proof.take_problem_to_log();
        // The state is not locked while lines are logged: stderr may be slow.
        drop(state);
        if after.is_due_earlier_than(&before) {
            self.wake_thread();
        }
        if after.is_proven && !before.is_proven {
            info!("the container runtime has started a pod through the chain");
        }
        if let Some(problem) = problem {
            info!("{problem}");
        }
        after.status != before.status
    }

    /// Returns the evidence for which the chain with this digest is withdrawn. `None` if it is not.
    pub fn evidence_against(&self, digest: &str) -> Option<Evidence> {
        match self.state().runtime_proof.state(digest) {
            Some(ChainState::Withdrawn(evidence)) => Some(evidence.clone()),
            _ => None,
        }
    }

    /// Records that an earlier agent has withdrawn the chain with this digest.
    pub fn adopt_withdrawal(&self, digest: &str, evidence: Evidence) {
        self.state().runtime_proof.adopt_withdrawal(digest, evidence);
    }

    pub fn forget_withdrawal(&self) {
        self.state().runtime_proof.forget_withdrawal();
    }

    pub fn runtime_status(&self) -> Option<RuntimeStatus> {
        self.state().runtime_proof.status()
    }
}

/// What is known of the runtime and the chain at one time.
struct ProofSummary {
    status: Option<RuntimeStatus>,
    is_proven: bool,
    /// When the next question may be asked.
    due: Option<Instant>,
}

impl ProofSummary {
    fn read(proof: &RuntimeProof) -> ProofSummary {
        ProofSummary { status: proof.status(), is_proven: proof.is_proven(), due: proof.due() }
    }

    fn is_due_earlier_than(&self, other: &ProofSummary) -> bool {
        let Some(due) = self.due else { return false };
        match other.due {
            Some(other_due) => due < other_due,
            None => true,
        }
    }
}

impl Worker {
    /// Asks for the Events of a pod that gets no sandbox, if that is due.
    pub fn ask_for_sandbox_events(&mut self) {
        let question = self.api.state().runtime_proof.next_question(Instant::now());
        let Some(question) = question else { return };
        let answer = self.answer(&question);
        self.api.update_runtime_proof(|proof| {
            proof.record_answer(&question, answer, Instant::now());
        });
    }

    fn answer(&mut self, question: &Question) -> Answer {
        let pod = &question.pod;
        let events = match self.list_events(pod) {
            Ok(events) => events,
            Err(error) => return self.judge_failed_list(pod, &error),
        };
        self.log_event_list(None);
        let node = self.api.settings.node_name.as_deref();
        let since = question.chain.since;
        match self.evidence_search.find(&events, pod, node, since, Moment::now()) {
            Some(evidence) => Answer::CannotRun(evidence),
            None => Answer::SaysNothing,
        }
    }

    fn list_events(&mut self, pod: &PodRef) -> Result<Vec<PodEvent>, Error> {
        let client = self.own_connection.client()?;
        let listed = pod_events::list(&client, &pod.namespace, &pod.uid);
        self.record_own_token(listed.as_ref().err());
        Ok(listed?)
    }

    /// Returns the answer for a pod whose Events could not be listed. Logs a failed request, but not
    /// a denied one: [`ApiHandle::update_runtime_proof`] logs that.
    fn judge_failed_list(&mut self, pod: &PodRef, failure: &Error) -> Answer {
        match failure {
            Error::Client(error) if error.is_status(403, FORBIDDEN) => {
                Answer::Denied(format!("{DENIED}: {failure}"))
            }
            Error::Client(error) => {
                self.log_event_list(Some(format!(
                    "cannot list the Events of pod {pod}: {failure}"
                )));
                Answer::Failed(retry_after(error))
            }
            Error::Config(_) => Answer::Failed(Duration::ZERO),
        }
    }

    /// Logs the first failure of a series.
    fn log_event_list(&mut self, problem: Option<String>) {
        let is_failing = problem.is_some();
        let was_failing = mem::replace(&mut self.event_list_fails, is_failing);
        if let Some(problem) = problem
            && !was_failing
        {
            warn!("{problem}");
        }
    }
}
