//! The HTTP server for `/live`, `/ready` and `/metrics` of the agent and the repair controller, and
//! for `/status` of the agent.
//!
//! Each client has a thread of its own, so a slow client does not delay the kubelet's probe.

use std::collections::VecDeque;
use std::io::ErrorKind::AddrInUse;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// Longest time that a client may be silent before its connection is closed.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of open connections. If there are more, the oldest one is closed.
const MAX_CLIENTS: usize = 32;
/// Largest request that is read, in bytes.
const REQUEST_LIMIT: u64 = 8 << 10;
/// Pause after an accept has failed. Without a pause the server would spin if no file descriptor is
/// free, because the next accept would fail at once, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Stack size of each thread, in bytes. It is small, because the handlers only format text.
const STACK_SIZE: usize = 256 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The program's handlers. The server calls them on the client's thread, for each request.
pub struct Handlers {
    /// `Err`: why the kubelet should restart the program, which is the body of the response.
    pub live: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// `Err`: why the program is not ready. `Ok`: an optional note. Each is the response's body.
    pub ready: Box<dyn Fn() -> Result<Option<String>, String> + Send + Sync>,
    /// Returns the whole OpenMetrics text, including `# EOF`.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Returns a JSON object. `None`: the path does not exist.
    pub status: Option<Box<dyn Fn() -> String + Send + Sync>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct Error {
    address: SocketAddr,
    source: io::Error,
}

/// Serves `address` until the process exits. Returns the address, with the port that the kernel
/// chose for port 0.
pub fn serve(address: SocketAddr, handlers: Handlers) -> Result<SocketAddr, Error> {
    start(address, handlers).map_err(|source| Error { address, source })
}

fn start(address: SocketAddr, handlers: Handlers) -> io::Result<SocketAddr> {
    let listener = listen(address)?;
    let address = listener.local_addr()?;
    tracing::info!("serving /live, /ready and /metrics on {address}");
    spawn_thread(move || accept_clients(&listener, &Arc::new(handlers)))?;
    Ok(address)
}

/// Listens on `address`. The kubelet probes the pod's first address, whose family depends on the
/// cluster, so `[::]` has to accept connections of both families. It does, because the sysctl
/// `net.ipv6.bindv6only` has its default 0 in a pod's netns. If the kernel has no IPv6, `[::]` is
/// replaced by all addresses of IPv4.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        result => result,
    }
}

fn spawn_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("admin".into()).stack_size(STACK_SIZE);
    thread.spawn(work).map(drop)
}

/// Accepts connections, and starts a thread for each of them. Does not return.
fn accept_clients(listener: &TcpListener, handlers: &Arc<Handlers>) {
    // The open connections, the oldest first. Each connection is owned by its thread, so a weak
    // reference is enough here, and shows when the thread has ended.
    let mut clients: VecDeque<Weak<TcpStream>> = VecDeque::new();
    loop {
        let stream = Arc::new(accept(listener));
        clients.retain(|client| client.strong_count() > 0);
        if clients.len() == MAX_CLIENTS {
            close_oldest(&mut clients);
        }
        clients.push_back(Arc::downgrade(&stream));
        let thread_stream = Arc::clone(&stream);
        let thread_handlers = Arc::clone(handlers);
        // An error of `exchange` needs no handling, because the connection is closed in any case.
        let work = move || drop(exchange(&thread_stream, &thread_handlers));
        if spawn_thread(work).is_err() {
            // The kernel refuses a new thread. This thread responds instead, so that the kubelet's
            // probes do not fail on a busy node.
            let _ = exchange(&stream, handlers);
        }
    }
}

/// Closes the oldest of the connections, unless its thread has ended meanwhile.
fn close_oldest(clients: &mut VecDeque<Weak<TcpStream>>) {
    let Some(client) = clients.pop_front() else { return };
    let Some(stream) = client.upgrade() else { return };
    tracing::debug!("admin server: too many clients, closing the oldest");
    let _ = stream.shutdown(Shutdown::Both);
}

/// Waits for the next connection. Logs the first of several failures in a row.
fn accept(listener: &TcpListener) -> TcpStream {
    let mut is_failing = false;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                if is_failing {
                    tracing::info!("admin server: accepts connections again");
                }
                return stream;
            }
            Err(error) => {
                if !is_failing {
                    tracing::warn!("admin server: cannot accept a connection: {error}");
                }
                is_failing = true;
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

/// Reads one request and sends its response. Returns once the client has closed the connection.
fn exchange(mut stream: &TcpStream, handlers: &Handlers) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut reader = BufReader::with_capacity(1 << 10, stream.take(REQUEST_LIMIT));
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let count = reader.read_until(b'\n', &mut head)?;
        if count == 0 {
            break;
        }
    }
    stream.write_all(respond(&head, handlers).as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // Closing a connection with unread data would reset it, and the client might lose the response.
    // So the server reads until the client closes.
    io::copy(&mut stream.take(REQUEST_LIMIT), &mut io::sink())?;
    Ok(())
}

fn respond(head: &[u8], handlers: &Handlers) -> String {
    let Some(path) = requested_path(head) else {
        return response("400 Bad Request", TEXT, "");
    };
    if path == "/status"
        && let Some(status) = &handlers.status
    {
        return response("200 OK", JSON, &status());
    }
    match path {
        "/live" => probe_response("alive", (handlers.live)().map(|()| None)),
        "/ready" => probe_response("ready", (handlers.ready)()),
        "/metrics" => response("200 OK", OPENMETRICS, &(handlers.metrics)()),
        _ => response("404 Not Found", TEXT, ""),
    }
}

/// Returns the path of a GET request without the query. `None` if the head of the request is
/// incomplete or invalid, or has another method than GET.
fn requested_path(head: &[u8]) -> Option<&str> {
    if !head.ends_with(b"\r\n\r\n") {
        return None;
    }
    let line = head.split(|byte| *byte == b'\r').next()?;
    let words: Vec<&str> = str::from_utf8(line).ok()?.split(' ').collect();
    match words[..] {
        ["GET", target, version] if version.starts_with("HTTP/1.") => target.split('?').next(),
        _ => None,
    }
}

/// Returns the response to a probe: `word` and an optional note, or "not `word`" and the reason.
fn probe_response(word: &str, result: Result<Option<String>, String>) -> String {
    match result {
        Ok(None) => response("200 OK", TEXT, &format!("{word}\n")),
        Ok(Some(note)) => response("200 OK", TEXT, &format!("{word} ({note})\n")),
        Err(reason) => {
            response("500 Internal Server Error", TEXT, &format!("not {word}: {reason}\n"))
        }
    }
}

fn response(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n\
         Content-Type: {content_type}\r\n\
         Content-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests;
