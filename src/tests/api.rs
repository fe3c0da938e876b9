//! A small API server over TLS: answers by path, and remembers what was asked.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub const TOKEN: &str = "the-token";

/// Status code and body.
type Answer = (u16, String);

pub struct Api {
    pub address: SocketAddr,
    /// The CA, PEM.
    pub ca: String,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Api {
    pub fn start() -> Self {
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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Api {
            address: listener.local_addr().unwrap(),
            ca: cert.pem(),
            answers: Arc::default(),
            requests: Arc::default(),
        };
        let (answers, requests) = (api.answers.clone(), api.requests.clone());
        let config = Arc::new(config);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, answers, requests) =
                    (config.clone(), answers.clone(), requests.clone());
                // A client that goes away is its own affair.
                thread::spawn(move || serve(stream, config, &answers, &requests));
            }
        });
        api
    }

    pub fn answer(&self, path: &str, code: u16, body: &str) -> &Self {
        let answer = (code, body.to_owned());
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
        self
    }

    /// Method and path of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
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

fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    answers: &Mutex<BTreeMap<String, Answer>>,
    requests: &Mutex<Vec<String>>,
) -> Option<()> {
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .ok()?;
    let connection = ServerConnection::new(config).ok()?;
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut authorized = false;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            authorized |= header.trim() == format!("authorization: Bearer {TOKEN}");
            if header.trim().is_empty() {
                break;
            }
        }
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?, words.next()?);
        requests.lock().unwrap().push(format!("{method} {path}"));
        let found = answers.lock().unwrap().get(path).cloned();
        let (code, body) = match found {
            _ if !authorized => (401, r#"{"message":"Unauthorized"}"#.to_owned()),
            Some(answer) => answer,
            None => (404, format!(r#"{{"message":"{path} not found"}}"#)),
        };
        let head = format!(
            "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        reader.get_mut().write_all(head.as_bytes()).ok()?;
        reader.get_mut().write_all(body.as_bytes()).ok()?;
        reader.get_mut().flush().ok()?;
    }
}
