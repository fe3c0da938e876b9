//! A small API server over TLS: answers by path, and remembers what was asked.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

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
        Api::with(CertificateParams::new(["127.0.0.1".into()]).unwrap())
    }

    /// With a certificate of `params` that has signed itself, and is its own CA so.
    pub fn with(params: CertificateParams) -> Self {
        let signing_key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&signing_key).unwrap();
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api =
            Api { address: listener.local_addr().unwrap(), ca: cert.pem(), state: Arc::default() };
        api.state.lock().unwrap().token = TOKEN.to_owned();
        let state = api.state.clone();
        let config = Arc::new(config);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, state) = (config.clone(), state.clone());
                // A client that goes away is its own affair.
                thread::spawn(move || serve(stream, config, &state));
            }
        });
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

fn serve(stream: TcpStream, config: Arc<ServerConfig>, state: &Mutex<State>) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    // As Go's servers do; else an answer waits 40 ms for the client to confirm the handshake's end.
    stream.set_nodelay(true).ok()?;
    let connection = ServerConnection::new(config).ok()?;
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    loop {
        let (method, path, token) = read_request(&mut reader)?;
        let (fault, (code, body)) = {
            let mut state = state.lock().unwrap();
            state.requests.push(format!("{method} {path}"));
            let answer = match state.answers.get(&path).cloned() {
                _ if token != state.token => (401, r#"{"message":"Unauthorized"}"#.to_owned()),
                Some(answer) => answer,
                None => (404, format!(r#"{{"message":"{path} not found"}}"#)),
            };
            (state.faults.pop_front(), answer)
        };
        let head = |code: u16, length: usize, more: &str| {
            format!(
                "HTTP/1.1 {code} x\r\n{more}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
            )
        };
        let whole = head(code, body.len(), "");
        let stream = reader.get_mut();
        match fault {
            None => stream.write_all(format!("{whole}{body}").as_bytes()).ok()?,
            Some(Fault::Slow(ms)) => {
                thread::sleep(Duration::from_millis(ms));
                stream.write_all(format!("{whole}{body}").as_bytes()).ok()?;
            }
            Some(Fault::Hang) => thread::sleep(Duration::from_secs(30)),
            Some(Fault::Close) => return None,
            Some(Fault::Cut) => {
                let half = &body[..body.len() / 2];
                stream.write_all(format!("{whole}{half}").as_bytes()).ok()?;
                stream.flush().ok()?;
                return None;
            }
            Some(Fault::Drip) => {
                stream.write_all(whole.as_bytes()).ok()?;
                for byte in body.as_bytes() {
                    stream.write_all(&[*byte]).ok()?;
                    stream.flush().ok()?;
                    thread::sleep(Duration::from_millis(100));
                }
            }
            Some(Fault::Endless) => {
                stream.write_all(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
                loop {
                    stream.write_all(b"4000\r\n").ok()?;
                    stream.write_all(&[b' '; 0x4000]).ok()?;
                    stream.write_all(b"\r\n").ok()?;
                }
            }
            Some(Fault::Garbage) => stream.write_all(b"SSH-2.0-x\r\n\r\n").ok()?,
            Some(Fault::Status(code, seconds)) => {
                let more = format!("Retry-After: {seconds}\r\n");
                stream.write_all(head(code, 0, &more).as_bytes()).ok()?;
            }
        }
        stream.flush().ok()?;
    }
}

/// Method, path and bearer token.
fn read_request(reader: &mut impl BufRead) -> Option<(String, String, String)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut token = String::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if let Some(text) = header.trim().strip_prefix("authorization: Bearer ") {
            token = text.to_owned();
        }
        if header.trim().is_empty() {
            break;
        }
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()?, token))
}
