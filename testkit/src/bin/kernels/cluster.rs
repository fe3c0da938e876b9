//! A fake API server for the agent and the repair controller of the AppArmor checks: the agent's
//! pod, its DaemonSet, and pods of tenants.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use serde_json::{Value, json};
use testkit::api::{self, Request, Response, Routes};

pub type Api = api::Server<Cluster>;

pub const NAMESPACE: &str = "linkerd-cni";
pub const NODE: &str = "node-1";
/// Name of the agent's pod.
pub const AGENT_POD: &str = "linkerd-cni-x";
/// Namespace of the tenants' pods.
pub const TENANT: &str = "emojivoto";
const DELETED: &str = "2026-01-01T00:00:00Z";
const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";
const TOKEN_REQUEST: &str =
    "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin/token";

#[derive(Clone, Default)]
pub struct Cluster {
    /// The pods of the node without the agent's.
    pods: Vec<Value>,
    /// Whether DaemonSet and agent's pod are being deleted.
    is_uninstalling: bool,
}

impl Routes for Cluster {
    fn respond(state: &mut api::State<Self>, request: &Request) -> Response {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        if request.method == "POST" {
            return match path {
                TOKEN_REQUEST => Response::new(201, issue_token()),
                _ if request.is_event() => Response::new(201, json!({"kind": "Event"})),
                _ => Response::status(404),
            };
        }
        if path == "/api/v1/pods" || path == "/api/v1/namespaces/linkerd-cni/pods" {
            let mut items = vec![state.agent_pod()];
            if query.contains("spec%2EnodeName%3Dnode%2D1") {
                items.extend(state.pods.iter().cloned());
            }
            let metadata = json!({"resourceVersion": "5"});
            let list = json!({"kind": "PodList", "metadata": metadata, "items": items});
            return Response::new(200, list);
        }
        if path.ends_with("/events") {
            let list = json!({"kind": "EventList", "metadata": {}, "items": []});
            return Response::new(200, list);
        }
        match state.object(path) {
            Some(object) => Response::new(200, object),
            None => Response::status(404),
        }
    }
}

impl Cluster {
    fn object(&self, path: &str) -> Option<Value> {
        if path == DAEMONSET {
            let mut metadata = json!({"name": "linkerd-cni", "uid": "set-1"});
            if self.is_uninstalling {
                metadata["deletionTimestamp"] = json!(DELETED);
            }
            let spec = json!({"template": {"spec": {}}});
            return Some(json!({"kind": "DaemonSet", "metadata": metadata, "spec": spec}));
        }
        if path == pod_path(NAMESPACE, AGENT_POD) {
            return Some(self.agent_pod());
        }
        if path == format!("/api/v1/nodes/{NODE}") {
            let metadata = json!({"name": NODE, "labels": {"kubernetes.io/os": "linux"}});
            return Some(json!({"kind": "Node", "metadata": metadata, "spec": {}}));
        }
        for namespace in [NAMESPACE, TENANT] {
            if path == format!("/api/v1/namespaces/{namespace}") {
                return Some(json!({"kind": "Namespace", "metadata": {"name": namespace}}));
            }
        }
        let is_at_path = |pod: &&Value| path == pod_path(TENANT, name_of(pod));
        self.pods.iter().find(is_at_path).cloned()
    }

    fn agent_pod(&self) -> Value {
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "linkerd-cni", "uid": "set-1",
            "controller": true,
        });
        let mut metadata = json!({
            "namespace": NAMESPACE, "name": AGENT_POD, "uid": "pod-1", "ownerReferences": [owner],
        });
        if self.is_uninstalling {
            metadata["deletionTimestamp"] = json!(DELETED);
            metadata["deletionGracePeriodSeconds"] = json!(30);
        }
        // A pod in the host's network is not published for the plugin.
        let spec = json!({"hostNetwork": true, "containers": []});
        json!({"kind": "Pod", "metadata": metadata, "spec": spec})
    }
}

/// Makes these the tenants' pods.
pub fn set_pods(api: &Api, pods: &[Value]) {
    api.state().pods = pods.to_vec();
}

/// Deletes the DaemonSet and the agent's pod, as `helm uninstall` does.
pub fn uninstall(api: &Api) {
    let mut state = api.state();
    state.is_uninstalling = true;
    let pod = state.agent_pod();
    drop(state);
    api.send_now("MODIFIED", &pod);
}

fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap()
}

/// Returns a meshed pod, whose UID is `uid-of-NAME`. `status` is completed by its phase and its
/// address.
pub fn meshed_pod(name: &str, address: &str, phase: &str, mut status: Value) -> Value {
    status["phase"] = json!(phase);
    status["podIPs"] = json!([{"ip": address}]);
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": TENANT,
            "name": name,
            "uid": format!("uid-of-{name}"),
            "resourceVersion": "101",
            "creationTimestamp": DELETED,
            "annotations": {"linkerd.io/proxy-version": "edge-1"},
            "labels": {"linkerd.io/control-plane-ns": "linkerd"},
            "ownerReferences": [{"controller": true, "uid": format!("owner-of-{name}")}],
        },
        "spec": {
            "nodeName": NODE,
            "initContainers": [{"name": "linkerd-network-validator"}],
            "containers": [{"name": "app"}, {"name": "linkerd-proxy"}],
        },
        "status": status,
    })
}

/// Returns the status of a pod whose validator has found that there are no redirect rules.
pub fn validator_failed() -> Value {
    json!({"initContainerStatuses": [{
        "name": "linkerd-network-validator",
        "state": {"waiting": {}},
        "lastState": {"terminated": {"exitCode": 95}},
    }]})
}

/// Returns the response to a TokenRequest for the plugin's account.
fn issue_token() -> Value {
    const LIFETIME: u64 = 3600;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let account = "system:serviceaccount:linkerd-cni:linkerd-cni-plugin";
    let claims = json!({"sub": account, "iat": now, "exp": now + LIFETIME});
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let token = format!("{}.{}.c2ln", encode("{}"), encode(&claims.to_string()));
    json!({
        "spec": {"expirationSeconds": LIFETIME},
        "status": {"token": token, "expirationTimestamp": DELETED},
    })
}
