//! Nodes that exist only as objects in the API. API server, controllers and scheduler are real. The
//! kubelets are simulated ([`kubelets`]), and no container runs.

mod kubelets;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::kube::kubeconfig::ApiAccess;
use linkerd2_cni::kube::{Client, Deadlines, SystemResolver};
use serde_json::{Value, json};

use super::api;
use super::helm::NAMESPACE;
use super::kubectl::command;
use super::observed_agents::{self, ObservedAgents, Seen};
use crate::child::KilledOnDrop;
use crate::repeated::Repeated;
use crate::until::until_within;
use kubelets::Kubelets;

/// Label and taint of the nodes. The agents tolerate every taint; other pods stay away.
const SIMULATED: &str = "linkerd2-cni/simulated";
const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for the control plane to notice that the nodes are ready.
const READY: Duration = Duration::from_secs(60);
/// Longest time from the end of Helm until the agents are settled. The kubelet of the real node
/// needs the grace period of 30 s and some time more to remove a pod whose image is missing.
const SETTLED: Duration = Duration::from_secs(90);
const REMOVED: Duration = Duration::from_secs(60);
/// Pause between two tries of a deletion.
const PAUSE: Duration = Duration::from_millis(500);

/// Dropping the value deletes the nodes with their leases and pods, also after a failure.
pub struct SimulatedNodes {
    names: Vec<String>,
    agents: Arc<Mutex<ObservedAgents>>,
    kubelets: Option<Repeated<Kubelets>>,
    client: Client,
    /// `kubectl proxy`, because a process of kubectl for each request would take most of the
    /// machine's time. Its end also ends the watch.
    _proxy: KilledOnDrop,
}

impl SimulatedNodes {
    /// Creates the nodes. Waits until the control plane has noticed that they are ready.
    pub fn start(count: usize) -> SimulatedNodes {
        let (proxy, server) = start_proxy();
        let names: Vec<String> =
            (0..count).map(|number| format!("simulated-{number:02}")).collect();
        let agents = ObservedAgents::new(BTreeSet::from_iter(names.clone()));
        let mut nodes = SimulatedNodes {
            names,
            agents: Arc::new(Mutex::new(agents)),
            kubelets: None,
            client: client(&server, REQUEST_TIMEOUT),
            _proxy: proxy,
        };
        // Left by a run that was killed.
        nodes.remove();
        for name in &nodes.names {
            nodes.client.post(LEASES, &lease(name)).unwrap();
            nodes.client.post(NODES, &node(name)).unwrap();
        }
        let agents = Arc::clone(&nodes.agents);
        let client = client(&server, observed_agents::WATCH_TIME);
        thread::spawn(move || observed_agents::watch(&client, &agents));
        let kubelets = Kubelets::new(&nodes.names, nodes.client.clone(), Arc::clone(&nodes.agents));
        nodes.kubelets = Some(kubelets.start());
        until_within(READY, "the simulated nodes are ready", || nodes.not_ready().is_empty());
        nodes
    }

    /// Waits until each node has one agent, and all are ready and of the same revision.
    pub fn until_settled(&self) {
        until_within(SETTLED, "one ready agent on each node", || self.agents().are_settled());
    }

    /// Runs `event`, and waits until the agents are settled again. Returns the result of `event`,
    /// and what was seen of the agents until then.
    pub fn observe<T>(&self, event: impl FnOnce() -> T) -> (T, Seen) {
        self.until_settled();
        self.agents().begin();
        let result = event();
        self.until_settled();
        assert_eq!(self.not_ready(), [""; 0], "the simulated nodes stay ready");
        let seen = self.agents().seen();
        (result, seen)
    }

    /// Returns the UIDs of the agents' pods, also of the one on the real node.
    pub fn agent_uids(&self) -> BTreeSet<String> {
        self.agents().uids()
    }

    pub fn includes(&self, node: &str) -> bool {
        self.names.iter().any(|name| name == node)
    }

    fn agents(&self) -> MutexGuard<'_, ObservedAgents> {
        observed_agents::lock(&self.agents)
    }

    /// Returns the simulated nodes that the control plane takes for not ready: it has added a
    /// taint.
    fn not_ready(&self) -> Vec<String> {
        let mut names = Vec::new();
        for node in api::list(&format!("{NODES}?{}", selector())) {
            let taints = node["spec"]["taints"].as_array();
            if taints.is_none_or(|taints| taints.len() != 1) {
                names.push(node["metadata"]["name"].to_string());
            }
        }
        names
    }

    /// Deletes the nodes, their leases, and the agents' pods that are bound to them.
    fn remove(&self) {
        for collection in [NODES, LEASES] {
            let path = format!("{collection}?{}", selector());
            let result = self.client.delete(&path, &json!({}));
            // A second panic would end the whole test program.
            assert!(result.is_ok() || thread::panicking(), "{collection}: {result:?}");
        }
        let deadline = Instant::now() + REMOVED;
        while !self.removes_pods() {
            if Instant::now() > deadline {
                assert!(thread::panicking(), "pods of the simulated nodes are left");
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Deletes the agents' pods that are bound to simulated nodes. Returns whether there were none.
    fn removes_pods(&self) -> bool {
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let Ok(list) = self.client.get::<Value>(&pods) else {
            return false;
        };
        let mut had_none = true;
        for pod in list["items"].as_array().into_iter().flatten() {
            if self.includes(pod["spec"]["nodeName"].as_str().unwrap_or_default()) {
                had_none = false;
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                // An error shows by the pod that is left.
                let _ = self.client.delete(&format!("{pods}/{name}"), &kubelets::at_once());
            }
        }
        had_none
    }
}

impl Drop for SimulatedNodes {
    fn drop(&mut self) {
        self.kubelets = None;
        self.remove();
    }
}

/// Returns the query that selects the simulated nodes and their leases.
fn selector() -> String {
    format!("labelSelector={}", SIMULATED.replace('/', "%2F"))
}

/// Starts `kubectl proxy`. Returns the process and the URL at which it serves.
fn start_proxy() -> (KilledOnDrop, String) {
    let mut proxy = command("proxy --port=0");
    let proxy = proxy.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut proxy = KilledOnDrop(proxy.expect("kubectl runs"));
    let stdout = proxy.0.stdout.take().expect("stdout is a pipe");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("kubectl proxy prints its address");
    let address = line.trim().rsplit(' ').next().unwrap_or_default();
    (proxy, format!("http://{address}"))
}

/// `body` is the longest time to read a response, and between two events of a watch.
fn client(server: &str, body: Duration) -> Client {
    let access = ApiAccess { server: server.to_owned(), ..ApiAccess::default() };
    let deadlines = Deadlines { body, ..Deadlines::per_phase(REQUEST_TIMEOUT) };
    Client::new::<SystemResolver>(&access, "simulated-nodes", deadlines).unwrap()
}

fn lease(name: &str) -> Value {
    let mut lease = kubelets::renewed_lease();
    lease["metadata"] = json!({"name": name, "labels": {SIMULATED: ""}});
    lease["spec"]["holderIdentity"] = name.into();
    lease["spec"]["leaseDurationSeconds"] = 40.into();
    lease
}

fn node(name: &str) -> Value {
    let resources = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    json!({
        "metadata": {
            "name": name,
            "labels": {
                SIMULATED: "", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
            },
        },
        "spec": {"taints": [{"key": SIMULATED, "effect": "NoSchedule"}]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": kubelets::node_conditions(),
        },
    })
}
