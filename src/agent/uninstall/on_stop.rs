//! Decides on SIGTERM whether to uninstall.
//!
//! The agent uninstalls only if the API server's responses prove that its release is uninstalled or
//! that this node is out of the DaemonSet's scope. Without proof it repeats the requests until the
//! pod's termination grace period is nearly over, and then leaves the plugin installed for the next
//! agent. One exception: an agent that found no kubeconfig at its start and never reached an API
//! server uninstalls while the API server is unreachable, because no other agent's files are at
//! risk.
//!
//! After a mistaken uninstall, meshed pods start without redirect rules. A plugin that stays
//! by mistake can be removed with one command.

mod decision;
mod round;
pub mod scope;

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::settings::Settings;
use crate::agent::watch::Waker;
use crate::backoff::{Backoff, Limits};
pub use decision::{Decider, Finding, StopDecision};

/// Time reserved for the uninstall itself, before kubelet kills the agent.
const UNINSTALL_TIME: Duration = Duration::from_secs(5);
/// Shortest time in which to decide, for one round of requests.
const SHORTEST_DECISION_TIME: Duration = Duration::from_secs(1);
/// Time-out of each phase of a request in the first round.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
/// Time-out of each phase of a request in later rounds. Longer, because repeated requests do not
/// make a slow API server faster.
const LATER_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause after the first round and after each round with a new finding, and longest pause between
/// rounds with the same finding.
const PAUSE: Limits = [Duration::from_secs(1), Duration::from_secs(3)];

/// Whether the node has a kubeconfig, which shows that an earlier agent may have installed the
/// plugin. Call it before the first reconcile pass, which writes the kubeconfig.
pub fn finds_kubeconfig(settings: &Settings) -> bool {
    let found = fs::symlink_metadata(settings.kubeconfig());
    !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// A finding, and when its round of requests ended.
type TimedFinding = (Finding, Instant);

/// The question whether to uninstall, while a thread sends the requests that answer it.
pub struct Question {
    findings: Receiver<TimedFinding>,
    decider: Decider,
    last: Option<Finding>,
    /// Time in which to decide.
    time: Duration,
    end: Instant,
}

impl Question {
    /// Starts to send requests to the API server. Each response wakes the main loop through `waker`.
    /// `offline_install` says that the agent found no kubeconfig at its start and that no API server
    /// ever responded.
    pub fn ask(settings: &Arc<Settings>, offline_install: bool, waker: Waker) -> Question {
        let time = time_to_decide(settings.termination_grace);
        info!("asking the API server whether to uninstall, for at most {} s", time.as_secs());
        let (send, findings) = mpsc::channel();
        let mut question = Question::new(findings, Decider::new(offline_install), time);
        let own = Arc::clone(settings);
        // The thread is never joined, so that a request that hangs does not delay the exit.
        let asking = thread::Builder::new()
            .name("on-stop".into())
            .spawn(move || send_findings(&own, &send, &waker));
        if let Err(error) = asking {
            question.last = Some(Finding::Unclear(format!("cannot start a thread: {error}")));
            question.end = Instant::now();
        }
        question
    }

    fn new(findings: Receiver<TimedFinding>, decider: Decider, time: Duration) -> Question {
        Question { findings, decider, last: None, time, end: Instant::now() + time }
    }

    /// Returns the time that is left to decide.
    pub fn time_left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns the decision; `None` if neither the responses so far nor the time decide.
    pub fn decision(&mut self) -> Option<StopDecision> {
        while let Ok((finding, when)) = self.findings.try_recv() {
            if let Some(decision) = self.decider.decide(&finding, when) {
                return Some(decision);
            }
            if self.last.as_ref() != Some(&finding) {
                warn!("no proof of an uninstall yet, asking again: {finding}");
            }
            self.last = Some(finding);
        }
        self.time_left().is_zero().then(|| {
            let last = self.last.as_ref().map(ToString::to_string);
            StopDecision::LeaveInPlace(format!(
                "no proof of an uninstall within {} s; last finding: {}",
                self.time.as_secs(),
                last.unwrap_or_else(|| "the API server did not respond".into())
            ))
        })
    }
}

/// Time in which to decide, from the termination grace period.
fn time_to_decide(grace: Duration) -> Duration {
    grace.saturating_sub(UNINSTALL_TIME).max(SHORTEST_DECISION_TIME)
}

/// Runs rounds of requests and sends each finding, until the receiver is dropped.
fn send_findings(settings: &Settings, findings: &Sender<TimedFinding>, waker: &Waker) {
    let (mut timeout, mut pause) = (FIRST_TIMEOUT, Backoff::new(PAUSE));
    let mut last = None;
    loop {
        let finding = round::run(settings, timeout);
        if last.as_ref() != Some(&finding) {
            pause.reset();
        }
        last = Some(finding.clone());
        if findings.send((finding, Instant::now())).is_err() {
            return;
        }
        waker.wake();
        thread::sleep(pause.next_delay());
        timeout = LATER_TIMEOUT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_decide_is_the_grace_period_less_five_seconds_and_at_least_one_second() {
        for (grace, time) in [(30, 25), (10, 5), (6, 1), (5, 1), (1, 1), (3600, 3595)] {
            let decide = time_to_decide(Duration::from_secs(grace));
            assert_eq!(decide, Duration::from_secs(time), "{grace}");
        }
    }

    #[test]
    fn without_proof_the_plugin_is_left_in_place_at_the_deadline_and_not_before() {
        for (finding, says) in [
            (None, "last finding: the API server did not respond"),
            (Some(Finding::Rejected), "last finding: the API server rejected every token"),
        ] {
            let (send, findings) = mpsc::channel();
            let time = Duration::from_secs(60);
            let mut question = Question::new(findings, Decider::new(false), time);
            if let Some(finding) = finding {
                send.send((finding, Instant::now())).unwrap();
            }
            assert_eq!(question.decision(), None);
            question.end = Instant::now();
            let Some(StopDecision::LeaveInPlace(why)) = question.decision() else {
                panic!("no decision at the deadline");
            };
            assert!(why.contains("within 60 s") && why.contains(says), "{why}");
        }
    }

    #[test]
    fn rejections_count_from_the_time_of_the_response_however_late_they_are_read() {
        let (send, findings) = mpsc::channel();
        let mut question = Question::new(findings, Decider::new(false), Duration::from_secs(60));
        let begin = Instant::now() - Duration::from_secs(30);
        for second in 0..3 {
            send.send((Finding::Rejected, begin + Duration::from_secs(second))).unwrap();
        }
        assert_eq!(question.decision(), None);
        send.send((Finding::Rejected, begin + Duration::from_secs(4))).unwrap();
        assert!(matches!(question.decision(), Some(StopDecision::Uninstall(_))));
    }
}
