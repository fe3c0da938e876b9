//! An API server over TLS with one DaemonSet and one ServiceAccount. Tests set its responses and
//! read its requests.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use rustls::ServerConfig;
use serde_json::{Value, json};

use crate::node::Node;
use crate::server::{self, Connection, Handler, Identity, Request};

/// State of the agent's DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonSetState {
    Exists,
    BeingDeleted,
    NamespaceBeingDeleted,
    /// The API server responds with this HTTP status.
    Status(u16),
}

pub struct State {
    pub daemon_set: DaemonSetState,
    /// Tokens that the server accepts, issued ones included.
    pub tokens: Vec<String>,
    /// The status of a TokenRequest.
    pub grant: u16,
    /// Issued instead of a new token.
    pub issued: Option<String>,
    /// How long a token lives, in seconds.
    pub life: u64,
    /// What the plugin's account is told about the namespace, if not that it is there.
    pub namespace: Option<(u16, Value)>,
    /// The status of an Event on a pod of another namespace.
    pub events: u16,
    /// Requests are read and never answered.
    pub silent: bool,
    /// Connections are closed at once.
    pub down: bool,
    /// The status of a proxy that answers each request itself, with a page of its own.
    pub proxy: Option<u16>,
    /// The spec of the DaemonSet's pods.
    pub placement: Value,
    /// A status instead of the node, its labels, its taints, and its version.
    pub node: Option<u16>,
    pub labels: Value,
    pub taints: Vec<Value>,
    pub version: u64,
    /// The metadata of the agent's pod, or a status instead of it.
    pub pod: Result<Value, u16>,
    /// Further objects by path, with their status.
    pub others: BTreeMap<String, (u16, Value)>,
    /// How many patches of the node still come too late, since another was first.
    pub conflicts: u32,
    /// Method, path and body.
    pub requests: Vec<(String, String, Value)>,
    identity: Identity,
}

const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";

#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Api {
    pub fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State {
            daemon_set: DaemonSetState::Exists,
            tokens: vec!["token-1".into()],
            grant: 201,
            issued: None,
            life: 3600,
            namespace: None,
            events: 201,
            silent: false,
            down: false,
            proxy: None,
            placement: json!({}),
            node: None,
            labels: json!({"kubernetes.io/os": "linux"}),
            taints: Vec::new(),
            version: 1,
            pod: Ok(json!({"name": "linkerd-cni-x", "deletionTimestamp": "2026-01-01T00:00:00Z"})),
            others: BTreeMap::new(),
            conflicts: 0,
            requests: Vec::new(),
            identity: Identity::of_localhost(),
        };
        let api =
            Api { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        server::serve(listener, api.clone());
        api
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Gets another certificate.
    pub fn renew(&self) {
        self.present(Identity::of_localhost());
    }

    /// Has this certificate from now on.
    pub fn present(&self, identity: Identity) {
        self.state().identity = identity;
    }

    /// Makes this the API server of `node`.
    pub fn serve_node(&self, node: &Node) {
        node.certify(&self.state().identity.ca);
        std::fs::write(node.sa().join("namespace"), "linkerd-cni\n").unwrap();
    }

    /// What an agent has to be told for it.
    pub fn vars(&self) -> [(&'static str, String); 3] {
        let [host, port] = self.address_vars();
        let account = ("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "linkerd-cni-plugin");
        [host, port, (account.0, account.1.into())]
    }

    /// The same for an agent whose plugin has no account of its own, as under upstream's
    /// chart.
    pub fn address_vars(&self) -> [(&'static str, String); 2] {
        [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".into()),
            ("KUBERNETES_SERVICE_PORT", self.address.port().to_string()),
        ]
    }

    /// How often; an empty `method` is any.
    pub fn asked(&self, method: &str, path: &str) -> usize {
        let state = self.state();
        let asked = state.requests.iter();
        asked
            .filter(|(verb, at, _)| (method.is_empty() || verb == method) && at.contains(path))
            .count()
    }

    fn answer(&self, request: Request) -> (u16, Value) {
        let token = request.token().to_owned();
        let Request { method, path, body, .. } = request;
        let mut state = self.state();
        state.requests.push((method.clone(), path.clone(), body.clone()));
        if let Some(code) = state.proxy {
            return (code, json!(format!("default backend - {code}")));
        }
        if !state.tokens.contains(&token) {
            return status(401);
        }
        if path == "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin/token" {
            if state.grant != 201 {
                return status(state.grant);
            }
            let token = jwt(state.requests.len(), state.life);
            let token = state.issued.clone().unwrap_or(token);
            state.tokens.push(token.clone());
            let answer = json!({
                "spec": {"expirationSeconds": state.life},
                "status": {"token": token, "expirationTimestamp": "2026-01-01T00:00:00Z"},
            });
            return (201, answer);
        }
        if path.split('?').next() == Some(DAEMONSET) {
            let metadata = match state.daemon_set {
                DaemonSetState::Status(code) => return status(code),
                DaemonSetState::Exists | DaemonSetState::NamespaceBeingDeleted => {
                    json!({"name": "linkerd-cni"})
                }
                DaemonSetState::BeingDeleted => {
                    json!({"name": "linkerd-cni", "deletionTimestamp": "2026-01-01T00:00:00Z"})
                }
            };
            let spec = json!({"template": {"spec": state.placement}});
            let set = json!({"kind": "DaemonSet", "metadata": metadata, "spec": spec});
            return (200, set);
        }
        if path == "/api/v1/nodes/node-1" {
            if let Some(code) = state.node {
                return status(code);
            }
            return answer_node(&mut state, &method, &body);
        }
        if path == "/api/v1/namespaces/linkerd-cni/pods/linkerd-cni-x" {
            return match &state.pod {
                Ok(metadata) => (200, json!({"kind": "Pod", "metadata": metadata})),
                Err(code) => status(*code),
            };
        }
        if let Some((code, object)) = state.others.get(&path) {
            return (*code, object.clone());
        }
        match (method.as_str(), path.split('?').next()) {
            ("GET", Some("/api/v1/namespaces/linkerd-cni")) => {
                let metadata = match state.daemon_set {
                    DaemonSetState::NamespaceBeingDeleted => {
                        json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})
                    }
                    _ => json!({}),
                };
                let there = (200, json!({"kind": "Namespace", "metadata": metadata}));
                state.namespace.clone().unwrap_or(there)
            }
            ("POST", Some("/apis/events.k8s.io/v1/namespaces/linkerd-cni/events")) => {
                (201, json!({"kind": "Event"}))
            }
            ("POST", Some(path)) if path.ends_with("/events") => match state.events {
                201 => (201, json!({"kind": "Event"})),
                code => status(code),
            },
            _ => status(404),
        }
    }
}

impl Handler for Api {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        Some(Arc::clone(&self.state().identity.config))
    }

    fn accept(&self, _socket: &TcpStream) -> bool {
        !self.state().down
    }

    fn respond(&self, request: Request, connection: &mut Connection) -> Option<()> {
        if self.state().down {
            return None;
        }
        let (code, answer) = self.answer(request);
        while self.state().silent {
            thread::sleep(Duration::from_millis(20));
        }
        connection.send_response(code, &answer.to_string())
    }
}

/// What Kubernetes answers instead of an object.
fn status(code: u16) -> (u16, Value) {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        _ => "",
    };
    let message = match code {
        401 => "Unauthorized".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        _ => format!("says {code}"),
    };
    let status = json!({"kind": "Status", "metadata": {}, "reason": reason, "message": message});
    (code, status)
}

fn answer_node(state: &mut State, method: &str, patch: &Value) -> (u16, Value) {
    if method == "PATCH" {
        if state.conflicts > 0 {
            state.conflicts -= 1;
            state.version += 1;
        }
        let version = state.version.to_string();
        if patch["metadata"]["resourceVersion"] != *version {
            return (409, json!({"message": "the object has been modified"}));
        }
        state.version += 1;
        state.taints = patch["spec"]["taints"].as_array().unwrap().clone();
    }
    let version = state.version.to_string();
    let metadata = json!({"name": "node-1", "labels": state.labels, "resourceVersion": version});
    let spec = json!({"taints": state.taints});
    (200, json!({"kind": "Node", "metadata": metadata, "spec": spec}))
}

/// A token of the plugin's account that ran out long ago.
pub fn expired_token() -> String {
    jwt_of(1000, 0, 3600)
}

/// A token as the API server makes them, of the plugin's account.
fn jwt(number: usize, life: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    jwt_of(now, number, life)
}

fn jwt_of(now: u64, number: usize, life: u64) -> String {
    encode_claims(&json!({
        "sub": "system:serviceaccount:linkerd-cni:linkerd-cni-plugin",
        "iat": now,
        "exp": now + life,
        "jti": number,
    }))
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
