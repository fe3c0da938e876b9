//! What the API server says of a span of time, and the limits that a fleet must keep.

use std::io::Read as _;
use std::thread;
use std::time::{Duration, SystemTime};
use std::{array, fs, mem};

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
/// What is printed of a phase, and how much simulated nodes may differ from real ones: by a share,
/// or by a number that is normal for a few nodes. The CPU depends on what else runs on the machine.
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

/// Figures of the API server since its start: CPU seconds, memory, bytes of responses to lists,
/// GETs and POSTs, lists of pods that etcd answered. Then the TCP connections that were accepted in
/// this network namespace.
type Metrics = [f64; 5];

fn metrics(client: &Client) -> anyhow::Result<Metrics> {
    let mut text = String::new();
    client.read_list("/metrics")?.read_to_string(&mut text)?;
    let verbs = ["verb=\"LIST\"", "verb=\"GET\"", "verb=\"POST\""];
    let bytes = verbs.map(|verb| sum(&text, "apiserver_response_sizes_sum", &[verb]));
    // The fields of TCP: a line of names, and a line of values. PassiveOpens is the sixth.
    let tcp = fs::read_to_string("/proc/net/snmp")?;
    let tcp = tcp.lines().filter(|line| line.starts_with("Tcp:")).nth(1).unwrap_or_default();
    Ok([
        sum(&text, "process_cpu_seconds_total", &[]),
        sum(&text, "process_resident_memory_bytes", &[]),
        bytes.iter().sum(),
        sum(&text, "etcd_request_duration_seconds_count", &["operation=\"list\"", "pods\""]),
        tcp.split(' ').nth(6).unwrap_or_default().parse()?,
    ])
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
    pub fn broken_limits(&self, nodes: usize, pods: usize) -> Vec<String> {
        let Phase { name, requests, watches, etcd_pod_lists: lists, .. } = self;
        let (count, periods) = (requests.len(), self.span.as_secs() as usize / 300);
        let most = match *name {
            START | ROLLOUT => REQUESTS_AT_START * nodes,
            RESTART => REQUESTS_AFTER_RESTART * nodes,
            _ => (nodes as f64 * self.span.as_secs_f64() / 300.0) as usize,
        };
        // Whatever the number of nodes: the API server fills its cache with one list, and compares
        // the cache with etcd by another every 5 to 7.5 minutes. A list takes a request for each
        // 10,000 pods:
        // https://github.com/kubernetes/apiserver/blob/v0.35.4/pkg/storage/cacher/delegator.go#L322-L332
        let most_lists = (2 + periods) * (nodes * (pods + 1)).div_ceil(10_000);
        let uncached = requests.iter().find(|Request { verb, uri, .. }| {
            verb == "list" && (!uri.contains("resourceVersion=0") || uri.contains("limit="))
        });
        let peak = peak_per_second(requests);
        let limits = [
            (*watches == WATCHES * nodes, format!("{watches} watches")),
            (*lists <= most_lists, format!("etcd answered {lists} lists of pods")),
            (uncached.is_none(), format!("a list not from the cache: {uncached:?}")),
            (count <= most, format!("{count} requests")),
            // Clients retry over 5 s. Without that, all would return in the same instant.
            (*name != RESTART || peak <= count * 2 / 3, format!("{peak} requests in one second")),
        ];
        let broken = limits.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, what)| format!("{nodes} nodes: {name}: {what}")).collect()
    }
}

/// Prints how simulated nodes differ from as many real ones, but for the few requests of the idle
/// phase.
pub fn compare(real: &[Phase], simulated: &[Phase], nodes: usize) -> Vec<String> {
    let mut broken = Vec::new();
    println!("\n| phase | | real | simulated |\n| --- | --- | --: | --: |");
    for (real, simulated) in real.iter().zip(simulated).filter(|(real, _)| real.name != IDLE) {
        let values = real.values.iter().zip(simulated.values);
        for ((what, tolerance), (one, other)) in COLUMNS.into_iter().zip(values) {
            let Some([share, least]) = tolerance else { continue };
            // Until the API server is ready, it is asked many times whether it is.
            if (real.name, what) == (RESTART, TCP_CONNECTIONS) {
                continue;
            }
            let difference = format!("{} | {what} | {one:.1} | {other:.1}", real.name);
            println!("| {difference} ({:+.0} %) |", 100.0 * (other / one - 1.0));
            if (other - one).abs() > (share * one).max(least) {
                broken.push(format!("{nodes} nodes: simulated nodes differ: {difference}"));
            }
        }
    }
    broken
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
        let (before, begin) = (metrics(&control_plane.admin)?, SystemTime::now());
        Ok(Recorder { control_plane, nodes, audit_log, begin, before })
    }

    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.begin = SystemTime::now();
        self.before[..4].fill(0.0);
        self.control_plane.restart()?;
        self.audit_log.read()?;
        self.audit_log.watches.retain(|_, began| *began > self.begin);
        Ok(())
    }

    /// Waits until every node has its kubeconfig and its watches, and 5 s more. Reading the watches
    /// from the metrics instead costs the API server as much CPU as the start of some nodes.
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

    pub fn observe(&mut self, name: &'static str, longer: Duration) -> anyhow::Result<Phase> {
        thread::sleep(longer);
        let after = metrics(&self.control_plane.admin)?;
        let before = mem::replace(&mut self.before, after);
        let span = mem::replace(&mut self.begin, SystemTime::now()).elapsed()?;
        self.audit_log.read()?;
        let requests = mem::take(&mut self.audit_log.requests);
        let [cpu, _, bytes, lists, connections] =
            array::from_fn(|index| after[index] - before[index]);
        let rejected = requests.iter().filter(|request| request.status >= 400).count();
        let values = [
            span.as_secs_f64(),
            (requests.len() - rejected) as f64,
            rejected as f64,
            requests.len() as f64 / self.nodes as f64,
            peak_per_second(&requests) as f64,
            connections,
            bytes / 1e6,
            cpu,
            100.0 * cpu / span.as_secs_f64(),
            after[1] / 1024.0 / 1024.0,
            lists,
        ];
        let texts = values.map(|value| ((100.0 * value).round() / 100.0).to_string());
        println!("| {name} | {} |", texts.join(" | "));
        let (watches, etcd_pod_lists) = (self.audit_log.watches.len(), lists as usize);
        Ok(Phase { name, span, requests, watches, etcd_pod_lists, values })
    }
}
