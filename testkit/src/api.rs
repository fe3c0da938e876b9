//! A fake API server: TLS, recorded requests, [`ApiFault`]s and watches. Each kind of test has its
//! [`Routes`].

mod received;
mod response;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use rcgen::CertificateParams;
use rustls::ServerConfig;
use serde_json::Value;

pub use self::response::{ApiFault, Response};
use self::watches::Event;
pub use crate::server::Request;
use crate::server::{Connection, Identity};

pub const TOKEN: &str = "the-token";

/// What a fake API server responds.
pub trait Routes: Clone + Default + Send + 'static {
    const HAS_TLS: bool = true;

    /// Responds to a request. A watch with status 200 stays open for events.
    fn respond(state: &mut State<Self>, request: &Request) -> Response;
}

/// A fixed response for each path, and one accepted token.
#[derive(Clone)]
pub struct Canned {
    token: String,
}

impl Default for Canned {
    fn default() -> Self {
        Canned { token: TOKEN.to_owned() }
    }
}

impl Routes for Canned {
    fn respond(state: &mut State<Self>, request: &Request) -> Response {
        if request.token() != state.token {
            return Response::status(401);
        }
        match state.answers.get(&request.path) {
            Some((code, body)) => Response::new(*code, body),
            None => Response::refusal(404, &format!("{} not found", request.path)),
        }
    }
}

pub type Api = Server<Canned>;

impl Api {
    /// Makes this token the only one that the server accepts.
    pub fn accept(&self, token: &str) {
        self.state().token = token.to_owned();
    }
}

#[derive(Default)]
pub struct State<R> {
    pub requests: Vec<Request>,
    /// Status and body of the response to each path.
    pub answers: BTreeMap<String, (u16, String)>,
    /// While this is set, the server receives requests, but sends no response.
    pub silent: bool,
    /// While this is set, the server closes each connection at once.
    pub down: bool,
    routes: R,
    /// Faults of the next responses, one for each.
    faults: VecDeque<ApiFault>,
    identity: Option<Identity>,
    connections: Vec<TcpStream>,
    watchers: Vec<Sender<Event>>,
}

impl<R> Deref for State<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.routes
    }
}

impl<R> DerefMut for State<R> {
    fn deref_mut(&mut self) -> &mut R {
        &mut self.routes
    }
}

#[derive(Clone)]
pub struct Server<R> {
    pub address: SocketAddr,
    state: Arc<Mutex<State<R>>>,
}

impl<R: Routes> Server<R> {
    pub fn start() -> Self {
        let identity = if R::HAS_TLS { Some(Identity::of_localhost()) } else { None };
        Self::with_identity(identity)
    }

    /// Starts a server whose certificate has these parameters.
    pub fn with_certificate(params: &CertificateParams) -> Self {
        Self::with_identity(Some(Identity::new(params)))
    }

    fn with_identity(identity: Option<Identity>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { identity, ..State::default() };
        let api = Server { address, state: Arc::new(Mutex::new(state)) };
        api.serve(listener);
        api
    }

    pub fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap()
    }

    pub fn ca(&self) -> String {
        self.state().identity.as_ref().unwrap().ca.clone()
    }

    /// Presents another certificate on new connections.
    pub fn present(&self, identity: Identity) {
        self.state().identity = Some(identity);
    }

    /// Returns a kubeconfig for this server, in the form in which upstream's agent writes it.
    pub fn kubeconfig(&self) -> String {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(self.ca().trim());
        let server = self.address.to_string();
        include_str!("upstream_kubeconfig.yaml")
            .trim_end()
            .replace("TOKEN", TOKEN)
            .replace("SERVER", &server)
            .replace("CA", &ca)
    }

    /// Returns the environment variables of an agent that connects to this server, and whose plugin
    /// has a ServiceAccount of its own.
    pub fn vars(&self) -> [(&'static str, String); 3] {
        let [host, port] = self.address_vars();
        [host, port, ("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "linkerd-cni-plugin".into())]
    }

    /// Returns the environment variables of an agent that connects to this server, and whose plugin
    /// has no ServiceAccount of its own, as under upstream's chart.
    pub fn address_vars(&self) -> [(&'static str, String); 2] {
        [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1".into()),
            ("KUBERNETES_SERVICE_PORT", self.address.port().to_string()),
        ]
    }

    pub fn answer(&self, path: &str, code: u16, body: &str) -> &Self {
        self.state().answers.insert(path.to_owned(), (code, body.to_owned()));
        self
    }

    /// Responds to `path` with Kubernetes' `Status` for this code.
    pub fn refuse(&self, path: &str, code: u16) -> &Self {
        let Response { code, body, .. } = Response::status(code);
        self.answer(path, code, &body)
    }

    /// Lets the next responses have these faults, one for each response.
    pub fn faults(&self, faults: &[ApiFault]) -> &Self {
        self.state().faults.extend(faults);
        self
    }

    /// Makes the pod available at its own path. Lists do not contain the pod.
    pub fn knows(&self, pod: &Value) {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap();
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.answer(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), 200, &pod.to_string());
    }

    /// Cuts all connections, and refuses new ones until [`Server::up`].
    pub fn crash(&self) {
        let mut state = self.state();
        state.down = true;
        state.watchers.clear();
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again after [`Server::crash`].
    pub fn up(&self) {
        self.state().down = false;
    }

    /// Accepts connections on a thread, until the test's process ends.
    pub fn serve(&self, listener: TcpListener) {
        let api = self.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let mut state = api.state();
                if state.down {
                    continue;
                }
                state.connections.push(socket.try_clone().unwrap());
                let tls = state.identity.as_ref().map(|identity| Arc::clone(&identity.config));
                drop(state);
                let api = api.clone();
                thread::spawn(move || api.serve_client(socket, tls));
            }
        });
    }

    /// Responds to the requests of a client until the connection ends.
    fn serve_client(&self, socket: TcpStream, tls: Option<Arc<ServerConfig>>) {
        let Ok(mut connection) = Connection::new(socket, tls) else {
            return;
        };
        while let Ok(request) = connection.read_request() {
            if self.respond(&request, &mut connection).is_err() {
                break;
            }
        }
        // Dropping the connection would not close the socket, because `connections` has a copy of
        // it.
        connection.close();
    }

    /// Responds to a request. Fails if the connection has ended.
    fn respond(&self, request: &Request, connection: &mut Connection) -> io::Result<()> {
        let mut state = self.state();
        if state.down {
            connection.close();
            return Ok(());
        }
        state.requests.push(request.clone());
        let mut response = R::respond(&mut state, request);
        response.fault = state.faults.pop_front().or(response.fault);
        if request.is_watch() && response.code == 200 && response.fault.is_none() {
            let events = watches::open(&mut state, connection)?;
            drop(state);
            return watches::send(&events, connection);
        }
        drop(state);
        while self.state().silent {
            thread::sleep(Duration::from_millis(20));
        }
        response.send(connection)
    }
}
