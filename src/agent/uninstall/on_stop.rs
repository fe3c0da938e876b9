//! Decides on SIGTERM whether to uninstall.
//!
//! The agent uninstalls only if the API server's responses prove that its release is uninstalled or
//! that this node is out of the DaemonSet's scope. Without proof it repeats the requests until the
//! pod's termination grace period is nearly over, and then leaves the plugin installed for the next
//! agent. After a mistaken uninstall, meshed pods start without redirect rules. A plugin that stays
//! by mistake can be removed with one command.

mod decision;
mod round;
mod scope;

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::settings::Settings;
use crate::backoff::{Backoff, Limits};
pub use decision::Decision;
use decision::{Decider, Finding};

/// Time reserved for the uninstall itself, before kubelet kills the agent.
const UNINSTALL_TIME: Duration = Duration::from_secs(5);
/// Shortest time in which to decide, for one round of requests.
const SHORTEST: Duration = Duration::from_secs(1);
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

/// Sends requests to the API server until they decide, or until the grace period is nearly over.
/// `offline_install` says that the agent found no kubeconfig at its start and that no API server
/// ever responded.
pub fn decide(settings: &Arc<Settings>, offline_install: bool) -> Decision {
    let time = time_to_decide(settings.termination_grace);
    let end = Instant::now() + time;
    let seconds = time.as_secs();
    info!("asking the API server whether to uninstall, for at most {seconds} s");
    let (send, rounds) = mpsc::channel();
    let own = Arc::clone(settings);
    // The thread is never joined, so that a request that hangs does not delay the exit.
    let asking =
        thread::Builder::new().name("on-stop".into()).spawn(move || send_findings(&own, &send));
    if let Err(error) = asking {
        return Decision::LeaveInPlace(format!("cannot start a thread: {error}"));
    }
    decide_from(&rounds, Decider::new(offline_install), end).unwrap_or_else(|last| {
        Decision::LeaveInPlace(format!(
            "no proof of an uninstall within {seconds} s; last finding: {}",
            last.map_or_else(|| "the API server did not respond".into(), |last| last.to_string())
        ))
    })
}

/// Time in which to decide, from the termination grace period.
fn time_to_decide(grace: Duration) -> Duration {
    grace.saturating_sub(UNINSTALL_TIME).max(SHORTEST)
}

/// Runs rounds of requests and sends each finding, until the receiver is dropped.
fn send_findings(settings: &Settings, findings: &Sender<Finding>) {
    let (mut timeout, mut pause) = (FIRST_TIMEOUT, Backoff::new(PAUSE));
    let mut last = None;
    loop {
        let finding = round::run(settings, timeout);
        if last.as_ref() != Some(&finding) {
            pause.reset();
        }
        last = Some(finding.clone());
        if findings.send(finding).is_err() {
            return;
        }
        thread::sleep(pause.next_delay());
        timeout = LATER_TIMEOUT;
    }
}

/// Receives findings until one decides. The error is the last finding, if there is no decision at
/// `end`.
fn decide_from(
    findings: &Receiver<Finding>,
    mut decider: Decider,
    end: Instant,
) -> Result<Decision, Option<Finding>> {
    let mut last = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(finding) = findings.recv_timeout(left) else {
            return Err(last);
        };
        if let Some(decision) = decider.decide(&finding, Instant::now()) {
            return Ok(decision);
        }
        if last.as_ref() != Some(&finding) {
            warn!("no proof of an uninstall yet, asking again: {finding}");
        }
        last = Some(finding);
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
    fn there_is_no_decision_without_findings_by_the_deadline() {
        let (send, findings) = mpsc::channel();
        let begin = Instant::now();
        let end = begin + Duration::from_millis(50);
        let decider = || Decider::new(false);
        assert_eq!(decide_from(&findings, decider(), end), Err(None));
        assert!(begin.elapsed() >= Duration::from_millis(50));
        send.send(Finding::Rejected).unwrap();
        assert_eq!(decide_from(&findings, decider(), end), Err(Some(Finding::Rejected)));
        drop(send);
        assert_eq!(decide_from(&findings, decider(), end), Err(None));
    }
}
