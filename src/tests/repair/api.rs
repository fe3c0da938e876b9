//! A fake API server. Tests set its responses and read the requests it received.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};

use crate::eventually;

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: String,
    /// Impersonation headers: name in lower case, and value.
    pub impersonation: Vec<(String, String)>,
    pub body: Value,
}

impl Request {
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }

    pub fn is_list(&self) -> bool {
        self.method == "GET" && !self.is_watch() && self.path.starts_with("/api/v1/pods?")
    }

    pub fn is_event(&self) -> bool {
        self.path.ends_with("/events")
    }

    pub fn is_eviction(&self) -> bool {
        self.path.ends_with("/eviction")
    }
}

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
    /// Response to evictions. The default is 403, as with the RBAC rules of upstream's chart.
    pub evict: Answer,
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
            evict: Answer::Status(403),
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
        let server = api.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                let mut state = server.state();
                if state.down {
                    continue;
                }
                state.connections.push(stream.try_clone().unwrap());
                drop(state);
                thread::spawn(move || while server.serve(&stream).is_some() {});
            }
        });
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

    pub fn deleted(&self) -> Vec<String> {
        self.requests(|request| request.method == "DELETE")
            .into_iter()
            .map(|request| request.path)
            .collect()
    }

    /// Makes the pod available at its own path; it is not added to the list.
    pub fn knows(&self, pod: &Value) {
        let text = |pointer: &str| pod.pointer(pointer).unwrap().as_str().unwrap();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.state().objects.insert(path, pod.clone());
    }

    /// Waits for a watch, then sends an event to all watches.
    pub fn send(&self, kind: &str, object: &Value) {
        eventually("somebody watches", || !self.state().watchers.is_empty());
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

    /// Serves one request. Returns `None` when the connection has ended.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let request = read(stream)?;
        let mut state = self.state();
        state.requests.push(request.clone());
        let refused = state
            .token
            .as_ref()
            .is_some_and(|token| request.authorization != format!("Bearer {token}"));
        let fault = fault(&request);
        // The query of a GET only sets how fresh the object must be.
        let object = request.path.split('?').next().unwrap_or_default();
        let answer = match request.method.as_str() {
            _ if refused => Answer::Status(401),
            _ if fault.is_some() => Answer::Refusal(400, fault.unwrap_or_default()),
            "GET" if request.is_watch() => state.watch.clone(),
            "GET" if request.is_list() => state.list.clone(),
            "GET" => match state.objects.contains_key(object) {
                true => Answer::Status(200),
                false => Answer::Status(404),
            },
            "PATCH" => state.patch.clone(),
            "POST" if request.is_eviction() => state.evict.clone(),
            "DELETE" => state.delete.clone(),
            _ => state.event.clone(),
        };
        let (is_cut, is_endless) = (answer == Answer::Cut, answer == Answer::Endless);
        let (code, message) = match answer {
            Answer::Silence => return Some(()),
            Answer::Cut | Answer::Endless => (200, String::new()),
            Answer::Status(code) => (code, format!("says {code}")),
            Answer::Refusal(code, message) => (code, message.to_owned()),
        };
        let mut stream = stream;
        if request.is_watch() && code == 200 {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).ok()?;
            state.watchers.push(stream.try_clone().unwrap());
            return Some(());
        }
        let body = match state.objects.get(object) {
            Some(object) if request.method == "GET" => object.to_string(),
            _ if request.is_list() && code == 200 => state.list().to_string(),
            _ => json!({"kind": "Status", "code": code, "message": message}).to_string(),
        };
        drop(state);
        if is_endless {
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).ok()?;
            while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
            return None;
        }
        let head = format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).ok()?;
        if is_cut {
            stream.write_all(&body.as_bytes()[..body.len() / 2]).ok()?;
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return None;
        }
        stream.write_all(body.as_bytes()).ok()
    }
}

impl State {
    fn list(&self) -> Value {
        json!({
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": self.pods,
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
        let is_right = time.is_some_and(|time| (300..=600).contains(&time));
        return (!is_right).then_some("a watch without timeoutSeconds of 300 to 600");
    }
    if value("limit").is_some() || value("continue").is_some() {
        return Some("a list in pages");
    }
    (value("resourceVersion") != Some("0")).then_some("a GET that is not from the cache")
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut length, mut authorization) = (0, String::new());
    let mut impersonation = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => authorization = value.into(),
            name if name.starts_with("impersonate-") => {
                impersonation.push((name.to_owned(), value.to_owned()));
            }
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        authorization,
        impersonation,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
