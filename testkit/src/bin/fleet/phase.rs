//! The phases of a run: figures of the API server in each phase, and the limits of a fleet.

use std::io::Read as _;
use std::thread;
use std::time::{Duration, SystemTime};
use std::{fs, mem};

use anyhow::ensure;
use linkerd2_cni::kube::Client;

use crate::control_plane::ControlPlane;
use crate::requests::{AuditLog, Request, peak_per_second};

const POLL: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1200);
/// Watches of pods that one node has open: the agent's and the repair controller's.
const WATCHES: usize = 2;

pub const START: &str = "start of all";
pub const IDLE: &str = "idle";
pub const ROLLOUT: &str = "rollout";
pub const RESTART: &str = "API server restarted";
/// Requests of one node at its start: TokenRequest, token check, a list and a watch of both
/// programs, and three retries.
const REQUESTS_AT_START: usize = 9;
/// Requests of one node after a restart of the API server. Of both programs: a watch from a version
/// that is too old, a list and a watch, and three rejected attempts while the API server fills its
/// caches.
const REQUESTS_AFTER_RESTART: usize = 12;

const TCP_CONNECTIONS: &str = "TCP connections";
/// The printed figures of a phase, and how much simulated nodes may differ from real ones: by a
/// share, or by a number that is normal for a few nodes. The CPU time depends on the other programs
/// of the machine.
const COLUMNS: [(&str, Option<[f64; 2]>); 11] = [
    ("seconds", None),
    ("requests, accepted", Some([0.15, 10.0])),
    ("requests, rejected", None),
    ("requests per node", None),
    ("requests, most in 1 s", None),
    (TCP_CONNECTIONS, Some([0.15, 20.0])),
    ("response MB", Some([0.05, 0.1])),
    ("API server CPU, s", Some([0.35, 1.0])),
    ("API server CPU, % of a core", None),
    ("API server memory, MiB", None),
    ("pod lists from etcd", None),
];

/// Figures of the API server since its start, and the TCP connections that were accepted in this
/// network namespace. The responses are those to lists, GETs and POSTs.
struct Metrics {
    cpu_seconds: f64,
    memory_bytes: f64,
    response_bytes: f64,
    etcd_pod_lists: f64,
    tcp_connections: f64,
}

impl Metrics {
    fn read(client: &Client) -> anyhow::Result<Metrics> {
        let mut text = String::new();
        client.read_list("/metrics")?.read_to_string(&mut text)?;
        let mut response_bytes = 0.0;
        for verb in ["verb=\"LIST\"", "verb=\"GET\"", "verb=\"POST\""] {
            response_bytes += sum(&text, "apiserver_response_sizes_sum", &[verb]);
        }
        let pod_lists = ["operation=\"list\"", "pods\""];
        Ok(Metrics {
            cpu_seconds: sum(&text, "process_cpu_seconds_total", &[]),
            memory_bytes: sum(&text, "process_resident_memory_bytes", &[]),
            response_bytes,
            etcd_pod_lists: sum(&text, "etcd_request_duration_seconds_count", &pod_lists),
            tcp_connections: accepted_tcp_connections()?,
        })
    }

    /// The figures of an API server that was just started. TCP connections are counted by the
    /// kernel.
    fn reset(&mut self) {
        self.cpu_seconds = 0.0;
        self.memory_bytes = 0.0;
        self.response_bytes = 0.0;
        self.etcd_pod_lists = 0.0;
    }
}

/// Returns the number of TCP connections that were accepted in this network namespace.
fn accepted_tcp_connections() -> anyhow::Result<f64> {
    // The first line of TCP has the names of its fields, the second line their values. PassiveOpens
    // is the sixth field after `Tcp:`.
    let snmp = fs::read_to_string("/proc/net/snmp")?;
    let values = snmp.lines().filter(|line| line.starts_with("Tcp:")).nth(1).unwrap_or_default();
    Ok(values.split(' ').nth(6).unwrap_or_default().parse()?)
}

/// Returns the sum of all series of the metric whose labels contain all of `labels`.
fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let series = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let series = series.filter(|rest| rest.starts_with(['{', ' ']));
    let series = series.filter(|rest| labels.iter().all(|label| rest.contains(label)));
    series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

pub struct Phase {
    name: &'static str,
    span: Duration,
    pub requests: Vec<Request>,
    watches: usize,
    etcd_pod_lists: usize,
    values: [f64; COLUMNS.len()],
}

impl Phase {
    /// Returns a text for each limit that a fleet of this size has broken.
    pub fn broken_limits(&self, nodes: usize, pods: usize) -> Vec<String> {
        let mut broken = Vec::new();
        if self.watches != WATCHES * nodes {
            broken.push(format!("{} watches", self.watches));
        }
        if self.etcd_pod_lists > self.max_etcd_pod_lists(nodes, pods) {
            broken.push(format!("etcd answered {} lists of pods", self.etcd_pod_lists));
        }
        if let Some(request) = self.requests.iter().find(|request| is_uncached_list(request)) {
            broken.push(format!("a list not from the cache: {:?}", Some(request)));
        }
        let count = self.requests.len();
        if count > self.max_requests(nodes) {
            broken.push(format!("{count} requests"));
        }
        // Clients retry over 5 s. Otherwise all of them would return in the same instant.
        let peak = peak_per_second(&self.requests);
        if self.name == RESTART && peak > count * 2 / 3 {
            broken.push(format!("{peak} requests in one second"));
        }
        broken.iter().map(|limit| format!("{nodes} nodes: {}: {limit}", self.name)).collect()
    }

    fn max_requests(&self, nodes: usize) -> usize {
        match self.name {
            START | ROLLOUT => REQUESTS_AT_START * nodes,
            RESTART => REQUESTS_AFTER_RESTART * nodes,
            // One request of each node in five minutes.
            _ => (nodes as f64 * self.span.as_secs_f64() / 300.0) as usize,
        }
    }

    /// The API server fills its cache with one list, and compares the cache with etcd by another
    /// list every 5 to 7.5 minutes, whatever the number of nodes is. A list takes a request for
    /// each 10,000 pods:
    /// <https://github.com/kubernetes/apiserver/blob/v0.35.4/pkg/storage/cacher/delegator.go#L322-L332>
    fn max_etcd_pod_lists(&self, nodes: usize, pods: usize) -> usize {
        let periods = self.span.as_secs() as usize / 300;
        // Each node also has the agent's pod.
        let requests_per_list = (nodes * (pods + 1)).div_ceil(10_000);
        (2 + periods) * requests_per_list
    }
}

/// Whether the API server cannot answer the list from its cache.
fn is_uncached_list(request: &Request) -> bool {
    let uri = &request.uri;
    request.verb == "list" && (!uri.contains("resourceVersion=0") || uri.contains("limit="))
}

/// Prints how simulated nodes differ from the same number of real nodes, except in the idle phase
/// with its few requests. Returns the differences that are too large.
pub fn compare(real: &[Phase], simulated: &[Phase], nodes: usize) -> Vec<String> {
    let mut large_differences = Vec::new();
    println!("\n| phase | | real | simulated |\n| --- | --- | --: | --: |");
    for (real, simulated) in real.iter().zip(simulated) {
        if real.name == IDLE {
            continue;
        }
        for (index, (column, tolerance)) in COLUMNS.into_iter().enumerate() {
            let Some([share, number]) = tolerance else { continue };
            // Until the API server is ready, many requests ask whether it is ready.
            if real.name == RESTART && column == TCP_CONNECTIONS {
                continue;
            }
            let expected = real.values[index];
            let actual = simulated.values[index];
            let difference = format!("{} | {column} | {expected:.1} | {actual:.1}", real.name);
            println!("| {difference} ({:+.0} %) |", 100.0 * (actual / expected - 1.0));
            if (actual - expected).abs() > (share * expected).max(number) {
                large_differences
                    .push(format!("{nodes} nodes: simulated nodes differ: {difference}"));
            }
        }
    }
    large_differences
}

pub struct Recorder {
    control_plane: ControlPlane,
    nodes: usize,
    audit_log: AuditLog,
    begin: SystemTime,
    before: Metrics,
}

impl Recorder {
    pub fn new(control_plane: ControlPlane, nodes: usize) -> anyhow::Result<Recorder> {
        let names = COLUMNS.map(|(name, _)| name).join(" | ");
        println!("| phase | {names} |\n| --- |{}", " --: |".repeat(COLUMNS.len()));
        let audit_log = AuditLog::new(control_plane.state.join("audit.log"));
        let before = Metrics::read(&control_plane.admin)?;
        Ok(Recorder { control_plane, nodes, audit_log, begin: SystemTime::now(), before })
    }

    /// Restarts the API server. Only watches that begin later count.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.begin = SystemTime::now();
        self.before.reset();
        self.control_plane.restart()?;
        self.audit_log.read()?;
        self.audit_log.watches.retain(|_, began| *began > self.begin);
        Ok(())
    }

    /// Waits until every node has its kubeconfig and its watches, and another 5 s. Ends the phase.
    /// The watches are not read from the metrics, because that costs the API server as much CPU as
    /// the start of some nodes.
    pub fn until_connected(&mut self, name: &'static str) -> anyhow::Result<Phase> {
        // All watches have to be new: in a rollout, those of stopped programs may end later than
        // others begin.
        while self.audit_log.connected.len() < self.nodes
            || self.audit_log.watches.len() != WATCHES * self.nodes
            || self.audit_log.watches.values().any(|began| *began < self.begin)
        {
            ensure!(self.begin.elapsed()? < CONNECT_TIMEOUT, "not all nodes are connected");
            thread::sleep(POLL);
            self.audit_log.read()?;
        }
        self.observe(name, Duration::from_secs(5))
    }

    /// Waits for this time, and ends the phase, which began when the phase before it ended.
    pub fn observe(&mut self, name: &'static str, time: Duration) -> anyhow::Result<Phase> {
        thread::sleep(time);
        let after = Metrics::read(&self.control_plane.admin)?;
        let span = self.begin.elapsed()?;
        self.begin = SystemTime::now();
        self.audit_log.read()?;
        let requests = mem::take(&mut self.audit_log.requests);
        let cpu_seconds = after.cpu_seconds - self.before.cpu_seconds;
        let lists = after.etcd_pod_lists - self.before.etcd_pod_lists;
        let rejected = requests.iter().filter(|request| request.status >= 400).count();
        let values = [
            span.as_secs_f64(),
            (requests.len() - rejected) as f64,
            rejected as f64,
            requests.len() as f64 / self.nodes as f64,
            peak_per_second(&requests) as f64,
            after.tcp_connections - self.before.tcp_connections,
            (after.response_bytes - self.before.response_bytes) / 1e6,
            cpu_seconds,
            100.0 * cpu_seconds / span.as_secs_f64(),
            after.memory_bytes / 1024.0 / 1024.0,
            lists,
        ];
        self.before = after;
        let texts = values.map(|value| ((100.0 * value).round() / 100.0).to_string());
        println!("| {name} | {} |", texts.join(" | "));
        Ok(Phase {
            name,
            span,
            requests,
            watches: self.audit_log.watches.len(),
            etcd_pod_lists: lists as usize,
            values,
        })
    }
}
