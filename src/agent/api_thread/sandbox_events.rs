//! Asks the API server for the Events of pods that get no sandbox, as
//! [`runtime_proof`](crate::agent::runtime_proof) decides, and tells the main loop what it learned.

use std::mem;
use std::time::{Duration, Instant, SystemTime};

use tracing::{info, warn};

use super::ApiHandle;
use super::worker::{Worker, retry_after};
use crate::agent::runtime_proof::evidence;
use crate::agent::runtime_proof::{Answer, Chain, ChainState, Question, RuntimeProof};
use crate::agent::settings::Settings;
use crate::agent::status_body::RuntimeStatus;
use crate::kube::FORBIDDEN;
use crate::kube::connection::Error;
use crate::kube::pod_events;
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
        let (status, was_proven, due) = (proof.status(), proof.is_proven(), proof.due());
        update(proof);
        let (new_status, is_proven, new_due) = (proof.status(), proof.is_proven(), proof.due());
        let problem = proof.take_problem_to_log();
        drop(state);
        if let Some(new_due) = new_due
            && due.is_none_or(|due| new_due < due)
        {
            self.wake_thread();
        }
        if is_proven && !was_proven {
            info!("the container runtime has started a pod through the chain");
        }
        if let Some(problem) = problem {
            info!("{problem}");
        }
        new_status != status
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
        let listed = match self.own_connection.client() {
            Ok(client) => {
                let listed = pod_events::list(&client, &pod.namespace, &pod.uid);
                self.record_own_token(listed.as_ref().err());
                listed.map_err(Error::from)
            }
            Err(error) => Err(error),
        };
        let problem = match listed {
            Ok(events) => {
                self.log_event_list(None);
                let node = self.api.settings.node_name.as_deref();
                let since = question.chain.since;
                return match evidence::find(&events, pod, node, since, SystemTime::now()) {
                    Some(evidence) => Answer::CannotRun(evidence),
                    None => Answer::SaysNothing,
                };
            }
            Err(error) => error,
        };
        match &problem {
            Error::Client(error) if error.is_status(403, FORBIDDEN) => {
                Answer::Denied(format!("{DENIED}: {problem}"))
            }
            Error::Client(error) => {
                let wait = retry_after(error);
                self.log_event_list(Some(format!(
                    "cannot list the Events of pod {pod}: {problem}"
                )));
                Answer::Failed(wait)
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
