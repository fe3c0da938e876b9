//! The agent's readiness: what the agent responds to `/live`, `/ready` and `/status`.

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
/// Time after which a pass that has not ended counts as stuck. A pass usually takes milliseconds.
/// But a busy disk may need seconds to sync a file, and the run check waits up to 5 s for a plugin
/// that hangs.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The agent's state, shared between its threads and the admin server.
#[derive(Debug)]
pub struct Status {
    pub metrics: AgentMetrics,
    pub plugin_calls: PluginCalls,
    state: Mutex<State>,
}

/// What the agent's threads report to the admin server.
#[derive(Debug)]
pub struct State {
    pub last_pass: StatusBody,
    pod_copy: Option<PodCopyStatus>,
    /// The wait for the first list of the node's pods. `None` if the agent does not wait for it.
    pod_copy_wait: Option<PodCopyWait>,
    resync: Duration,
    /// When the last pass finished. Before the first pass, when the agent started.
    finished: Instant,
    /// When the present pass began. `None` between passes.
    pub running_since: Option<Instant>,
    /// The signal that stops the agent. `/ready` then reports only the signal.
    pub stopped_by: Option<Signal>,
    is_serving: bool,
    /// Whether the node was ever ready after a pass.
    was_ready: bool,
}

#[derive(Debug)]
struct PodCopyWait {
    end: Instant,
    /// Wakes the main loop when the pods were listed, or could not be listed.
    waker: Waker,
}

impl Status {
    pub fn new(resync: Duration) -> Status {
        let why = "the first reconcile pass has not finished".to_owned();
        let state = State {
            last_pass: StatusBody { not_ready: Some(why), ..StatusBody::default() },
            pod_copy: None,
            pod_copy_wait: None,
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
    /// So in a rolling update the earlier agent runs, and publishes the pods, until this agent
    /// does.
    pub fn await_pod_copy(&self, end: Instant, waker: Waker) {
        self.state().pod_copy_wait = Some(PodCopyWait { end, waker });
    }

    /// Returns the end of the wait for the first list of the node's pods. `None` if the agent does
    /// not wait for the list, or no longer does.
    pub fn pods_awaited_until(&self) -> Option<Instant> {
        let end = self.state().pod_copy_wait.as_ref()?.end;
        if end > Instant::now() { Some(end) } else { None }
    }

    pub fn set_pod_copy(&self, pod_copy: PodCopyStatus) {
        let published = i64::try_from(pod_copy.published).unwrap_or(i64::MAX);
        self.metrics.published_pods.set(published);
        self.metrics.pod_copy_current.set(pod_copy.current.into());
        if let Some(bypasses) = &pod_copy.bypasses {
            self.metrics.set_bypassing_pods(bypasses);
        }
        let mut state = self.state();
        state.pod_copy = Some(pod_copy);
        if let Some(wait) = state.pod_copy_wait.take() {
            wait.waker.wake();
        }
    }

    /// Sets what a pass has found, for the admin server. Logs that the node is ready when this is
    /// the first time.
    pub fn set_last_pass(&self, last_pass: StatusBody) {
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

    /// Opens the port `address` for `/live`, `/ready`, `/metrics` and `/status`, unless it is open
    /// already. Each pass calls this, because the port may be in use at first, by the agent that
    /// ran before this one.
    pub fn serve(self: &Arc<Self>, address: Option<SocketAddr>) -> Result<(), String> {
        let Some(address) = address else {
            return Ok(());
        };
        if self.state().is_serving {
            return Ok(());
        }
        let for_live = Arc::clone(self);
        let for_ready = Arc::clone(self);
        let for_metrics = Arc::clone(self);
        let for_status = Arc::clone(self);
        let handlers = admin::Handlers {
            live: Box::new(move || for_live.state().check_live(Instant::now())),
            ready: Box::new(move || for_ready.state().check_ready(Instant::now())),
            metrics: Box::new(move || for_metrics.render_metrics()),
            status: Some(Box::new(move || {
                let calls = for_status.plugin_calls.counts();
                for_status.state().render_status(Instant::now(), calls)
            })),
        };
        admin::serve(address, handlers).map_err(|error| error.to_string())?;
        self.state().is_serving = true;
        Ok(())
    }

    fn render_metrics(&self) -> String {
        let is_ready = self.state().check_ready(Instant::now()).is_ok();
        self.metrics.ready.set(is_ready.into());
        self.metrics.render(&self.plugin_calls)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the note that `/ready` adds to a response of 200. Fails with the reason why the node
    /// is not ready.
    fn check_ready(&self, now: Instant) -> Result<Option<String>, String> {
        if let Some(signal) = self.stopped_by {
            return Err(format!("received {signal}"));
        }
        self.check_recent(now)?;
        match &self.last_pass.not_ready {
            Some(why) => Err(why.clone()),
            None => Ok(self.last_pass.note.clone()),
        }
    }

    /// Fails if only a restart of the agent helps: if the main thread makes no progress, or if the
    /// mounts are stale.
    fn check_live(&self, now: Instant) -> Result<(), String> {
        self.check_progress(now)?;
        match self.last_pass.problem(&Subject::Mounts) {
            Some(why) => Err(why.to_owned()),
            None => Ok(()),
        }
    }

    /// Renders the body of `/status`.
    fn render_status(&self, now: Instant, calls: PluginCounts) -> String {
        let not_ready = self.check_ready(now).err();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let ready = not_ready.is_none();
        let pod_copy = self.pod_copy.clone();
        let body =
            StatusBody { version, ready, not_ready, pod_copy, calls, ..self.last_pass.clone() };
        // Serializing cannot fail, because all maps in the body have strings as keys.
        serde_json::to_string(&body).unwrap_or_default()
    }

    /// Fails if no pass has finished for [`MAX_RESYNCS`] resync periods.
    fn check_recent(&self, now: Instant) -> Result<(), String> {
        let age = now.saturating_duration_since(self.finished);
        if age <= self.resync * MAX_RESYNCS {
            return Ok(());
        }
        let seconds = age.as_secs();
        match self.check_progress(now) {
            Ok(()) => Err(format!("no reconcile pass has finished for {seconds} s")),
            Err(why) => Err(format!("no reconcile pass has finished for {seconds} s: {why}")),
        }
    }

    /// Fails if the present pass is stuck.
    fn check_progress(&self, now: Instant) -> Result<(), String> {
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
        let mut state = status.state();
        let start = state.finished;
        assert_eq!(state.check_recent(start + 30 * SECOND), Ok(()));
        let why = "no reconcile pass has finished for 31 s";
        assert_eq!(state.check_recent(start + 31 * SECOND), Err(why.into()));
        state.running_since = Some(start + 31 * SECOND);
        assert_eq!(state.check_recent(start + 31 * SECOND), Err(why.into()));
        state.finished = start + 32 * SECOND;
        state.running_since = None;
        assert_eq!(state.check_recent(start + 62 * SECOND), Ok(()));
        assert!(state.check_recent(start + 63 * SECOND).is_err());
        // Between passes the agent cannot be stuck.
        assert_eq!(state.check_progress(start + 1000 * SECOND), Ok(()));
        state.running_since = Some(start + 1000 * SECOND);
        assert_eq!(state.check_progress(start + 1060 * SECOND), Ok(()));
        let why = "a reconcile pass has been running for 61 s; check the node's file systems";
        assert_eq!(state.check_progress(start + 1061 * SECOND), Err(why.into()));
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
        let text = status.state().render_status(Instant::now(), calls);
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
