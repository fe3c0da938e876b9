//! HTTP/1.1 connections of the fake API server, with or without TLS.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Names and values. The names are in lower case.
    pub headers: Vec<(String, String)>,
    /// `Null` if the body is empty or not JSON.
    pub body: Value,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        let mut headers = self.headers.iter();
        headers.find(|(header, _)| header == name).map_or("", |(_, value)| value)
    }

    pub fn token(&self) -> &str {
        self.header("authorization").strip_prefix("Bearer ").unwrap_or_default()
    }

    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }

    pub fn is_list(&self) -> bool {
        self.method == "GET" && !self.is_watch() && self.path.contains("/pods?fieldSelector=")
    }

    pub fn is_event(&self) -> bool {
        self.path.ends_with("/events")
    }

    pub fn is_eviction(&self) -> bool {
        self.path.ends_with("/eviction")
    }
}

/// A connection to one client. Its methods fail once the connection has ended.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    socket: TcpStream,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Connection {
    pub fn new(socket: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        // Go's servers set this option. Without the option, a response waits up to 40 ms for the
        // client to acknowledge the end of the TLS handshake.
        socket.set_nodelay(true)?;
        let kept_socket = socket.try_clone()?;
        let stream: Box<dyn Stream> = match tls {
            Some(config) => {
                let session = ServerConnection::new(config).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(session, socket))
            }
            None => Box::new(socket),
        };
        Ok(Connection { stream: BufReader::new(stream), socket: kept_socket })
    }

    pub fn read_request(&mut self) -> io::Result<Request> {
        let line = self.read_line()?;
        let mut words = line.split_whitespace();
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(io::Error::other("no method or no path"));
        };
        let mut request = Request {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Value::Null,
        };
        while let Some((name, value)) = self.read_line()?.split_once(": ") {
            request.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length = request.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        request.body = serde_json::from_slice(&body).unwrap_or_default();
        Ok(request)
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let length = self.stream.read_line(&mut line)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim().to_owned())
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Sends the head of a response, and `part`, the beginning of a body of `length` bytes.
    /// `extra_header` is a further header line with its end, or empty.
    pub fn send_part(
        &mut self,
        code: u16,
        length: usize,
        extra_header: &str,
        part: &[u8],
    ) -> io::Result<()> {
        let head = format!("HTTP/1.1 {code} x\r\n{extra_header}Content-Length: {length}\r\n\r\n");
        self.send(&[head.as_bytes(), part].concat())
    }

    pub fn send_response(&mut self, code: u16, body: impl AsRef<[u8]>) -> io::Result<()> {
        let body = body.as_ref();
        self.send_part(code, body.len(), "", body)
    }

    /// Closes the connection in both directions. No request can be read afterwards.
    pub fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub fn send_chunked_head(&mut self) -> io::Result<()> {
        self.send(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n")
    }
}

/// A self-signed certificate, which is its own CA.
pub struct Identity {
    pub config: Arc<ServerConfig>,
    pub ca: String,
}

impl Identity {
    pub fn new(params: &CertificateParams) -> Self {
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
        Identity { config: Arc::new(config), ca: cert.pem() }
    }

    pub fn of_localhost() -> Self {
        Identity::new(&CertificateParams::new(["127.0.0.1".into()]).unwrap())
    }
}
