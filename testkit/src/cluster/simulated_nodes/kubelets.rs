//! The kubelets of simulated nodes, on one thread. They renew the leases of their nodes, report the
//! agents' pods as ready some time after their creation, and remove them some time after their
//! deletion.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use linkerd2_cni::kube::{Client, Error};
use serde_json::{Value, json};

use super::LEASES;
use crate::cluster::helm::NAMESPACE;
use crate::cluster::observed_agents::{AgentPod, ObservedAgents, lock};
use crate::repeated::Repeated;

/// Shortest and longest time from the creation of a pod until it is ready.
const READY_AFTER: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(10)];
/// Shortest and longest time from the deletion of a pod until the kubelet removes it.
const GONE_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// Period of the leases, as of real kubelets.
const RENEWAL: Duration = Duration::from_secs(10);
/// Pause between two turns.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which a request is sent again if the watch has not shown its effect.
const RETRY: Duration = Duration::from_secs(5);

pub struct Kubelets {
    client: Client,
    agents: Arc<Mutex<ObservedAgents>>,
    kubelets: BTreeMap<String, Kubelet>,
    /// When a request about the pod with this UID may be sent again.
    retries: BTreeMap<String, Instant>,
}

/// The kubelet of one node. The times differ from node to node, and are the same in each run.
struct Kubelet {
    next_renewal: Instant,
    ready_after: Duration,
    gone_after: Duration,
    /// Address of all pods: one for documentation (RFC 5737), where nothing responds.
    pod_ip: String,
}

/// A request that is due.
enum Action {
    ReportReady { pod_ip: String },
    Remove,
}

impl Kubelets {
    pub fn new(names: &[String], client: Client, agents: Arc<Mutex<ObservedAgents>>) -> Kubelets {
        let now = Instant::now();
        let mut kubelets = BTreeMap::new();
        for (number, name) in names.iter().enumerate() {
            // 37 has no factor in common with 60, so that neighbours differ.
            let share = (number * 37 % 60) as f64 / 60.0;
            let kubelet = Kubelet {
                next_renewal: now + RENEWAL.mul_f64(share),
                ready_after: between(READY_AFTER, share),
                gone_after: between(GONE_AFTER, share),
                pod_ip: format!("192.0.2.{}", number + 1),
            };
            kubelets.insert(name.clone(), kubelet);
        }
        Kubelets { client, agents, kubelets, retries: BTreeMap::new() }
    }

    pub fn start(self) -> Repeated<Kubelets> {
        Repeated::start(PAUSE, self, Kubelets::take_turn)
    }

    fn take_turn(&mut self) {
        let now = Instant::now();
        // The lock is released before requests are sent.
        let pods: Vec<AgentPod> = lock(&self.agents).pods().cloned().collect();
        self.retries.retain(|_, retry| *retry > now);
        for pod in pods {
            if !self.retries.contains_key(&pod.uid)
                && let Some(action) = self.due_action(&pod, now)
            {
                self.act(&pod, action);
                self.retries.insert(pod.uid, now + RETRY);
            }
        }
        for (name, kubelet) in &mut self.kubelets {
            if kubelet.next_renewal <= now {
                report(self.client.merge_patch(&format!("{LEASES}/{name}"), &renewed_lease()));
                kubelet.next_renewal = now + RENEWAL;
            }
        }
    }

    fn due_action(&self, pod: &AgentPod, now: Instant) -> Option<Action> {
        // Unknown nodes have real kubelets.
        let kubelet = self.kubelets.get(pod.node.as_ref()?)?;
        if let Some(deleted) = pod.deleted {
            return if now < deleted + kubelet.gone_after { None } else { Some(Action::Remove) };
        }
        if pod.is_ready || !has_images(pod) || now < pod.created + kubelet.ready_after {
            return None;
        }
        Some(Action::ReportReady { pod_ip: kubelet.pod_ip.clone() })
    }

    fn act(&self, pod: &AgentPod, action: Action) {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", pod.name);
        match action {
            Action::ReportReady { pod_ip } => {
                let status = ready_status(pod, &pod_ip);
                report(self.client.merge_patch(&format!("{path}/status"), &status));
            }
            Action::Remove => {
                let mut options = at_once();
                options["preconditions"] = json!({"uid": pod.uid});
                report(self.client.delete(&path, &options));
            }
        }
    }
}

/// Whether a simulated node can run the pod: it has the image of this checkout, and can pull no
/// other.
fn has_images(pod: &AgentPod) -> bool {
    pod.containers.iter().all(|(_, image)| *image == crate::image())
}

/// Prints why a request failed. It is sent again, unless the object is gone.
fn report(result: Result<(), Error>) {
    if let Err(error) = result
        && error.code() != Some(404)
    {
        println!("simulated kubelet: {error}");
    }
}

fn between([shortest, longest]: [Duration; 2], share: f64) -> Duration {
    shortest + (longest - shortest).mul_f64(share)
}

/// Returns the options to delete a pod without waiting for a kubelet.
pub fn at_once() -> Value {
    json!({"gracePeriodSeconds": 0})
}

/// Returns the patch that renews a lease.
pub fn renewed_lease() -> Value {
    let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    json!({"spec": {"renewTime": now}})
}

/// Returns the conditions of a node that is ready.
pub fn node_conditions() -> Value {
    let mut conditions = Vec::new();
    for (kind, status) in [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ] {
        let now = time();
        conditions.push(json!({
            "type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now,
        }));
    }
    conditions.into()
}

/// Returns the status of a pod whose containers are ready.
fn ready_status(pod: &AgentPod, ip: &str) -> Value {
    let now = time();
    let mut conditions = Vec::new();
    for kind in
        ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"]
    {
        conditions.push(json!({"type": kind, "status": "True", "lastTransitionTime": now}));
    }
    let mut containers = Vec::new();
    for (name, image) in &pod.containers {
        containers.push(json!({
            "name": name, "image": image, "imageID": image, "ready": true, "started": true,
            "restartCount": 0, "state": {"running": {"startedAt": now}},
        }));
    }
    json!({"status": {
        "phase": "Running", "startTime": now, "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": conditions, "containerStatuses": containers,
    }})
}

fn time() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
