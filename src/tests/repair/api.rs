//! An API server of a few requests: what it answers is the test's to set, and what it
//! was asked is the test's to look at.

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
    /// The headers of that kind, in small letters.
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

/// How a kind of request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Status(u16),
    /// With these words.
    Refusal(u16, &'static str),
    /// Not at all.
    Silence,
}

pub struct State {
    /// The pods of the list, one page each.
    pub pages: Vec<Vec<Value>>,
    pub version: u64,
    pub list: Answer,
    pub watch: Answer,
    pub delete: Answer,
    pub event: Answer,
    /// Of evictions; refused as with upstream's rights, unless a test says otherwise.
    pub evict: Answer,
    pub patch: Answer,
    /// What single pods and other objects are, by path; others are not there.
    pub objects: BTreeMap<String, Value>,
    /// The only token that is accepted, if any.
    pub token: Option<String>,
    /// Connections are closed at once.
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
            pages: vec![vec![]],
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
        let api = Api {
            address: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(state)),
        };
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

    /// The requests so far that `wanted` accepts.
    pub fn requests(&self, wanted: impl Fn(&Request) -> bool) -> Vec<Request> {
        let state = self.state();
        state
            .requests
            .iter()
            .filter(|r| wanted(r))
            .cloned()
            .collect()
    }

    pub fn deleted(&self) -> Vec<String> {
        self.requests(|request| request.method == "DELETE")
            .into_iter()
            .map(|request| request.path)
            .collect()
    }

    /// Sends an event to whoever watches, once somebody does.
    pub fn send(&self, kind: &str, object: &Value) {
        eventually("somebody watches", || !self.state().watchers.is_empty());
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

    /// Ends all watches in the middle of an event, as a proxy in between may.
    pub fn break_watches(&self) {
        for mut watcher in self.state().watchers.drain(..) {
            let _ = watcher.write_all(b"9\r\n{\"type\":\r\n");
            let _ = watcher.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Breaks all connections, and refuses new ones until `up`.
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

    /// Serves one request; `None` when the connection has nothing more to give.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let request = read(stream)?;
        let mut state = self.state();
        state.requests.push(request.clone());
        let refused = state
            .token
            .as_ref()
            .is_some_and(|token| request.authorization != format!("Bearer {token}"));
        let answer = match request.method.as_str() {
            _ if refused => Answer::Status(401),
            "GET" if request.is_watch() => state.watch.clone(),
            "GET" if request.is_list() => state.list.clone(),
            "GET" => match state.objects.contains_key(&request.path) {
                true => Answer::Status(200),
                false => Answer::Status(404),
            },
            "PATCH" => state.patch.clone(),
            "POST" if request.is_eviction() => state.evict.clone(),
            "DELETE" => state.delete.clone(),
            _ => state.event.clone(),
        };
        let (code, message) = match answer {
            Answer::Silence => return Some(()),
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
        let body = match state.objects.get(&request.path) {
            Some(object) if request.method == "GET" => object.clone(),
            _ if request.is_list() && code == 200 => state.page(&request.path),
            _ => json!({"kind": "Status", "code": code, "message": message}),
        };
        drop(state);
        let body = body.to_string();
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).ok()
    }
}

impl State {
    fn page(&self, path: &str) -> Value {
        let token = path.split("continue=").nth(1);
        let page: usize = token.map_or(0, |token| token.parse().unwrap());
        let next = page + 1;
        let more = (next < self.pages.len()).then(|| next.to_string());
        json!({
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {
                "resourceVersion": self.version.to_string(),
                "continue": more.unwrap_or_default(),
            },
            "items": self.pages[page],
        })
    }
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
