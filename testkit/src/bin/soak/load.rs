//! Pods that come and go all the time, a start every one to two seconds.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use testkit::cluster::containers::sandboxes;
use testkit::cluster::pods;
use testkit::repeated::Repeated;
use testkit::statistics::percentile;

use crate::api::Api;
use crate::ledger::seconds;
use crate::outages::{self, Cause, RETRY};
use crate::pod::{END, Kind, Pod, Source};
use crate::running;
use crate::seeded::Break;

pub const NAMESPACE: &str = "soak";
const STATIC_PODS: &str = "/var/lib/linkerd2-cni-cluster/static-pods";
const MAX_PODS: usize = 12;
/// Largest number of static pods while the API server is down, when no other pod can be deleted.
const MAX_STATIC_PODS: usize = 4;
const TICK: Duration = Duration::from_millis(150);
/// How long the last pods may take to respond before they are deleted.
const LAST_START: Duration = Duration::from_secs(90);
/// Longest wait for the end of the last pods. It is long enough to check the time of the deletion
/// also of the pod that starts last.
const LAST_END: Duration = LAST_START.saturating_add(END).saturating_add(RETRY);

/// Numbers of unmeshed and of meshed pods that were created and have responded while the API server
/// was down.
static STARTED_WITHOUT_API: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Number of unmeshed pods that have responded.
static UNMESHED_STARTS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of unmeshed pods that have responded since the start of the soak.
pub fn unmeshed_starts() -> usize {
    UNMESHED_STARTS.load(Ordering::Relaxed)
}

/// Returns the numbers in [`STARTED_WITHOUT_API`].
pub fn started_without_api() -> [usize; 2] {
    STARTED_WITHOUT_API.each_ref().map(|count| count.load(Ordering::Relaxed))
}

fn count_started(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| pod.responded_at.is_some()).count()
}

/// Returns percentiles of the times that the pods took to start.
fn start_times(pods: &[Pod]) -> Value {
    let mut starts: Vec<Duration> = pods.iter().filter_map(|pod| pod.start_time).collect();
    let mut seconds_at = |percent| seconds(percentile(&mut starts, percent));
    let p50 = seconds_at(50);
    let p99 = seconds_at(99);
    let max = seconds_at(100);
    json!({"pods": starts.len(), "p50": p50, "p99": p99, "max": max})
}

pub struct Load {
    rng: StdRng,
    api: Api,
    pods: Vec<Pod>,
    /// Number of pods that were created, for the names of pods.
    count: usize,
    next_start: Instant,
    seeded: Option<Break>,
    ended: Vec<Pod>,
}

pub fn start(rng: StdRng, seeded: Option<Break>) -> Repeated<Load> {
    let load = Load {
        rng,
        api: Api::new(),
        pods: Vec::new(),
        count: 0,
        next_start: Instant::now(),
        seeded,
        ended: Vec::new(),
    };
    Repeated::start(TICK, load, |load| {
        load.create();
        load.observe();
    })
}

impl Load {
    /// Creates a pod if it is time for one, and if there are not too many.
    fn create(&mut self) {
        let is_down = outages::is_open(Cause::ApiServer);
        if Instant::now() < self.next_start || self.has_enough_pods(is_down) {
            return;
        }
        self.next_start = Instant::now() + Duration::from_millis(self.rng.random_range(1000..2000));
        let kind = match self.rng.random_range(0..10) {
            0..=4 => Kind::Unmeshed,
            8.. if !is_down => Kind::Manual,
            _ => Kind::Injected,
        };
        let is_static = is_down || kind != Kind::Manual && self.rng.random_range(0..4) == 0;
        let source = if is_static { Source::File } else { Source::ApiServer };
        self.count += 1;
        let name = format!("{}-{}", format!("{kind:?}").to_lowercase(), self.count);
        if let Some(name) = self.start(&name, kind, source) {
            self.pods.push(Pod::new(name, kind, source, is_down));
        }
    }

    /// Whether the largest number of pods exist. While the API server is down, only static pods are
    /// counted.
    fn has_enough_pods(&self, is_api_down: bool) -> bool {
        let mut pods: Vec<&Pod> = self.pods.iter().collect();
        pods.retain(|pod| pod.deleted_at.is_none());
        if is_api_down {
            pods.retain(|pod| pod.source == Source::File);
            return pods.len() >= MAX_STATIC_PODS;
        }
        pods.len() >= MAX_PODS
    }

    /// Creates a pod through the API server, or as a static pod. Returns the name of the pod
    /// object. `None`: the pod could not be created.
    fn start(&self, name: &str, kind: Kind, source: Source) -> Option<String> {
        let mut pod = manifest(name, kind);
        match source {
            Source::ApiServer => {
                let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
                let is_created = self.api.create(&path, &pod);
                if is_created { Some(name.to_owned()) } else { None }
            }
            Source::File => {
                pod["metadata"]["namespace"] = "default".into();
                fs::write(static_path(name), pod.to_string()).ok()?;
                Some(format!("{name}-{}", host()))
            }
        }
    }

    /// Checks all pods, and deletes some of the old ones.
    fn observe(&mut self) {
        let sandboxes = sandboxes();
        for pod in &mut self.pods {
            let had_responded = pod.responded_at.is_some();
            pod.observe(sandboxes.get(&pod.name));
            if !had_responded && pod.responded_at.is_some() {
                if let Some(sandbox) = &pod.sandbox {
                    running::insert(&pod.name, &sandbox.netns);
                }
                pod.start_time = pod.undisturbed_start_time();
                if !pod.is_meshed() {
                    UNMESHED_STARTS.fetch_add(1, Ordering::Relaxed);
                }
                if pod.without_api && outages::is_open(Cause::ApiServer) {
                    STARTED_WITHOUT_API[usize::from(pod.is_meshed())]
                        .fetch_add(1, Ordering::Relaxed);
                }
                if let Some(bug) = self.seeded {
                    bug.harm(pod);
                }
            }
        }
        self.delete_old_pods();
        for pod in &mut self.pods {
            pod.check_end();
        }
        let has_ended =
            |pod: &mut Pod| pod.deleted_at.is_some() && !sandboxes.contains_key(&pod.name);
        self.ended.extend(self.pods.extract_if(.., has_ended));
    }

    /// Deletes a random part of the pods that responded first more than 6 s ago.
    fn delete_old_pods(&mut self) {
        for pod in &mut self.pods {
            if pod.deleted_at.is_some() || pod.is_silent() {
                continue;
            }
            let age = pod.responded_at.map_or(Duration::ZERO, |time| time.elapsed());
            let is_chosen = age > Duration::from_secs(6) && self.rng.random_range(0..40) == 0;
            if is_chosen && running::remove(&pod.name) {
                pod.check_rules();
                delete(pod, &self.api);
            }
        }
    }

    /// Deletes all pods and waits for their end. Returns the figures of the load.
    pub fn end(mut self) -> Value {
        let begin = Instant::now();
        while !self.pods.is_empty() && begin.elapsed() < LAST_END {
            let may_wait = begin.elapsed() < LAST_START;
            for pod in &mut self.pods {
                let is_starting = pod.responded_at.is_none();
                if pod.deleted_at.is_none() && !(is_starting && may_wait) {
                    delete(pod, &self.api);
                }
            }
            self.observe();
            thread::sleep(TICK);
        }
        for pod in &mut self.pods {
            pod.report_leftover();
        }
        self.ended.append(&mut self.pods);
        let rule_checks: usize = self.ended.iter().map(|pod| pod.rule_checks).sum();
        let (meshed, unmeshed): (Vec<Pod>, Vec<Pod>) =
            self.ended.into_iter().partition(|pod| pod.is_meshed());
        json!({
            "meshed": count_started(&meshed),
            "unmeshed": count_started(&unmeshed),
            // Pods that were created and responded while the API server was down.
            "unmeshed_without_api": started_without_api()[0],
            "meshed_without_api": started_without_api()[1],
            // Pods that started while the plugin entry was missing: another writer had removed it,
            // or the agent, because the runtime could not run the plugin. The repair controller
            // repaired them.
            "repaired": meshed.iter().filter(|pod| pod.repaired).count(),
            "rule_checks": rule_checks,
            // Time from the creation of a pod until it responds, for pods that no outage held back.
            "unmeshed_start": start_times(&unmeshed),
            "meshed_start": start_times(&meshed),
        })
    }
}

/// Deletes the pod, and records the time unless the deletion fails.
fn delete(pod: &mut Pod, api: &Api) {
    pod.deletion_tried = true;
    let is_deleted = match pod.source {
        Source::ApiServer => {
            let name = &pod.name;
            api.delete(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=1"))
        }
        Source::File => {
            let name = pod.name.trim_end_matches(&format!("-{}", host())).to_owned();
            fs::remove_file(static_path(&name)).is_ok()
        }
    };
    if is_deleted {
        pod.deleted_at = Some(Instant::now());
    }
}

fn static_path(name: &str) -> PathBuf {
    PathBuf::from(STATIC_PODS).join(format!("{name}.json"))
}

/// Name of the node, which kubelet appends to the name of a static pod.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_lowercase()
}

fn manifest(name: &str, kind: Kind) -> Value {
    let mut pod = match kind {
        Kind::Unmeshed => pods::unmeshed(name),
        Kind::Injected | Kind::Manual => pods::validated(name, "5s"),
    };
    if kind == Kind::Injected {
        let annotations = &mut pod["metadata"]["annotations"];
        annotations["linkerd.io/inject"] = json!("enabled");
        annotations["linkerd.io/created-by"] = json!("linkerd/proxy-injector test");
    }
    pod["metadata"]["namespace"] = NAMESPACE.into();
    pod["spec"]["automountServiceAccountToken"] = false.into();
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    pod
}
