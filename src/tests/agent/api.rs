//! Routes of an API server with one DaemonSet and one ServiceAccount. Tests set its responses.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use serde_json::{Value, json};
use testkit::api::{self, Request, Response, Routes};

pub type Api = api::Server<Kubernetes>;
pub type State = api::State<Kubernetes>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonSetState {
    Exists,
    BeingDeleted,
    NamespaceBeingDeleted,
    Status(u16),
}

#[derive(Clone)]
pub struct Kubernetes {
    pub daemon_set: DaemonSetState,
    pub tokens: Vec<String>,
    pub grant: u16,
    /// Issued instead of a new token.
    pub issued: Option<String>,
    pub life: u64,
    /// What the plugin's account is told about the namespace, if not that it is there.
    pub namespace: Option<(u16, Value)>,
    /// The status of an Event on a pod of another namespace.
    pub events: u16,
    /// The status of a proxy that answers each request itself, with a page of its own.
    pub proxy: Option<u16>,
    pub placement: Value,
    /// A status instead of the node, its labels, its taints, and its version.
    pub node: Option<u16>,
    pub labels: Value,
    pub taints: Vec<Value>,
    pub version: u64,
    /// The metadata of the agent's pod, or a status instead of it.
    pub pod: Result<Value, u16>,
    /// The pods of the node, and the status of their list and watch.
    pub pods: Vec<Value>,
    pub pods_status: u16,
    /// How many patches of the node still come too late, since another was first.
    pub conflicts: u32,
}

const DELETED: &str = "2026-01-01T00:00:00Z";
const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";

impl Default for Kubernetes {
    fn default() -> Self {
        Kubernetes {
            daemon_set: DaemonSetState::Exists,
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
            pod: Ok(json!({"name": "linkerd-cni-x", "deletionTimestamp": DELETED})),
            pods: Vec::new(),
            pods_status: 200,
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
        if path.split('?').next() == Some(DAEMONSET) {
            let mut metadata = json!({"name": "linkerd-cni"});
            match state.daemon_set {
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
        if path == "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-x" {
            return match &state.pod {
                Ok(metadata) => Response::new(200, json!({"kind": "Pod", "metadata": metadata})),
                Err(code) => Response::status(*code),
            };
        }
        if request.is_list() || request.is_watch() {
            let list = json!({"metadata": {"resourceVersion": "5"}, "items": state.pods});
            return match state.pods_status {
                200 => Response::new(200, list),
                code => Response::status(code),
            };
        }
        match (method, path.split('?').next()) {
            ("GET", Some("/api/v1/namespaces/linkerd-cni")) => {
                let is_deleted = state.daemon_set == DaemonSetState::NamespaceBeingDeleted;
                let deleted = is_deleted.then_some(DELETED);
                let metadata = json!({"name": "linkerd-cni", "deletionTimestamp": deleted});
                let there = (200, json!({"kind": "Namespace", "metadata": metadata}));
                let (code, namespace) = state.namespace.clone().unwrap_or(there);
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

/// A token of the plugin's account that expired long ago.
pub fn expired_token() -> String {
    jwt_of(1000, 0, 3600)
}

/// A token of the plugin's account, as the API server issues it.
fn jwt_of(now: u64, number: usize, life: u64) -> String {
    let account = "system:serviceaccount:linkerd-cni:linkerd-cni-plugin";
    encode_claims(&json!({"sub": account, "iat": now, "exp": now + life, "jti": number}))
}

/// A token that is valid as long as its account exists.
pub fn unbound_token() -> String {
    encode_claims(&json!({"sub": "system:serviceaccount:linkerd-cni:linkerd-cni"}))
}

/// The agent's own token as the kubelet mounts it: the API server revokes it with the agent's pod.
pub fn bound_token() -> String {
    encode_claims(&json!({
        "sub": "system:serviceaccount:linkerd-cni:linkerd-cni",
        "iat": 1_000_000_000,
        "exp": 9_000_000_000_u64,
        "kubernetes.io": {"pod": {"name": "linkerd-cni-x", "uid": "x"}},
    }))
}

fn encode_claims(payload: &Value) -> String {
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2ln", encode("{}"), encode(&payload.to_string()))
}
