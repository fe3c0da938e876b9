//! Asks, when the agent is told to stop, whether to uninstall.
//!
//! The agent uninstalls only on proof. Without one it asks again until the pod's grace
//! period is nearly over, and then leaves everything in place for the next agent: an
//! uninstall by mistake lets meshed pods start without redirection, while a forgotten
//! plugin can be removed with one command.

mod decision;
mod round;
mod scope;

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::agent::settings::Settings;
pub use decision::Decision;
use decision::{Decider, Finding};

/// Time for the uninstall itself before kubelet kills the agent.
const RESERVE: Duration = Duration::from_secs(5);
/// Shortest time to ask, for one round.
const LEAST: Duration = Duration::from_secs(1);
/// Time-out of each phase of a request in the first round.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3);
/// The same in later rounds, longer, because repeating a request does not make a slow API
/// server faster.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Pause after the first round, and after each round with a new finding.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between rounds with the same finding.
const LAST_PAUSE: Duration = Duration::from_secs(3);

/// Whether there is a kubeconfig, so that an earlier agent may have installed the plugin.
/// Call it before the first reconcile pass.
pub fn finds_kubeconfig(settings: &Settings) -> bool {
    let found = fs::symlink_metadata(settings.kubeconfig());
    !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Asks until there is a decision, for no longer than the grace period allows. `is_alone`
/// says that no kubeconfig was found at the start and no API server ever answered.
pub fn decide(settings: &Arc<Settings>, is_alone: bool) -> Decision {
    let time = time_to_ask(settings.termination_grace);
    let end = Instant::now() + time;
    let seconds = time.as_secs();
    info!("asking the API server whether to uninstall, for at most {seconds} s");
    let (send, rounds) = mpsc::channel();
    let own = Arc::clone(settings);
    // Never joined: a request that hangs ends with the process.
    let asking = thread::Builder::new()
        .name("departure".into())
        .spawn(move || ask(&own, &send));
    if let Err(error) = asking {
        return Decision::Leave(format!("cannot start a thread: {error}"));
    }
    listen(&rounds, Decider::new(is_alone), end).unwrap_or_else(|last| {
        Decision::Leave(format!(
            "there was no proof of an uninstall within {seconds} s; last: {}",
            last.map_or_else(
                || "no answer of the API server".into(),
                |last| last.to_string()
            )
        ))
    })
}

fn time_to_ask(grace: Duration) -> Duration {
    grace.saturating_sub(RESERVE).max(LEAST)
}

/// Sends one finding after the other until nobody listens.
fn ask(settings: &Settings, findings: &Sender<Finding>) {
    let (mut timeout, mut pause) = (FIRST_TIMEOUT, FIRST_PAUSE);
    let mut last = None;
    loop {
        let finding = round::ask(settings, timeout);
        if last.as_ref() != Some(&finding) {
            pause = FIRST_PAUSE;
        }
        last = Some(finding.clone());
        if findings.send(finding).is_err() {
            return;
        }
        thread::sleep(jitter(pause));
        pause = LAST_PAUSE.min(pause * 3 / 2);
        timeout = TIMEOUT;
    }
}

/// Takes findings until one decides. The error is the last of them at the `end`.
fn listen(
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
        if let Some(decision) = decider.take(&finding, Instant::now()) {
            return Ok(decision);
        }
        if last.as_ref() != Some(&finding) {
            warn!("cannot tell yet whether to uninstall, asking again: {finding}");
        }
        last = Some(finding);
    }
}

/// `whole`, or up to a quarter less, so that many nodes do not ask at the same time.
fn jitter(whole: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1024;
    whole - whole / 4 * (random as u32) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_ends_five_seconds_before_the_grace_period_and_takes_at_least_one() {
        for (grace, time) in [(30, 25), (10, 5), (6, 1), (5, 1), (1, 1), (3600, 3595)] {
            let asked = time_to_ask(Duration::from_secs(grace));
            assert_eq!(asked, Duration::from_secs(time), "{grace}");
        }
    }

    #[test]
    fn nobody_who_answers_holds_the_agent_up_past_the_end() {
        let (send, findings) = mpsc::channel();
        let begin = Instant::now();
        let end = begin + Duration::from_millis(50);
        let decider = || Decider::new(false);
        assert_eq!(listen(&findings, decider(), end), Err(None));
        assert!(begin.elapsed() >= Duration::from_millis(50));
        send.send(Finding::Rejected).unwrap();
        assert_eq!(
            listen(&findings, decider(), end),
            Err(Some(Finding::Rejected))
        );
        drop(send);
        assert_eq!(listen(&findings, decider(), end), Err(None));
    }

    #[test]
    fn pauses_are_short_and_scattered() {
        let pauses: Vec<_> = (0..100).map(|_| jitter(LAST_PAUSE)).collect();
        for pause in &pauses {
            assert!(
                (LAST_PAUSE * 3 / 4..=LAST_PAUSE).contains(pause),
                "{pause:?}"
            );
        }
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
