//! Decides on SIGTERM whether to uninstall.
//!
//! The agent uninstalls only on proof that its release is uninstalled or that this node is out of
//! the DaemonSet's scope. The watch of its own pod ([`own_pod`](super::own_pod)) has usually shown
//! who owns the pod and that it is being deleted. [`evidence`] gathers what the API server
//! responds, and [`decision`] judges it. Without proof the agent repeats the requests until the
//! pod's termination grace period is nearly over, and then leaves the plugin installed for the next
//! agent.
//!
//! If two agents run on the node, as in a rolling update, both may be stopped. An older agent with
//! proof uninstalls when the newer one has ended and does not start again within seconds. A newer
//! agent that started when its ServiceAccount was gone cannot get proof, and ends at once for the
//! older one.
//!
//! After a mistaken uninstall, meshed pods start without redirect rules. A plugin that stays by
//! mistake can be removed with one command.

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

/// Time reserved for the uninstall itself, before kubelet kills the agent.
const UNINSTALL_TIME: Duration = Duration::from_secs(5);
/// Shortest time in which to decide, for one round of requests.
const SHORTEST_DECISION_TIME: Duration = Duration::from_secs(1);
/// Time-out of each phase of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest and longest pause between two rounds.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// The decision whether to uninstall, while a thread sends the requests on which it depends.
pub struct UninstallDecision {
    evidence: Evidence,
    /// The rounds of the thread, and when each ended. `None` until
    /// [`UninstallDecision::start_requests`].
    rounds: Option<Receiver<(Instant, Round)>>,
    /// Why there was no proof after the last round.
    last_doubt: String,
}

impl UninstallDecision {
    /// Begins to gather evidence. `before` is what the agent's other requests have shown.
    /// `older_agent_ran`: another agent ran on the node when this one started.
    pub fn new(
        settings: &Settings,
        before: ApiHistory,
        older_agent_ran: bool,
    ) -> UninstallDecision {
        let begin = Instant::now();
        let evidence = Evidence {
            own_pod: OwnPod::default(),
            before,
            begin,
            end: begin + time_to_decide(settings.termination_grace),
            newer_agent_runs: false,
            newer_agent_seen: None,
            older_agent_ran,
            rounds: Vec::new(),
        };
        UninstallDecision { evidence, rounds: None, last_doubt: String::new() }
    }

    /// Returns the time until the next verdict is due, whatever arrives until then.
    pub fn time_left(&self) -> Duration {
        let (now, end) = (Instant::now(), self.evidence.end);
        if now < end {
            return end - now;
        }
        (end + TIME_BESIDE_NEWER_AGENT).saturating_duration_since(now)
    }

    /// Decides by the rounds so far. `own_pod` is what the API server has shown of the agent's pod.
    pub fn verdict(&mut self, newer_agent_runs: bool, own_pod: OwnPod) -> Verdict {
        self.evidence.newer_agent_runs = newer_agent_runs;
        if newer_agent_runs {
            self.evidence.newer_agent_seen = Some(Instant::now());
        }
        self.evidence.own_pod = own_pod;
        while let Some(round) = self.rounds.as_ref().and_then(|rounds| rounds.try_recv().ok()) {
            let when = round.0;
            self.evidence.rounds.push(round);
            let Verdict::AskAgain(why) = verdict(&self.evidence, when) else {
                break;
            };
            if self.last_doubt != why {
                warn!("no proof of an uninstall yet, asking again: {why}");
                self.last_doubt = why;
            }
        }
        verdict(&self.evidence, Instant::now())
    }

    /// Starts a thread, once, that sends requests. Each response wakes the main loop. The thread is
    /// never joined, so that a request that hangs does not delay the exit.
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
        let (send, rounds) = mpsc::channel();
        self.rounds = Some(rounds);
        let (settings, api) = (Arc::clone(settings), Arc::clone(api));
        thread::Builder::new()
            .name("stop".into())
            .spawn(move || send_rounds(&settings, &api, &send, &waker))?;
        Ok(())
    }
}

/// Sends rounds of requests until the receiver of `results` is gone.
fn send_rounds(
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

fn time_to_decide(grace: Duration) -> Duration {
    grace.saturating_sub(UNINSTALL_TIME).max(SHORTEST_DECISION_TIME)
}

#[cfg(test)]
mod tests;
