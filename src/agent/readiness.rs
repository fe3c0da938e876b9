//! The agent's readiness: what `/live`, `/ready` and `/status` respond.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tracing::info;

use super::agent_metrics::{AgentMetrics, PluginCalls};
use super::file_watch::Waker;
use super::status_body::{PluginCounts, PodCopyStatus, StatusBody};
use super::subject::Subject;
use crate::admin;

/// Number of resync periods without a finished pass after which the agent is not ready.
const MAX_RESYNCS: u32 = 3;
/// Longest time of one pass. It takes milliseconds, but a busy disk takes seconds to sync a file,
/// and the run check waits up to 5 s for a plugin that hangs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The agent's state, shared between its threads and the admin server.
#[derive(Debug)]
pub struct Status {
    pub metrics: AgentMetrics,
    pub plugin_calls: PluginCalls,
    state: Mutex<State>,
}

/// What the threads report, for the admin server.
#[derive(Debug)]
pub struct State {
    pub last_pass: StatusBody,
    pod_copy: Option<PodCopyStatus>,
    /// When to stop waiting for the first list of the node's pods, and what to wake after it.
    awaited_pods: Option<(Instant, Waker)>,
    resync: Duration,
    /// When the last pass finished; at first, when the agent started.
    finished: Instant,
    /// When the pass that runs now began.
    pub running_since: Option<Instant>,
    /// The signal that stops the agent. `/ready` then reports only the signal.
    pub stopped_by: Option<Signal>,
    is_serving: bool,
    /// The node was ready after a pass.
    was_ready: bool,
}

impl Status {
    pub fn new(resync: Duration) -> Status {
        let why = "the first reconcile pass has not finished".to_owned();
        let state = State {
            last_pass: StatusBody { not_ready: Some(why), ..StatusBody::default() },
            pod_copy: None,
            awaited_pods: None,
            resync,
            finished: Instant::now(),
            running_since: None,
            stopped_by: None,
            is_serving: false,
            was_ready: false,
        };
        Status {
            metrics: AgentMetrics::default(),
            plugin_calls: PluginCalls::default(),
            state: Mutex::new(state),
        }
    }

    /// Keeps the node unready until its pods are published, publishing fails, or `end` has passed.
    /// In a rolling update the earlier agent publishes the pods until this agent is ready.
    pub fn await_pod_copy(&self, end: Instant, waker: Waker) {
        self.state().awaited_pods = Some((end, waker));
    }

    /// Returns the end of the wait for the first list of the node's pods; `None` once the agent no
    /// longer waits.
    pub fn pods_awaited_until(&self) -> Option<Instant> {
        let end = self.state().awaited_pods.as_ref()?.0;
        if end > Instant::now() { Some(end) } else { None }
    }

    pub fn set_pod_copy(&self, pod_copy: PodCopyStatus) {
        let published = i64::try_from(pod_copy.published).unwrap_or(i64::MAX);
        self.metrics.published_pods.set(published);
        self.metrics.pod_copy_current.set(pod_copy.current.into());
        self.metrics.set_bypassing_pods(&pod_copy.bypasses);
        let mut state = self.state();
        state.pod_copy = Some(pod_copy);
        if let Some((_, waker)) = state.awaited_pods.take() {
            waker.wake();
        }
    }

    /// Publishes what a pass found. Logs the first time that the node is ready.
    pub fn publish(&self, last_pass: StatusBody) {
        let mut state = self.state();
        if !state.was_ready && last_pass.not_ready.is_none() {
            state.was_ready = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        state.last_pass = last_pass;
    }

    pub fn end_pass(&self) {
        let mut state = self.state();
        state.running_since = None;
        state.finished = Instant::now();
    }

    /// Opens the port `address` for `/live`, `/ready`, `/metrics` and `/status`, unless it is open.
    /// Called in each pass, since the agent that ran before this one may still hold the port.
    pub fn serve(self: &Arc<Self>, address: Option<SocketAddr>) -> Result<(), String> {
        let Some(address) = address else {
            return Ok(());
        };
        if self.state().is_serving {
            return Ok(());
        }
        let [live, ready, metrics, body] = [self; 4].map(Arc::clone);
        let handlers = admin::Handlers {
            live: Box::new(move || live.state().live(Instant::now())),
            ready: Box::new(move || ready.state().ready(Instant::now())),
            metrics: Box::new(move || {
                let is_ready = metrics.state().ready(Instant::now()).is_ok();
                metrics.metrics.ready.set(is_ready.into());
                metrics.metrics.render(&metrics.plugin_calls)
            }),
            status: Some(Box::new(move || {
                body.state().body(Instant::now(), body.plugin_calls.counts())
            })),
        };
        admin::serve(address, handlers).map_err(|error| error.to_string())?;
        self.state().is_serving = true;
        Ok(())
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the note that `/ready` adds to a response of 200, or why the node is not ready.
    fn ready(&self, now: Instant) -> Result<Option<String>, String> {
        if let Some(signal) = self.stopped_by {
            return Err(format!("received {signal}"));
        }
        self.recent(now)?;
        match &self.last_pass.not_ready {
            Some(why) => Err(why.clone()),
            None => Ok(self.last_pass.note.clone()),
        }
    }

    /// Returns whether the main thread makes progress. Only a restart corrects stale mounts.
    fn live(&self, now: Instant) -> Result<(), String> {
        self.progressing(now)?;
        match self.last_pass.problem(&Subject::Mounts) {
            Some(why) => Err(why.to_owned()),
            None => Ok(()),
        }
    }

    /// Renders the body of `/status`.
    fn body(&self, now: Instant, calls: PluginCounts) -> String {
        let not_ready = self.ready(now).err();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let ready = not_ready.is_none();
        let pod_copy = self.pod_copy.clone();
        let body =
            StatusBody { version, ready, not_ready, pod_copy, calls, ..self.last_pass.clone() };
        // Maps with text keys cannot fail to serialize.
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// Fails if no pass has finished for three resync periods.
    fn recent(&self, now: Instant) -> Result<(), String> {
        let age = now.saturating_duration_since(self.finished);
        if age <= self.resync * MAX_RESYNCS {
            return Ok(());
        }
        let seconds = age.as_secs();
        match self.progressing(now) {
            Ok(()) => Err(format!("no reconcile pass has finished for {seconds} s")),
            Err(why) => Err(format!("no reconcile pass has finished for {seconds} s: {why}")),
        }
    }

    /// Fails if the pass that runs now takes too long.
    fn progressing(&self, now: Instant) -> Result<(), String> {
        let Some(since) = self.running_since else {
            return Ok(());
        };
        let time = now.saturating_duration_since(since);
        if time <= STUCK_AFTER {
            return Ok(());
        }
        let seconds = time.as_secs();
        Err(format!(
            "a reconcile pass has been running for {seconds} s; check the node's file systems"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pass_is_recent_for_three_resync_periods_and_stuck_after_a_minute() {
        let status = Status::new(10 * SECOND);
        let mut passes = status.state();
        let start = passes.finished;
        assert_eq!(passes.recent(start + 30 * SECOND), Ok(()));
        let why = "no reconcile pass has finished for 31 s";
        assert_eq!(passes.recent(start + 31 * SECOND), Err(why.into()));
        passes.running_since = Some(start + 31 * SECOND);
        assert_eq!(passes.recent(start + 31 * SECOND), Err(why.into()));
        (passes.finished, passes.running_since) = (start + 32 * SECOND, None);
        assert_eq!(passes.recent(start + 62 * SECOND), Ok(()));
        assert!(passes.recent(start + 63 * SECOND).is_err());
        // The agent can be stuck only during a pass.
        assert_eq!(passes.progressing(start + 1000 * SECOND), Ok(()));
        passes.running_since = Some(start + 1000 * SECOND);
        assert_eq!(passes.progressing(start + 1060 * SECOND), Ok(()));
        let why = "a reconcile pass has been running for 61 s; check the node's file systems";
        assert_eq!(passes.progressing(start + 1061 * SECOND), Err(why.into()));
    }

    #[test]
    fn the_status_body_reports_the_last_pass_and_can_be_parsed() {
        let status = Status::new(SECOND);
        status.state().last_pass = StatusBody {
            not_ready: Some("kubeconfig token: it \"expired\"".into()),
            conflist: Some("10-calico.conflist".into()),
            token_expires: Some(1_800_000_000),
            contended: vec!["binary: stop that writer".into()],
            problems: BTreeMap::from([("kubeconfigToken".into(), "it \"expired\"".into())]),
            ..StatusBody::default()
        };
        let redirects = BTreeMap::from([("nft".into(), 3)]);
        let calls = PluginCounts { redirects, ..PluginCounts::default() };
        let text = status.state().body(Instant::now(), calls);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                r#"{{"version":"{version}","ready":false,"notReady":"kubeconfig token: it \"expired\"","#
            ) + r#""note":null,"conflist":"10-calico.conflist","tokenExpires":1800000000,"#
                + r#""contended":["binary: stop that writer"],"podCopy":null,"#
                + r#""problems":{"kubeconfigToken":"it \"expired\""},"#
                + r#""redirects":{"nft":3},"failures":{},"degraded":{}}"#
        );
        let body: StatusBody = serde_json::from_str(&text).unwrap();
        assert_eq!(body.token_expires, Some(1_800_000_000));
        assert_eq!((body.contended.len(), body.ready), (1, false));
    }
}
