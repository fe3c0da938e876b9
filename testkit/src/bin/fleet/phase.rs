//! Measures phases: what the API server and its audit log say about a span of time.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::audit_log::{AuditLog, Request, peak_per_second};
use crate::control_plane::ControlPlane;
use crate::metrics::Metrics;
use crate::node::{CONNECT_TIMEOUT, Fleet};

/// Time between two looks at the state of the fleet.
const POLL: Duration = Duration::from_millis(500);
/// Watches of pods that one node has open: the agent's and the repair controller's.
pub const WATCHES: usize = 2;

/// What was measured between the phase's begin and end.
pub struct Phase {
    pub span: Duration,
    pub cpu_seconds: f64,
    pub memory_bytes: f64,
    /// Requests of the fleet, from the audit log.
    pub requests: Vec<Request>,
    /// Open watches of pods at the end of the phase.
    pub watches: usize,
    pub response_bytes: f64,
    pub watch_bytes: f64,
    pub etcd_pod_lists: usize,
    /// Pods that the API server read per list; zero if it does not say so.
    pub pods_read_per_list: f64,
}

impl Phase {
    pub fn peak_per_second(&self) -> usize {
        peak_per_second(&self.requests)
    }

    /// The phase in a few words, in case that a later phase fails.
    pub fn summary(&self) -> String {
        let (count, peak) = (self.requests.len(), self.peak_per_second());
        let (span, cpu) = (self.span, self.cpu_seconds);
        format!("{span:.0?}, {count} requests, {peak} in one second, API server CPU {cpu:.1} s")
    }

    /// Number of requests by program, verb and status.
    pub fn kinds(&self) -> BTreeMap<(&str, u16), usize> {
        let mut kinds = BTreeMap::new();
        for request in &self.requests {
            *kinds.entry((&*request.kind, request.status)).or_default() += 1;
        }
        kinds
    }

    /// Time from the first to the last request.
    pub fn requests_span(&self) -> Duration {
        let times = || self.requests.iter().map(|request| request.received);
        let (first, last) = (times().min(), times().max());
        first
            .zip(last)
            .and_then(|(first, last)| last.duration_since(first).ok())
            .unwrap_or_default()
    }
}

pub struct Recorder {
    nodes: usize,
    /// Watches of pods that the API server itself has open.
    own_pod_watches: usize,
    audit_log: AuditLog,
    begin: Instant,
    before: Metrics,
}

impl Recorder {
    pub fn new(control_plane: &ControlPlane, nodes: usize) -> anyhow::Result<Recorder> {
        let audit_log = AuditLog::new(control_plane.audit_log());
        let before = Metrics::read(&control_plane.admin)?;
        let own_pod_watches = before.pod_watches;
        Ok(Recorder { nodes, own_pod_watches, audit_log, begin: Instant::now(), before })
    }

    /// Measures a phase of the length `span`.
    pub fn observe(
        &mut self,
        control_plane: &ControlPlane,
        span: Duration,
    ) -> anyhow::Result<Phase> {
        thread::sleep(span);
        self.finish(control_plane)
    }

    /// Starts a phase after a restart of the API server, whose counters are reset.
    pub fn restarted(&mut self, control_plane: &ControlPlane) -> anyhow::Result<()> {
        self.before = Metrics::read(&control_plane.admin)?;
        self.begin = Instant::now();
        Ok(())
    }

    /// Measures until every node has its kubeconfig, its watches and the copy of its pods, and then for 5 s more.
    pub fn until_connected(
        &mut self,
        control_plane: &ControlPlane,
        fleet: &Fleet,
    ) -> anyhow::Result<Phase> {
        while fleet.kubeconfigs() < self.nodes
            || fleet.copies() < self.nodes
            || self.watches(&Metrics::read(&control_plane.admin)?) < WATCHES * self.nodes
        {
            ensure!(self.begin.elapsed() < CONNECT_TIMEOUT, "not all nodes are connected");
            thread::sleep(POLL);
        }
        thread::sleep(Duration::from_secs(5));
        self.finish(control_plane)
    }

    /// Number of watches of pods that the nodes have open.
    fn watches(&self, metrics: &Metrics) -> usize {
        metrics.pod_watches.saturating_sub(self.own_pod_watches)
    }

    /// Ends the phase and begins the next.
    fn finish(&mut self, control_plane: &ControlPlane) -> anyhow::Result<Phase> {
        let after = Metrics::read(&control_plane.admin)?;
        let before = std::mem::replace(&mut self.before, after);
        let span = self.begin.elapsed();
        self.begin = Instant::now();
        let lists = after.cache_pod_lists - before.cache_pod_lists;
        let pods_read = after.cache_pods_read - before.cache_pods_read;
        Ok(Phase {
            span,
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            memory_bytes: after.memory_bytes,
            requests: self.audit_log.read()?,
            watches: self.watches(&after),
            response_bytes: after.response_bytes - before.response_bytes,
            watch_bytes: after.watch_bytes - before.watch_bytes,
            etcd_pod_lists: (after.etcd_pod_lists - before.etcd_pod_lists) as usize,
            pods_read_per_list: if lists > 0.0 { pods_read / lists } else { 0.0 },
        })
    }
}
