//! An API server over TLS with one DaemonSet and one account: what it does is the test's
//! to set, and what it was asked the test's to look at.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::node::Node;

/// What there is of the DaemonSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    There,
    Leaving,
    /// There still, but its namespace is being deleted.
    NamespaceLeaving,
    /// This status instead of it.
    Status(u16),
}

pub struct State {
    pub set: Set,
    /// The tokens that are accepted; those that are handed out are.
    pub tokens: Vec<String>,
    /// The status of a TokenRequest.
    pub grant: u16,
    /// What is handed out instead of a token.
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
    /// How many patches of the node still come too late, since another was first.
    pub conflicts: u32,
    /// Method, path and body.
    pub requests: Vec<(String, String, Value)>,
    config: Arc<ServerConfig>,
    ca: String,
}

#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Api {
    pub fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (config, ca) = identity();
        let state = State {
            set: Set::There,
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
            conflicts: 0,
            requests: Vec::new(),
            config,
            ca,
        };
        let api =
            Api { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        let server = api.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                if !server.state().down {
                    thread::spawn(move || server.serve(stream));
                }
            }
        });
        api
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Gets another certificate.
    pub fn renew(&self) {
        let mut state = self.state();
        (state.config, state.ca) = identity();
    }

    /// Makes this the API server of `node`.
    pub fn serve_node(&self, node: &Node) {
        node.certify(&self.state().ca);
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

    fn serve(&self, stream: TcpStream) -> Option<()> {
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let config = self.state().config.clone();
        let connection = ServerConnection::new(config).ok()?;
        let mut reader = BufReader::new(StreamOwned::new(connection, stream));
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let (mut length, mut token) = (0, String::new());
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).ok()?;
                let Some((name, value)) = header.trim().split_once(": ") else {
                    break;
                };
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().ok()?,
                    "authorization" => token = value.trim_start_matches("Bearer ").into(),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let mut words = line.split_whitespace().map(str::to_owned);
            let (method, path) = (words.next()?, words.next()?);
            if self.state().down {
                return None;
            }
            let (code, answer) = self.answer(&token, method, path, &body);
            while self.state().silent {
                thread::sleep(Duration::from_millis(20));
            }
            let answer = answer.to_string();
            let head = format!("HTTP/1.1 {code} x\r\nContent-Length: {}\r\n\r\n", answer.len());
            reader.get_mut().write_all(head.as_bytes()).ok()?;
            reader.get_mut().write_all(answer.as_bytes()).ok()?;
            reader.get_mut().flush().ok()?;
        }
    }

    fn answer(&self, token: &str, method: String, path: String, body: &[u8]) -> (u16, Value) {
        let mut state = self.state();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        state.requests.push((method.clone(), path.clone(), body.clone()));
        if let Some(code) = state.proxy {
            return (code, json!(format!("default backend - {code}")));
        }
        if !state.tokens.iter().any(|known| known == token) {
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
        if path == "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni" {
            let metadata = match state.set {
                Set::Status(code) => return status(code),
                Set::There | Set::NamespaceLeaving => json!({"name": "linkerd-cni"}),
                Set::Leaving => {
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
        match (method.as_str(), path.split('?').next()) {
            ("GET", Some("/api/v1/namespaces/linkerd-cni")) => {
                let metadata = match state.set {
                    Set::NamespaceLeaving => json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
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

/// What Kubernetes answers instead of an object.
fn status(code: u16) -> (u16, Value) {
    let reason = match code {
        401 => "Unauthorized",
        404 => "NotFound",
        _ => "",
    };
    let message = format!("says {code}");
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
    let payload = json!({
        "sub": "system:serviceaccount:linkerd-cni:linkerd-cni-plugin",
        "iat": now,
        "exp": now + life,
        "jti": number,
    });
    let encode = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.c2ln", encode("{}"), encode(&payload.to_string()))
}

fn identity() -> (Arc<ServerConfig>, String) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (Arc::new(config), cert.pem())
}
