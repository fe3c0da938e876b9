//! Stub of the Kubernetes API server for a self-test. It listens on loopback and returns one meshed
//! pod: the plugin reads the pod that it is called for, and the cluster's API server has no object
//! for the scratch pod.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use nix::sys::socket;
use serde_json::{Value, json};

/// Time-out of reading a request, and of writing its response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest request that is read, in bytes.
const REQUEST_LIMIT: u64 = 16 << 10;
/// Stack size of the server's thread, in bytes.
const STACK: usize = 128 << 10;

/// The listening stub API server. It ends when this is dropped.
pub struct StubApi(TcpListener);

impl StubApi {
    /// Responds to requests on a free port of loopback.
    pub fn start() -> io::Result<StubApi> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stub = StubApi(listener.try_clone()?);
        let thread = thread::Builder::new().name("self-test api".into()).stack_size(STACK);
        thread.spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                // If the plugin gets no response, its ADD fails and the self-test reports that.
                let _ = respond(&stream);
            }
        })?;
        Ok(stub)
    }

    /// URL for the kubeconfig of the self-test.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.0.local_addr()?))
    }
}

impl Drop for StubApi {
    /// Ends `accept` on the server's thread.
    fn drop(&mut self) {
        let _ = socket::shutdown(self.0.as_raw_fd(), socket::Shutdown::Both);
    }
}

/// Reads one request and responds to it.
fn respond(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut lines = BufReader::new(stream.take(REQUEST_LIMIT)).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let body = object(&request).to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.shutdown(Shutdown::Write)
}

/// Returns the scratch pod or its Namespace, with the names in the path of `request`.
fn object(request: &str) -> Value {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let mut segments = path.trim_start_matches("/api/v1/namespaces/").split('/');
    let namespace = segments.next();
    match (segments.next(), segments.next()) {
        (Some("pods"), Some(name)) => json!({
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
        }),
        _ => json!({"metadata": {"name": namespace}}),
    }
}
