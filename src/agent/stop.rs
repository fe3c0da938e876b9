//! Decides on SIGTERM whether to uninstall.
//!
//! The agent uninstalls only on proof that its release is uninstalled or that this node is out of
//! the DaemonSet's scope. The watch of its own pod ([`own_pod`](super::own_pod)) has usually shown
//! who owns the pod and that it is being deleted. [`evidence`] gathers what the API server
//! responds, and [`decision`] judges the evidence. Without proof the agent repeats the requests
//! until the pod's termination grace period is nearly over, and then leaves the plugin installed
//! for the next agent.
//!
//! Proof is required because the two possible mistakes differ in their harm. After a mistaken
//! uninstall, meshed pods start without redirect rules. A plugin that stays by mistake can be
//! removed with one command.
//!
//! If two agents run on the node, as in a rolling update, both may be stopped. An older agent with
//! proof uninstalls once the newer one has ended and has not started again within seconds. A newer
//! agent that started when its ServiceAccount was already gone cannot get proof. It ends at once,
//! so that the older one need not wait.

mod decision;
mod evidence;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::api_history::ApiHistory;
use crate::agent::api_thread::ApiHandle;
use crate::agent::file_watch::Waker;
use crate::agent::own_pod::OwnPod;
use crate::agent::settings::Settings;
use crate::backoff::between;
use decision::TIME_BESIDE_NEWER_AGENT;
pub use decision::{Verdict, verdict};
pub use evidence::{Evidence, Round, TokenFacts};

/// Part of the termination grace period that is reserved for the uninstall itself. The kubelet
/// kills the agent at the end of that period.
const UNINSTALL_TIME: Duration = Duration::from_secs(5);
/// Shortest time to decide, which is enough for one round of requests.
const SHORTEST_DECISION_TIME: Duration = Duration::from_secs(1);
/// Time-out of each phase of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest and longest pause between two rounds.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// The decision whether to uninstall, while a thread sends the requests on which it depends.
pub struct UninstallDecision {
    evidence: Evidence,
    /// Receives the result of each round of requests, and when the round ended. `None` until
    /// [`UninstallDecision::start_requests`] is called.
    rounds: Option<Receiver<(Instant, Round)>>,
    /// Why there was no proof after the last round, as it was logged.
    last_doubt: String,
}

impl UninstallDecision {
    /// Returns a decision for which no requests have been sent yet. `history` is what the agent's
    /// earlier requests have shown. `older_agent_ran` says whether another agent ran on the node
    /// when this one started.
    pub fn new(
        settings: &Settings,
        history: ApiHistory,
        older_agent_ran: bool,
    ) -> UninstallDecision {
        let begin = Instant::now();
        let evidence = Evidence {
            own_pod: OwnPod::default(),
            history,
            begin,
            end: begin + time_to_decide(settings.termination_grace),
            newer_agent_runs: false,
            newer_agent_seen: None,
            older_agent_ran,
            rounds: Vec::new(),
        };
        UninstallDecision { evidence, rounds: None, last_doubt: String::new() }
    }

    /// Returns the time after which a verdict is due even if no further response arrives.
    pub fn time_left(&self) -> Duration {
        let now = Instant::now();
        let end = self.evidence.end;
        if now < end {
            return end - now;
        }
        (end + TIME_BESIDE_NEWER_AGENT).saturating_duration_since(now)
    }

    /// Decides by the rounds of requests that have ended. `own_pod` is what the API server has
    /// shown of the agent's pod.
    pub fn verdict(&mut self, newer_agent_runs: bool, own_pod: OwnPod) -> Verdict {
        self.evidence.newer_agent_runs = newer_agent_runs;
        if newer_agent_runs {
            self.evidence.newer_agent_seen = Some(Instant::now());
        }
        self.evidence.own_pod = own_pod;
        while let Some((ended_at, round)) = self.next_round() {
            self.evidence.rounds.push((ended_at, round));
            // Each round is judged at the time at which it ended. If it gives proof, later rounds
            // are not considered, even if they have arrived already.
            let Verdict::AskAgain(why) = verdict(&self.evidence, ended_at) else {
                break;
            };
            if self.last_doubt != why {
                warn!("no proof of an uninstall yet, asking again: {why}");
                self.last_doubt = why;
            }
        }
        verdict(&self.evidence, Instant::now())
    }

    /// Returns the next round of requests that has ended, if there is one.
    fn next_round(&self) -> Option<(Instant, Round)> {
        self.rounds.as_ref()?.try_recv().ok()
    }

    /// Starts a thread that sends requests, unless the thread runs already. Each round of requests
    /// wakes the main loop. Nobody waits for the end of the thread, so that a request that hangs
    /// does not delay the end of the agent.
    pub fn start_requests(
        &mut self,
        settings: &Arc<Settings>,
        api: &Arc<ApiHandle>,
        waker: Waker,
    ) -> io::Result<()> {
        if self.rounds.is_some() {
            return Ok(());
        }
        let seconds = self.evidence.end.duration_since(self.evidence.begin).as_secs();
        info!("asking the API server whether to uninstall, for at most {seconds} s");
        let (sender, rounds) = mpsc::channel();
        self.rounds = Some(rounds);
        let settings = Arc::clone(settings);
        let api = Arc::clone(api);
        thread::Builder::new()
            .name("stop".into())
            .spawn(move || repeat_rounds(&settings, &api, &sender, &waker))?;
        Ok(())
    }
}

/// Sends rounds of requests, and their results to `results`, until the receiver is gone.
fn repeat_rounds(
    settings: &Settings,
    api: &ApiHandle,
    results: &Sender<(Instant, Round)>,
    waker: &Waker,
) {
    loop {
        let round = evidence::gather(settings, api, TIMEOUT);
        if results.send((Instant::now(), round)).is_err() {
            return;
        }
        waker.wake();
        thread::sleep(between(PAUSE[0], PAUSE[1]));
    }
}

/// Returns the time to decide for this termination grace period.
fn time_to_decide(grace_period: Duration) -> Duration {
    grace_period.saturating_sub(UNINSTALL_TIME).max(SHORTEST_DECISION_TIME)
}

#[cfg(test)]
mod tests;
