//! Routes of a fake API server with one DaemonSet, its pod and its ServiceAccounts. Tests change
//! the state that determines the responses.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use serde_json::{Value, json};
use testkit::api::{self, ApiFault, Request, Response, Routes};

pub type Api = api::Server<Kubernetes>;
pub type State = api::State<Kubernetes>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonSetState {
    Exists,
    BeingDeleted,
    /// A new DaemonSet of the same name exists, with a different UID.
    Replaced,
    NamespaceBeingDeleted,
    Status(u16),
}

/// The response to a list of the Events about a pod.
#[derive(Clone)]
pub enum PodEvents {
    Items(Vec<Value>),
    Status(u16),
    /// The response never arrives.
    Hang,
}

impl PodEvents {
    fn response(&self) -> Response {
        match self {
            PodEvents::Items(items) => {
                let now = SystemTime::now();
                let first = now - Duration::from_secs(6);
                let mut items = items.clone();
                for item in &mut items {
                    item["firstTimestamp"] =
                        json!(humantime::format_rfc3339_seconds(first).to_string());
                    item["lastTimestamp"] =
                        json!(humantime::format_rfc3339_seconds(now).to_string());
                }
                Response::new(200, json!({"kind": "EventList", "metadata": {}, "items": items}))
            }
            PodEvents::Status(code) => Response::status(*code),
            PodEvents::Hang => Response { fault: Some(ApiFault::Hang), ..Response::new(200, "") },
        }
    }
}

#[derive(Clone)]
pub struct Kubernetes {
    pub daemon_set: DaemonSetState,
    /// Name of the DaemonSet.
    pub owner: String,
    /// Tokens that the API server accepts.
    pub tokens: Vec<String>,
    /// HTTP status of a TokenRequest.
    pub grant: u16,
    /// Token that a TokenRequest returns. `None`: a new token.
    pub issued: Option<String>,
    /// Lifetime of a new token, in seconds.
    pub life: u64,
    /// Response to a request for the namespace. `None`: the namespace exists.
    pub namespace: Option<(u16, Value)>,
    /// HTTP status of a request that creates an Event.
    pub events: u16,
    /// HTTP status with which a proxy answers all requests. `None`: there is no proxy.
    pub proxy: Option<u16>,
    /// Pod spec in the DaemonSet's template, such as its nodeSelector.
    pub placement: Value,
    /// HTTP status of a request for the node. `None`: the node exists.
    pub node: Option<u16>,
    pub labels: Value,
    pub taints: Vec<Value>,
    /// resourceVersion of the node.
    pub version: u64,
    /// Metadata of the agent's pod, or the HTTP status of a request for the pod.
    pub pod: Result<Value, u16>,
    /// The other pods of the node.
    pub pods: Vec<Value>,
    /// HTTP status of lists and watches of pods.
    pub pods_status: u16,
    /// The Events about each pod, which have happened just now.
    pub pod_events: PodEvents,
    /// Number of further patches of the node that fail with a conflict.
    pub conflicts: u32,
}

/// Name of the agent's pod.
pub const POD: &str = "linkerd-cni-x";
pub const POD_UID: &str = "pod-1";
const DAEMONSET_UID: &str = "set-1";
const DELETED: &str = "2026-01-01T00:00:00Z";
const DAEMONSETS: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/";
const POD_PATH: &str = "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-x";
const OWN_POD: &str =
    "/api/v1/namespaces/linkerd-cni/pods?fieldSelector=metadata%2Ename%3Dlinkerd%2Dcni%2Dx&";
const PODS_OF_NODE: &str = "/api/v1/pods?fieldSelector=spec%2EnodeName%3Dnode%2D1&";

impl Default for Kubernetes {
    fn default() -> Self {
        Kubernetes {
            daemon_set: DaemonSetState::Exists,
            owner: "linkerd-cni".into(),
            tokens: vec!["token-1".into()],
            grant: 201,
            issued: None,
            life: 3600,
            namespace: None,
            events: 201,
            proxy: None,
            placement: json!({}),
            node: None,
            labels: json!({"kubernetes.io/os": "linux"}),
            taints: Vec::new(),
            version: 1,
            pod: Ok(pod_owned_by(&json!([owner("linkerd-cni")]))),
            pods: Vec::new(),
            pods_status: 200,
            pod_events: PodEvents::Items(Vec::new()),
            conflicts: 0,
        }
    }
}

impl Routes for Kubernetes {
    fn respond(state: &mut State, request: &Request) -> Response {
        let (method, path) = (&*request.method, &*request.path);
        if let Some(code) = state.proxy {
            return Response::new(code, json!(format!("default backend - {code}")));
        }
        if !state.tokens.iter().any(|token| token == request.token()) {
            return Response::status(401);
        }
        if let Some((code, object)) = state.answers.get(path) {
            return Response::new(*code, object);
        }
        if path == "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin/token" {
            if state.grant != 201 {
                return Response::status(state.grant);
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let token = jwt_of(now, state.requests.len(), state.life);
            let token = state.issued.clone().unwrap_or(token);
            state.tokens.push(token.clone());
            let answer = json!({
                "spec": {"expirationSeconds": state.life},
                "status": {"token": token, "expirationTimestamp": DELETED},
            });
            return Response::new(201, answer);
        }
        if path.strip_prefix(DAEMONSETS) == Some(&*state.owner) {
            let mut metadata = json!({"name": state.owner, "uid": DAEMONSET_UID});
            match state.daemon_set {
                DaemonSetState::Replaced => metadata["uid"] = json!("set-2"),
                DaemonSetState::Status(code) => return Response::status(code),
                DaemonSetState::BeingDeleted => metadata["deletionTimestamp"] = json!(DELETED),
                DaemonSetState::Exists | DaemonSetState::NamespaceBeingDeleted => {}
            }
            let spec = json!({"template": {"spec": state.placement}});
            let set = json!({"kind": "DaemonSet", "metadata": metadata, "spec": spec});
            return Response::new(200, set);
        }
        if path == "/api/v1/nodes/node-1" {
            if let Some(code) = state.node {
                return Response::status(code);
            }
            return answer_node(state, request);
        }
        if path == POD_PATH {
            return match &state.pod {
                Ok(metadata) => Response::new(200, own_pod(metadata)),
                Err(code) => Response::status(*code),
            };
        }
        if path.starts_with(OWN_POD) || path.starts_with(PODS_OF_NODE) {
            if state.pods_status != 200 {
                return Response::status(state.pods_status);
            }
            let mut items: Vec<Value> = state.pod.iter().map(own_pod).collect();
            if path.starts_with(PODS_OF_NODE) {
                items.extend(state.pods.iter().cloned());
            }
            let list = json!({"metadata": {"resourceVersion": "5"}, "items": items});
            return Response::new(200, list);
        }
        if method == "GET" && path.contains("/events?fieldSelector=involvedObject") {
            return state.pod_events.response();
        }
        match (method, path.split('?').next()) {
            ("GET", Some("/api/v1/namespaces/linkerd-cni")) => {
                let is_deleted = state.daemon_set == DaemonSetState::NamespaceBeingDeleted;
                let deleted = if is_deleted { Some(DELETED) } else { None };
                let metadata = json!({"name": "linkerd-cni", "deletionTimestamp": deleted});
                let existing = (200, json!({"kind": "Namespace", "metadata": metadata}));
                let (code, namespace) = state.namespace.clone().unwrap_or(existing);
                Response::new(code, namespace)
            }
            ("POST", Some(path)) if path.ends_with("/events") => match state.events {
                201 => Response::new(201, json!({"kind": "Event"})),
                code => Response::status(code),
            },
            _ => Response::status(404),
        }
    }
}

fn answer_node(state: &mut State, request: &Request) -> Response {
    if request.method == "PATCH" {
        let patch = &request.body;
        if state.conflicts > 0 {
            state.conflicts -= 1;
            state.version += 1;
        }
        let version = state.version.to_string();
        if patch["metadata"]["resourceVersion"] != *version {
            return Response::refusal(409, "the object has been modified");
        }
        state.version += 1;
        state.taints = patch["spec"]["taints"].as_array().unwrap().clone();
    }
    let version = state.version.to_string();
    let metadata = json!({"name": "node-1", "labels": state.labels, "resourceVersion": version});
    let spec = json!({"taints": state.taints});
    Response::new(200, json!({"kind": "Node", "metadata": metadata, "spec": spec}))
}

/// Returns an owner reference to the DaemonSet with this name.
pub fn owner(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": name,
        "uid": DAEMONSET_UID,
        "controller": true,
    })
}

/// Returns the metadata of the agent's pod, with these owner references.
pub fn pod_owned_by(owners: &Value) -> Value {
    json!({"namespace": "linkerd-cni", "name": POD, "uid": POD_UID, "ownerReferences": owners})
}

/// Returns the agent's pod. It uses the host's network, so the agent does not publish it.
fn own_pod(metadata: &Value) -> Value {
    json!({"kind": "Pod", "metadata": metadata, "spec": {"hostNetwork": true, "containers": []}})
}

impl Kubernetes {
    /// Marks the agent's pod as being deleted, with a grace period in seconds.
    pub fn delete_pod(&mut self, grace: u64) {
        let end = SystemTime::now() + Duration::from_secs(grace);
        let end = humantime::format_rfc3339_seconds(end).to_string();
        if let Ok(metadata) = &mut self.pod {
            metadata["deletionTimestamp"] = end.into();
            metadata["deletionGracePeriodSeconds"] = grace.into();
        }
    }
}

/// Deletes the agent's pod with a grace period, as the DaemonSet controller and the garbage
/// collector do. Sends the change to the watches.
pub fn delete_pod(api: &Api) {
    api.state().delete_pod(30);
    show_pod(api, "MODIFIED");
}

/// Deletes the agent's pod as `kubectl delete --force --grace-period=0` does. The watches receive
/// an update and then the deletion.
pub fn delete_pod_by_force(api: &Api) {
    api.state().delete_pod(0);
    show_pod(api, "MODIFIED");
    show_pod(api, "DELETED");
    api.state().pod = Err(404);
}

/// Sends the current agent's pod to the watches.
pub fn show_pod(api: &Api, kind: &str) {
    let pod = api.state().pod.clone();
    if let Ok(metadata) = pod {
        api.send_now(kind, &own_pod(&metadata));
    }
}

/// Returns a token of the plugin's account that expired long ago.
pub fn expired_token() -> String {
    jwt_of(1000, 0, 3600)
}

/// Returns a token of the plugin's account, in the format of the API server.
fn jwt_of(now: u64, number: usize, life: u64) -> String {
    let account = "system:serviceaccount:linkerd-cni:linkerd-cni-plugin";
    encode_claims(&json!({"sub": account, "iat": now, "exp": now + life, "jti": number}))
}

/// Returns a token that is not bound to a pod, so that it is valid as long as its account exists.
pub fn unbound_token() -> String {
    encode_claims(&json!({"sub": "system:serviceaccount:linkerd-cni:linkerd-cni"}))
}

/// Returns the agent's own token as the kubelet mounts it. It is bound to the agent's pod, so it
/// becomes invalid when the pod is deleted.
pub fn bound_token() -> String {
    encode_claims(&json!({
        "sub": "system:serviceaccount:linkerd-cni:linkerd-cni",
        "iat": 1_000_000_000,
        "exp": 9_000_000_000_u64,
        "kubernetes.io": {"pod": {"name": POD, "uid": POD_UID}},
    }))
}

fn encode_claims(payload: &Value) -> String {
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2ln", encode("{}"), encode(&payload.to_string()))
}
