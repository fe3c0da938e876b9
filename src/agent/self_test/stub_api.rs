//! Stub of the Kubernetes API server for a self-test. It listens on loopback and returns one meshed
//! pod: the plugin reads the pod that it is called for, and the cluster's API server has no object
//! for the scratch pod.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket;
use serde_json::json;

/// Time-out of reading a request, and of writing its response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest request that gets a response, in bytes.
const REQUEST_LIMIT: usize = 16 << 10;

/// The listening stub API server.
pub struct StubApi {
    listener: TcpListener,
    address: SocketAddr,
}

impl StubApi {
    /// Listens on a free port of loopback.
    pub fn open() -> io::Result<StubApi> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        Ok(StubApi { listener, address })
    }

    /// URL for the kubeconfig of the self-test.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Responds to requests until [`StubApi::close`].
    pub fn run(&self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // If the plugin gets no response, its ADD fails and the self-test reports that.
            let _ = respond(stream);
        }
    }

    /// Ends [`StubApi::run`] on its thread.
    pub fn close(&self) {
        let _ = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
    }
}

/// Reads one request and responds to it.
fn respond(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut chunk)?;
        if read == 0 || request.len() > REQUEST_LIMIT {
            return Ok(());
        }
        request.extend_from_slice(&chunk[..read]);
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let body = object(&String::from_utf8_lossy(line));
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.shutdown(Shutdown::Write)
}

/// Returns the scratch pod or its Namespace, with the names in the path of `request`.
fn object(request: &str) -> String {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut segments = path.trim_start_matches("/api/v1/namespaces/").split('/');
    let namespace = segments.next();
    let object = match (segments.next(), segments.next()) {
        (Some("pods"), Some(name)) => json!({
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
        }),
        _ => json!({"metadata": {"name": namespace}}),
    };
    object.to_string()
}
