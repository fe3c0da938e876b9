//! A fake API server over TLS with a fixed response for each path. Tests read the requests it
//! received.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::CertificateParams;
use rustls::ServerConfig;

use crate::server::{self, Connection, Handler, Identity, Request};

pub const TOKEN: &str = "the-token";

/// Status code and body.
type Answer = (u16, String);

/// What goes wrong with one request, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No byte of an answer, and the connection stays open.
    Hang,
    /// The connection ends without an answer.
    Close,
    /// Half of the body, then the end.
    Cut,
    /// One byte of the body every 100 ms.
    Drip,
    /// A body without an end.
    Endless,
    /// What is no HTTP.
    Garbage,
    /// This status, with a Retry-After of so many seconds.
    Status(u16, u64),
    /// The right answer after this many milliseconds.
    Slow(u64),
}

pub struct Api {
    pub address: SocketAddr,
    /// The CA, PEM.
    pub ca: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    answers: BTreeMap<String, Answer>,
    faults: VecDeque<Fault>,
    requests: Vec<String>,
    token: String,
}

impl Api {
    pub fn start() -> Self {
        Api::of(Identity::of_localhost())
    }

    /// Starts with a self-signed certificate of `params`.
    pub fn with(params: &CertificateParams) -> Self {
        Api::of(Identity::new(params))
    }

    fn of(Identity { config, ca }: Identity) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { token: TOKEN.to_owned(), ..State::default() };
        let api = Api { address, ca, state: Arc::new(Mutex::new(state)) };
        server::serve(listener, Canned { config, state: Arc::clone(&api.state) });
        api
    }

    pub fn answer(&self, path: &str, code: u16, body: &str) -> &Self {
        let answer = (code, body.to_owned());
        let mut state = self.state.lock().unwrap();
        state.answers.insert(path.to_owned(), answer);
        self
    }

    /// The next requests go wrong like this, one each.
    pub fn faults(&self, faults: &[Fault]) -> &Self {
        self.state.lock().unwrap().faults.extend(faults);
        self
    }

    /// From now on only this token is good.
    pub fn accept(&self, token: &str) {
        self.state.lock().unwrap().token = token.to_owned();
    }

    /// Method and path of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// A kubeconfig for this server as upstream's installer writes it.
    pub fn kubeconfig(&self) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.ca.trim());
        format!(
            "# kubeconfig file for linkerd.io/cni-plugin\napiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: https://{}\n    certificate-authority-data: {ca}\nusers:\n- name: linkerd-cni\n  user:\n    token: {TOKEN}\ncontexts:\n- name: linkerd-cni-context\n  context:\n    cluster: local\n    user: linkerd-cni\ncurrent-context: linkerd-cni-context",
            self.address
        )
    }
}

struct Canned {
    config: Arc<ServerConfig>,
    state: Arc<Mutex<State>>,
}

impl Handler for Canned {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        Some(Arc::clone(&self.config))
    }

    fn respond(&self, request: Request, connection: &mut Connection) -> Option<()> {
        let path = &request.path;
        let (fault, (code, body)) = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(format!("{} {path}", request.method));
            let answer = match state.answers.get(path).cloned() {
                _ if request.token() != state.token => {
                    (401, r#"{"message":"Unauthorized"}"#.to_owned())
                }
                Some(answer) => answer,
                None => (404, format!(r#"{{"message":"{path} not found"}}"#)),
            };
            (state.faults.pop_front(), answer)
        };
        match fault {
            None => connection.send_response(code, &body),
            Some(Fault::Slow(ms)) => {
                thread::sleep(Duration::from_millis(ms));
                connection.send_response(code, &body)
            }
            Some(Fault::Hang) => Some(()),
            Some(Fault::Close) => None,
            Some(Fault::Cut) => connection.cut_response(code, &body),
            Some(Fault::Drip) => {
                connection.send_head(code, body.len(), "")?;
                for byte in body.as_bytes() {
                    connection.send(&[*byte])?;
                    thread::sleep(Duration::from_millis(100));
                }
                Some(())
            }
            Some(Fault::Endless) => connection.send_endless_body(),
            Some(Fault::Garbage) => connection.send(b"SSH-2.0-x\r\n\r\n"),
            Some(Fault::Status(code, seconds)) => {
                connection.send_head(code, 0, &format!("Retry-After: {seconds}\r\n"))
            }
        }
    }
}
