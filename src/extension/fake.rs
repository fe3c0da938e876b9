//! An API server in memory for tests: a healthy cluster of two nodes, whose objects a test changes.
//! The server knows the requests of `testkit::fake_cluster`, and panics at any other request.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use testkit::fake_cluster::{Refusal, Responses, respond};

use super::requests::{Api, Error};
use crate::deadline::Deadline;

/// Responses by path, without the query. A string is a body, a number is an error status.
#[derive(Clone)]
pub struct Cluster(pub Responses);

pub const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";
pub const NAMESPACE: &str = "/api/v1/namespaces/linkerd-cni";
pub const CONFIG: &str = "/api/v1/namespaces/linkerd-cni/configmaps/linkerd-cni-config";
pub const AGENTS: &str = "/api/v1/namespaces/linkerd-cni/pods";
pub const EVENTS: &str = "/api/v1/namespaces/linkerd-cni/events";
pub const STATUS_1: &str = "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-1:9991/proxy/status";

impl Cluster {
    /// A cluster with the chart, all of it healthy.
    pub fn healthy() -> Cluster {
        let mut cluster = Cluster(Responses::new()).with(include_str!("fake.yaml"));
        let data = json!({"cni_network_config": entry().to_string()});
        cluster.put(CONFIG, json!({"metadata": {}, "data": data}));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for status in [STATUS_1, &STATUS_1.replace("-1:", "-2:")] {
            cluster.set(status, "/version", env!("CARGO_PKG_VERSION").into());
            cluster.set(status, "/tokenExpires", (now + 87_000).into());
        }
        cluster
    }

    /// The cluster with these responses, in YAML by path.
    pub fn with(mut self, responses: &str) -> Cluster {
        self.0.extend(testkit::chart::yaml(responses).as_object().unwrap().clone());
        self
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
}

pub fn distant_deadline() -> Deadline {
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
}

impl Api for Recorded {
    fn body(&self, path: &str) -> Result<String, Error> {
        self.paths.lock().unwrap().push(path.to_owned());
        self.cluster.body(path)
    }
}

impl Api for Cluster {
    fn body(&self, path: &str) -> Result<String, Error> {
        match respond(&self.0, "GET", path) {
            Ok(body) => Ok(body),
            Err(Refusal::Status { reason, .. }) => {
                let (path, _) = path.split_once('?').unwrap_or((path, ""));
                let message = format!("{path}: no response");
                Err(Error::Status { reason: reason.to_owned(), message })
            }
            Err(Refusal::NotKnown(what)) => panic!("the fake cluster does not know {what}"),
        }
    }
}

/// A plugin entry, in which an exclusion is set.
pub fn entry() -> Value {
    let mut entry = testkit::cni::upstream_entry();
    entry["linkerd"]["iptables-mode"] = json!("auto");
    entry["linkerd"]["exclude-namespaces"] = json!(["kube-system"]);
    entry
}
