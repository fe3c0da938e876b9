//! Measures phases: what the API server's metrics and its audit log say about a span of time, and the limits that a
//! fleet must keep.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use linkerd2_cni::kube::Client;

use crate::control_plane::ControlPlane;
use crate::node::Fleet;
use crate::requests::{AuditLog, Request, peak_per_second, span};

/// Time between two looks at the state of the fleet.
const POLL: Duration = Duration::from_millis(500);
/// Longest time until the whole fleet is connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(300);
/// Watches of pods that one node has open: the agent's and the repair controller's.
const WATCHES: usize = 2;

/// Names of phases with a limit of requests.
pub const START: &str = "start of all";
pub const IDLE: &str = "idle";
pub const RESTART: &str = "API server restarted";
/// Requests of one node at its start: TokenRequest, DaemonSet, token check, a list and a watch of
/// both programs, and three retries.
const REQUESTS_AT_START: usize = 10;
/// Requests of one node after a restart of the API server. Of both programs: a watch from a version
/// that is too old, a list and a watch, and three rejected attempts while the API server fills its caches.
const REQUESTS_AFTER_RESTART: usize = 12;

/// Header of the rows of [`Phase`].
pub const HEADER: &str = "\
| phase | seconds | requests | first to last, s | most in 1 s | requests per node | API server CPU, s \
| CPU of one core | response bytes | watches | pod lists from etcd | pods read per list |
| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |";

/// One sample of the API server's metrics. Counters start at the API server's start.
#[derive(Clone, Copy)]
struct Metrics {
    cpu_seconds: f64,
    /// Watches of pods that are open now.
    pod_watches: f64,
    /// Bytes of responses to lists, GETs and POSTs.
    response_bytes: f64,
    /// Lists of pods that etcd answered.
    etcd_pod_lists: f64,
    /// Lists of pods that the cache answered, and pods that it read for these.
    cache_pod_lists: f64,
    cache_pods_read: f64,
}

impl Metrics {
    fn read(client: &Client) -> anyhow::Result<Metrics> {
        let mut text = String::new();
        client.read_list("/metrics")?.read_to_string(&mut text)?;
        // Sum of all series of the metric whose labels contain all of `labels`.
        let sum = |name: &str, labels: &[&str]| -> f64 {
            let series = text.lines().filter_map(|line| line.strip_prefix(name));
            let series = series.filter(|rest| rest.starts_with(['{', ' ']));
            let series = series.filter(|rest| labels.iter().all(|label| rest.contains(label)));
            series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
        };
        let verbs = ["verb=\"LIST\"", "verb=\"GET\"", "verb=\"POST\""];
        let watches = ["resource=\"pods\"", "verb=\"WATCH\"", "scope=\"cluster\""];
        let lists = ["operation=\"list\"", "pods\""];
        Ok(Metrics {
            cpu_seconds: sum("process_cpu_seconds_total", &[]),
            pod_watches: sum("apiserver_longrunning_requests", &watches),
            response_bytes: verbs
                .map(|verb| sum("apiserver_response_sizes_sum", &[verb]))
                .iter()
                .sum(),
            etcd_pod_lists: sum("etcd_request_duration_seconds_count", &lists),
            cache_pod_lists: sum("apiserver_cache_list_total", &["pods\""]),
            cache_pods_read: sum("apiserver_cache_list_fetched_objects_total", &["pods\""]),
        })
    }
}

/// What was measured between the phase's begin and end.
pub struct Phase {
    name: &'static str,
    span: Duration,
    /// Requests of the fleet, from the audit log.
    requests: Vec<Request>,
    /// Open watches of pods at the end of the phase.
    watches: usize,
    etcd_pod_lists: usize,
}

impl Phase {
    /// Prints the number of requests by program, verb and status.
    pub fn print_requests(&self) {
        let mut kinds: BTreeMap<(&str, u64), usize> = BTreeMap::new();
        for request in &self.requests {
            *kinds.entry((&*request.kind, request.status)).or_default() += 1;
        }
        for ((kind, status), count) in kinds {
            println!("- {}: {kind}, HTTP {status}: {count}", self.name);
        }
    }

    /// Returns a sentence for each limit that the phase breaks.
    pub fn broken_limits(&self, nodes: usize) -> Vec<String> {
        let Phase { name, requests, watches, etcd_pod_lists: lists, .. } = self;
        let count = requests.len();
        let most = match *name {
            START => REQUESTS_AT_START * nodes,
            RESTART => REQUESTS_AFTER_RESTART * nodes,
            _ => (nodes as f64 * self.span.as_secs_f64() / 300.0) as usize,
        };
        let uncached = requests.iter().find(|request| is_uncached_list(request));
        let peak = peak_per_second(requests);
        let limits = [
            (*watches == WATCHES * nodes, format!("{watches} watches")),
            // Whatever the number of nodes: the API server fills its cache with one list, and compares the cache with
            // etcd by another every 5 to 7.5 minutes. A list of more than 10,000 pods takes several requests:
            // https://github.com/kubernetes/apiserver/blob/v0.35.4/pkg/storage/cacher/delegator.go#L322-L332
            (*lists <= 2, format!("etcd answered {lists} lists of pods")),
            (uncached.is_none(), format!("a list not from the cache: {uncached:?}")),
            (count <= most, format!("{count} requests")),
            // Clients retry over 5 s. Without that, all would return in the same instant.
            (*name != RESTART || peak <= count * 2 / 3, format!("{peak} requests in one second")),
        ];
        let broken = limits.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, what)| format!("{nodes} nodes: {name}: {what}")).collect()
    }
}

fn is_uncached_list(request: &Request) -> bool {
    request.kind.ends_with(" list")
        && (!request.uri.contains("resourceVersion=0") || request.uri.contains("limit="))
}

pub struct Recorder {
    control_plane: ControlPlane,
    nodes: usize,
    /// Watches of pods that the API server itself has open.
    own_pod_watches: f64,
    audit_log: AuditLog,
    begin: Instant,
    before: Metrics,
}

impl Recorder {
    pub fn new(control_plane: ControlPlane, nodes: usize) -> anyhow::Result<Recorder> {
        let audit_log = AuditLog::new(control_plane.audit_log());
        let before = Metrics::read(&control_plane.admin)?;
        let (own_pod_watches, begin) = (before.pod_watches, Instant::now());
        Ok(Recorder { control_plane, nodes, own_pod_watches, audit_log, begin, before })
    }

    /// Restarts the API server, whose counters are reset, and starts a phase.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.control_plane.restart()?;
        self.before = Metrics::read(&self.control_plane.admin)?;
        self.begin = Instant::now();
        Ok(())
    }

    /// Measures a phase of the length `span`.
    pub fn observe(&mut self, name: &'static str, span: Duration) -> anyhow::Result<Phase> {
        thread::sleep(span);
        self.finish(name)
    }

    /// Measures until every node has its kubeconfig, its watches and the copy of its pods, and then for 5 s more.
    pub fn until_connected(&mut self, name: &'static str, fleet: &Fleet) -> anyhow::Result<Phase> {
        while fleet.connected() < self.nodes
            || self.watches(&Metrics::read(&self.control_plane.admin)?) < WATCHES * self.nodes
        {
            ensure!(self.begin.elapsed() < CONNECT_TIMEOUT, "not all nodes are connected");
            thread::sleep(POLL);
        }
        self.observe(name, Duration::from_secs(5))
    }

    /// Number of watches of pods that the nodes have open.
    fn watches(&self, metrics: &Metrics) -> usize {
        (metrics.pod_watches - self.own_pod_watches) as usize
    }

    /// Ends the phase, prints its row, and begins the next phase.
    fn finish(&mut self, name: &'static str) -> anyhow::Result<Phase> {
        let after = Metrics::read(&self.control_plane.admin)?;
        let before = std::mem::replace(&mut self.before, after);
        let since = std::mem::replace(&mut self.begin, Instant::now()).elapsed();
        let phase = Phase {
            name,
            span: since,
            requests: self.audit_log.read()?,
            watches: self.watches(&after),
            etcd_pod_lists: (after.etcd_pod_lists - before.etcd_pod_lists) as usize,
        };
        let cpu = after.cpu_seconds - before.cpu_seconds;
        let lists = after.cache_pod_lists - before.cache_pod_lists;
        let pods_read = after.cache_pods_read - before.cache_pods_read;
        println!(
            "| {name} | {:.0} | {} | {:.1} | {} | {:.2} | {cpu:.1} | {:.1}% | {:.0} | {} | {} | {:.0} |",
            since.as_secs_f64(),
            phase.requests.len(),
            span(&phase.requests).as_secs_f64(),
            peak_per_second(&phase.requests),
            phase.requests.len() as f64 / self.nodes as f64,
            100.0 * cpu / since.as_secs_f64(),
            after.response_bytes - before.response_bytes,
            phase.watches,
            phase.etcd_pod_lists,
            pods_read / lists.max(1.0),
        );
        Ok(phase)
    }
}
