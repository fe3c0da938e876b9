//! An API server in memory for tests: a healthy cluster of two nodes, whose objects a test changes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::api::{Api, Error};
use super::facts::{self, Facts};
use crate::deadline::Deadline;

/// Response by path, without its query. A text is a body, a number is an error status.
#[derive(Clone)]
pub struct Cluster(pub BTreeMap<String, Value>);

pub const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";
pub const NAMESPACE: &str = "/api/v1/namespaces/linkerd-cni";
pub const CONFIG: &str = "/api/v1/namespaces/linkerd-cni/configmaps/linkerd-cni-config";
pub const AGENTS: &str = "/api/v1/namespaces/linkerd-cni/pods";
pub const EVENTS: &str = "/api/v1/namespaces/linkerd-cni/events";
pub const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
pub const STATUS_1: &str = "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-1:9991/proxy/status";

impl Cluster {
    /// A cluster with the chart, all of it healthy.
    pub fn healthy() -> Cluster {
        let mut cluster = Cluster(BTreeMap::new());
        for (path, object) in [
            ("/version", json!({"gitVersion": "v1.34.1"})),
            (NAMESPACE, namespace("privileged")),
            (CONFIG, json!({"metadata": {}, "data": {"cni_network_config": entry().to_string()}})),
            (DAEMONSET, daemonset()),
            ("/apis/apps/v1/daemonsets", json!({"items": [daemonset()]})),
            ("/api/v1/nodes", json!({"items": [node("node-1"), node("node-2")]})),
            (AGENTS, json!({"items": [agent(1), agent(2)]})),
            ("/api/v1/pods", json!({"items": []})),
            ("/api/v1/configmaps", json!({"items": []})),
            (EVENTS, json!({"items": []})),
            (REVIEWS, json!({"status": {"allowed": true}})),
        ] {
            cluster.put(path, object);
        }
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let own = format!("{rbac}/namespaces/linkerd-cni");
        for path in [
            format!("{rbac}/clusterroles/linkerd-cni"),
            format!("{rbac}/clusterrolebindings/linkerd-cni"),
            format!("{own}/roles/linkerd-cni-agent"),
            format!("{own}/rolebindings/linkerd-cni-agent"),
            format!("{NAMESPACE}/serviceaccounts/linkerd-cni"),
            format!("{NAMESPACE}/serviceaccounts/linkerd-cni-plugin"),
        ] {
            cluster.put(&path, json!({"metadata": {}}));
        }
        for pod in [1, 2] {
            cluster.put(&format!("{AGENTS}/linkerd-cni-{pod}:9991/proxy/status"), status());
        }
        cluster
    }

    pub fn put(&mut self, path: &str, object: Value) {
        self.0.insert(path.to_owned(), object);
    }

    /// Sets a field of the response for `path`, by JSON pointer.
    pub fn set(&mut self, path: &str, pointer: &str, value: Value) {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let object = self.0.get_mut(path).unwrap().pointer_mut(parent).unwrap();
        match key.parse::<usize>() {
            Ok(index) => object[index] = value,
            Err(_) => object[key] = value,
        }
    }

    pub fn facts(&self) -> Facts {
        facts::fetch(self, "linkerd-cni", later())
    }
}

pub fn later() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

/// A cluster that records the paths of the requests.
pub struct Recorded {
    cluster: Cluster,
    paths: Mutex<Vec<String>>,
}

impl Recorded {
    pub fn new(cluster: Cluster) -> Recorded {
        Recorded { cluster, paths: Mutex::default() }
    }

    /// Number of requests whose path has `text`.
    pub fn count(&self, text: &str) -> usize {
        self.paths.lock().unwrap().iter().filter(|path| path.contains(text)).count()
    }

    /// The last path that has `text`.
    pub fn last(&self, text: &str) -> String {
        let paths = self.paths.lock().unwrap();
        paths.iter().rfind(|path| path.contains(text)).unwrap().clone()
    }
}

impl Api for Recorded {
    fn request(&self, method: &str, path: &str, body: &str) -> Result<String, Error> {
        self.paths.lock().unwrap().push(format!("{method} {path}"));
        self.cluster.request(method, path, body)
    }
}

impl Api for Cluster {
    fn request(&self, _: &str, path: &str, _: &str) -> Result<String, Error> {
        let name = path.split('?').next().unwrap();
        let error = |reason: &str| {
            Err(Error::Status {
                reason: reason.to_owned(),
                message: format!("{name}: no response"),
            })
        };
        match self.0.get(name) {
            None => error("NotFound"),
            Some(Value::Number(_)) => error("Forbidden"),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(object) => Ok(object.to_string()),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub fn namespace(enforce: &str) -> Value {
    json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": enforce}}})
}

pub fn entry() -> Value {
    let mut entry = testkit::cni::upstream_entry();
    entry["linkerd"]["iptables-mode"] = json!("auto");
    entry["linkerd"]["exclude-namespaces"] = json!(["kube-system"]);
    entry
}

fn pod_spec() -> Value {
    json!({
        "serviceAccountName": "linkerd-cni",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "containers": [{
            "name": "install-cni",
            "image": "cr.l5d.io/linkerd/cni-plugin:v2.0.0",
            "ports": [{"name": "install-admin", "containerPort": 9991}],
            "env": [{"name": "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "value": "linkerd-cni-plugin"}],
        }],
    })
}

pub fn daemonset() -> Value {
    json!({
        "metadata": {"name": "linkerd-cni", "namespace": "linkerd-cni", "generation": 2},
        "spec": {"template": {"spec": pod_spec()}},
        "status": {
            "observedGeneration": 2,
            "desiredNumberScheduled": 2,
            "updatedNumberScheduled": 2,
            "numberReady": 2,
        },
    })
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": {},
    })
}

pub fn agent(number: u8) -> Value {
    let mut spec = pod_spec();
    spec["nodeName"] = json!(format!("node-{number}"));
    json!({
        "metadata": {"name": format!("linkerd-cni-{number}"), "uid": format!("uid-{number}")},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

pub fn status() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": true,
        "conflist": "10-calico.conflist",
        "tokenExpires": now() + 87_000,
        "problems": {},
        "podCopy": {"published": 4, "kept": true, "bypasses": {"root-container": 1}},
        "adds": {"copy": 4, "request": 1},
        "redirects": {"native": 3},
    })
}
