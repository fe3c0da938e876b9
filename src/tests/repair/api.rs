//! A fake API server. Tests set its responses and read the requests it received.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

pub use crate::server::Request;
use crate::server::{self, Connection, Handler};
use crate::until::until;

/// Message of the API server for an account without the permission to create evictions.
pub const NOT_PERMITTED: &str = r#"pods "web-1" is forbidden: User "system:serviceaccount:linkerd-cni:linkerd-cni" cannot create resource "pods/eviction" in API group "" in the namespace "emojivoto""#;
/// Message of the API server if the chart's admission policy rejects an eviction that is no dry run.
pub const ONLY_DRY_RUNS: &str = r#"pods "web-1" is forbidden: ValidatingAdmissionPolicy 'linkerd-cni-repair' with binding 'linkerd-cni-repair' denied request: linkerd-cni may evict pods only in dry runs, because an eviction does not name the pod's node"#;

/// Response to one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Status(u16),
    /// Status code and message.
    Refusal(u16, &'static str),
    /// No response.
    Silence,
    /// Half of the body, then the end of the connection.
    Cut,
    /// An endless body of spaces.
    Endless,
}

pub struct State {
    /// Pods in the response to a list.
    pub pods: Vec<Value>,
    pub version: u64,
    pub list: Answer,
    pub watch: Answer,
    pub delete: Answer,
    pub event: Answer,
    /// Response to evictions. The default is that of the RBAC rules of upstream's chart.
    pub evict: Answer,
    /// Response to dry runs of evictions. `None`: as to evictions.
    pub evict_dry_run: Option<Answer>,
    pub patch: Answer,
    /// Single pods and other objects, by path. Other paths respond with 404.
    pub objects: BTreeMap<String, Value>,
    /// The only accepted token. `None`: every token is accepted.
    pub token: Option<String>,
    /// Whether new connections are closed at once.
    pub down: bool,
    pub requests: Vec<Request>,
    connections: Vec<TcpStream>,
    watchers: Vec<TcpStream>,
}

#[derive(Clone)]
pub struct Api {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Api {
    pub fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State {
            pods: Vec::new(),
            version: 100,
            list: Answer::Status(200),
            watch: Answer::Status(200),
            delete: Answer::Status(200),
            event: Answer::Status(201),
            evict: Answer::Refusal(403, NOT_PERMITTED),
            evict_dry_run: None,
            patch: Answer::Status(200),
            objects: BTreeMap::new(),
            token: None,
            down: false,
            requests: Vec::new(),
            connections: Vec::new(),
            watchers: Vec::new(),
        };
        let api =
            Api { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        server::serve(listener, api.clone());
        api
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the requests received so far for which `wanted` returns `true`.
    pub fn requests(&self, wanted: impl Fn(&Request) -> bool) -> Vec<Request> {
        let state = self.state();
        state.requests.iter().filter(|r| wanted(r)).cloned().collect()
    }

    fn paths(&self, wanted: impl Fn(&Request) -> bool) -> Vec<String> {
        self.requests(wanted).into_iter().map(|request| request.path).collect()
    }

    pub fn deleted(&self) -> Vec<String> {
        self.paths(|request| request.method == "DELETE")
    }

    pub fn evictions(&self) -> Vec<String> {
        self.paths(Request::is_eviction)
    }

    pub fn watches(&self) -> Vec<String> {
        self.paths(Request::is_watch)
    }

    pub fn lists(&self) -> usize {
        self.paths(Request::is_list).len()
    }

    pub fn events(&self) -> Vec<Value> {
        self.requests(Request::is_event).into_iter().map(|request| request.body).collect()
    }

    /// Makes the pod available at its own path; it is not added to the list.
    pub fn knows(&self, pod: &Value) {
        let text = |pointer: &str| pod.pointer(pointer).unwrap().as_str().unwrap();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.state().objects.insert(path, pod.clone());
    }

    /// Waits for a watch, then sends a bookmark to all watches.
    pub fn bookmark(&self) {
        self.send("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    }

    /// Sends a bookmark to all watches that are open now.
    pub fn bookmark_now(&self) {
        self.send_now("BOOKMARK", &json!({"metadata": {"resourceVersion": "150"}}));
    }

    /// Waits for a watch, then sends an event of this modified pod to all watches.
    pub fn modify(&self, pod: &Value) {
        self.send("MODIFIED", pod);
    }

    /// Waits for a watch, then sends an event to all watches.
    pub fn send(&self, kind: &str, object: &Value) {
        until("somebody watches", || !self.state().watchers.is_empty());
        self.send_now(kind, object);
    }

    /// Sends an event to all watches that are open now.
    pub fn send_now(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        for watcher in &mut self.state().watchers {
            let _ = watcher.write_all(chunk.as_bytes());
        }
    }

    /// Ends all watches, as the API server does after `timeoutSeconds`.
    pub fn end_watches(&self) {
        for mut watcher in self.state().watchers.drain(..) {
            let _ = watcher.write_all(b"0\r\n\r\n");
        }
    }

    /// Cuts all watches in the middle of an event, as a proxy on the way may do.
    pub fn break_watches(&self) {
        for mut watcher in self.state().watchers.drain(..) {
            let _ = watcher.write_all(b"9\r\n{\"type\":\r\n");
            let _ = watcher.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Breaks all connections and rejects new ones until `up` is called.
    pub fn crash(&self) {
        let mut state = self.state();
        state.down = true;
        state.watchers.clear();
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn up(&self) {
        self.state().down = false;
    }
}

impl Handler for Api {
    fn accept(&self, socket: &TcpStream) -> bool {
        let mut state = self.state();
        if !state.down {
            state.connections.push(socket.try_clone().unwrap());
        }
        !state.down
    }

    fn respond(&self, request: Request, connection: &mut Connection) -> Option<()> {
        let mut state = self.state();
        state.requests.push(request.clone());
        let is_rejected = state.token.as_ref().is_some_and(|token| request.token() != token);
        let fault = fault(&request);
        // The query of a GET only sets how fresh the object must be.
        let object = request.path.split('?').next().unwrap_or_default();
        let answer = match request.method.as_str() {
            _ if is_rejected => Answer::Status(401),
            _ if fault.is_some() => Answer::Refusal(400, fault.unwrap_or_default()),
            "GET" if request.is_watch() => state.watch.clone(),
            "GET" if request.is_list() => state.list.clone(),
            "GET" => match state.objects.contains_key(object) {
                true => Answer::Status(200),
                false => Answer::Status(404),
            },
            "PATCH" => state.patch.clone(),
            "POST" if request.is_dry_run() && state.evict_dry_run.is_some() => {
                state.evict_dry_run.clone().unwrap()
            }
            "POST" if request.is_eviction() => state.evict.clone(),
            "DELETE" => state.delete.clone(),
            _ => state.event.clone(),
        };
        let is_cut = answer == Answer::Cut;
        let (code, message) = match answer {
            Answer::Silence => return Some(()),
            Answer::Endless => {
                drop(state);
                return connection.send_endless_body();
            }
            Answer::Cut => (200, String::new()),
            Answer::Status(code) => (code, format!("says {code}")),
            Answer::Refusal(code, message) => (code, message.to_owned()),
        };
        if request.is_watch() && code == 200 {
            connection.send_chunked_head()?;
            state.watchers.push(connection.socket.try_clone().unwrap());
            return Some(());
        }
        let body = match state.objects.get(object) {
            Some(object) if request.method == "GET" => object.to_string(),
            _ if request.is_list() && code == 200 => state.list(&request.path).to_string(),
            _ => json!({"kind": "Status", "code": code, "message": message}).to_string(),
        };
        drop(state);
        match is_cut {
            true => connection.cut_response(code, &body),
            false => connection.send_response(code, &body),
        }
    }
}

impl State {
    /// The list of the pods that the request's label selector selects.
    fn list(&self, path: &str) -> Value {
        let selects_injected = path.contains("labelSelector=linkerd%2Eio%2Fcontrol%2Dplane%2Dns");
        let is_selected = |pod: &&Value| {
            !selects_injected
                || pod["metadata"]["labels"]["linkerd.io/control-plane-ns"].is_string()
        };
        json!({
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": self.pods.iter().filter(is_selected).collect::<Vec<_>>(),
        })
    }
}

/// Returns why a request is rejected: a list that the API server would serve from etcd, or
/// a watch that would end at the same time as the watches of other nodes.
fn fault(request: &Request) -> Option<&'static str> {
    let (_, query) = request.path.split_once('?')?;
    if request.method != "GET" {
        return None;
    }
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    if request.is_watch() {
        let time = value("timeoutSeconds").and_then(|time| time.parse::<u16>().ok());
        let is_right = time.is_some_and(|time| (1800..=3600).contains(&time));
        return (!is_right).then_some("a watch without timeoutSeconds of 1800 to 3600");
    }
    if value("limit").is_some() || value("continue").is_some() {
        return Some("a list in pages");
    }
    (value("resourceVersion") != Some("0")).then_some("a GET that is not from the cache")
}
