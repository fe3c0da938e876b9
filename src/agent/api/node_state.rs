//! What the reconcile passes have found, and for how long: decides what the Node object shows, and when a
//! node that stays not ready is reported as an Event. Pure.

use std::time::{Duration, Instant};

use crate::agent::readiness::MAX_RESYNCS;
use crate::agent::settings::NodeSignal;
use crate::kube::event::{EventContent, EventType};

/// Reason of the condition while the node is not ready, and of the Event.
pub const NOT_READY: &str = "LinkerdCNINotReady";
/// Message while no reconcile pass finishes.
const STUCK: &str = "the reconcile passes have stopped; check the node's file systems";

/// How long a node stays not ready before the condition says so. Shorter are the agent's own
/// corrections, such as of a deleted plugin binary.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same for an agent that starts: the plugin that an earlier agent installed keeps working.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Time without readiness after which an Event is posted. A start, an upgrade and a restart of the
/// API server are shorter.
const REPORT_AFTER: Duration = Duration::from_secs(5 * 60);
/// Time after which the Event is repeated: the API server deletes an Event after an hour, and an
/// Event that could not be posted is not retried.
const REPEAT_AFTER: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub struct NodeState {
    not_ready: Option<String>,
    /// When the node became ready or not ready.
    since: Instant,
    /// When an Event reports that the node is not ready.
    report: Instant,
    /// How long the node stays not ready before the condition says so.
    patience: Duration,
    /// Until when a node that is ready counts as ready, unless another pass finishes.
    valid_until: Instant,
}

impl NodeState {
    pub fn at_start(now: Instant) -> NodeState {
        NodeState {
            not_ready: Some("the first reconcile pass has not finished".into()),
            since: now,
            report: now + REPORT_AFTER,
            patience: START_PATIENCE,
            valid_until: now,
        }
    }

    /// Records the result of a pass. Passes are at most `resync` apart. Returns the Event to post, if one is
    /// due.
    pub fn pass_finished(
        &mut self,
        not_ready: Option<&str>,
        resync: Duration,
        now: Instant,
    ) -> Option<EventContent> {
        if not_ready.is_none() != self.not_ready.is_none() {
            self.since = now;
            self.report = now + REPORT_AFTER;
        }
        if not_ready.is_none() {
            self.patience = PATIENCE;
        }
        self.not_ready = not_ready.map(str::to_owned);
        self.valid_until = now + resync * MAX_RESYNCS;
        let why = not_ready.filter(|_| now >= self.report)?;
        self.report = now + REPEAT_AFTER;
        let minutes = REPORT_AFTER.as_secs() / 60;
        Some(EventContent {
            kind: EventType::Warning,
            reason: NOT_READY,
            action: "Installing",
            note: format!(
                "The linkerd-cni agent has not been ready for {minutes} minutes or more: {why}"
            ),
        })
    }

    /// Returns what the Node should have, and when to look again. `None`: leave the Node as it is.
    pub fn wanted(&self, signal: &NodeSignal, now: Instant) -> (Option<Wanted>, Option<Instant>) {
        match (signal, &self.not_ready) {
            (NodeSignal::StartupTaint(key), None) => (Some(Wanted::NoTaint(key.clone())), None),
            (NodeSignal::StartupTaint(_), Some(_)) => (None, None),
            (NodeSignal::Condition, Some(why)) => match self.since + self.patience {
                end if now < end => (None, Some(end)),
                _ => (Some(Wanted::NotReady(why.clone())), None),
            },
            (NodeSignal::Condition, None) if now <= self.valid_until => {
                (Some(Wanted::Ready), Some(self.valid_until))
            }
            (NodeSignal::Condition, None) => (Some(Wanted::NotReady(STUCK.into())), None),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No taint with this key, whatever its value and effect.
    NoTaint(String),
    /// The condition with the status `True`.
    Ready,
    /// The condition with the status `False`, and this message.
    NotReady(String),
    NoCondition,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "linkerd.io/cni-not-ready";

    #[test]
    fn the_condition_waits_out_short_faults_and_the_taint_is_unwanted_only_on_a_ready_node() {
        let (resync, begin) = (Duration::from_secs(30), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut state = NodeState::at_start(begin);
        let wanted = |state: &NodeState, now| state.wanted(&NodeSignal::Condition, at(now));
        let bad = |why: &str| (Some(Wanted::NotReady(why.into())), None);
        state.pass_finished(Some("waiting"), resync, at(100));
        assert_eq!(wanted(&state, 9_999), (None, Some(at(10_000))));
        assert_eq!(wanted(&state, 10_000), bad("waiting"));

        state.pass_finished(None, resync, at(20_000));
        assert_eq!(wanted(&state, 20_000), (Some(Wanted::Ready), Some(at(110_000))));
        assert_eq!(wanted(&state, 110_001), bad(STUCK));

        state.pass_finished(Some("binary"), resync, at(120_000));
        state.pass_finished(Some("self-test"), resync, at(120_400));
        assert_eq!(wanted(&state, 120_499), (None, Some(at(120_500))));
        assert_eq!(wanted(&state, 120_500), bad("self-test"));
        state.pass_finished(None, resync, at(121_000));
        assert_eq!(wanted(&state, 121_000).0, Some(Wanted::Ready));
        let taint = NodeSignal::StartupTaint(KEY.into());
        assert_eq!(state.wanted(&taint, at(121_000)), (Some(Wanted::NoTaint(KEY.into())), None));
        state.pass_finished(Some("x"), resync, at(122_000));
        assert_eq!(state.wanted(&taint, at(999_000)), (None, None));
    }

    #[test]
    fn a_node_is_reported_after_five_minutes_and_then_once_an_hour_until_it_is_ready() {
        let start = Instant::now();
        let mut state = NodeState::at_start(start);
        for (seconds, not_ready, is_reported) in [
            (299, true, false),
            (300, true, true),
            (3899, true, false),
            (3900, true, true),
            (3901, false, false),
            (3902, true, false),
            (4201, true, false),
            (4202, true, true),
        ] {
            let not_ready = not_ready.then_some("binary: missing");
            let now = start + Duration::from_secs(seconds);
            let report = state.pass_finished(not_ready, Duration::from_secs(30), now);
            assert_eq!(report.is_some(), is_reported, "at {seconds} s");
        }
    }
}
