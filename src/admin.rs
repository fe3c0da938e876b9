//! The HTTP server for `/live`, `/ready` and `/metrics` of the agent and the repair controller, and
//! for `/status` of the agent.
//!
//! One thread serves all clients in one poll loop without blocking on any of them, so a slow
//! client does not delay the kubelet's probe. Each client has [`CLIENT_TIMEOUT`].

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, setsockopt, socket,
    sockopt,
};

/// Longest duration of a connection, from accept to close.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest number of open connections. A further one replaces the oldest.
const MAX_CLIENTS: usize = 32;
/// Largest request that is read, in bytes.
const REQUEST_LIMIT: usize = 8 << 10;
/// Time without accepting connections after an accept has failed. If no file descriptor is free,
/// the listener stays readable, and the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Number of reads and writes for one client before the next client is served.
const STEPS_PER_TURN: usize = 16;
/// Stack size of the server's thread, in bytes. The handlers only format text.
const STACK_SIZE: usize = 256 << 10;

/// Content type of `/live`, `/ready` and errors.
const TEXT: &str = "text/plain; charset=utf-8";
/// Content type of `/status`.
const JSON: &str = "application/json";
/// Content type of `/metrics`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The program's handlers. The server calls them for each request on its own thread, so they
/// should not block.
pub struct Handlers {
    /// Handler of `/live`. `Err` has the reason why the kubelet should restart the program, for the
    /// body of the 500 response.
    pub live: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Handler of `/ready`. `Err` has the reason why the program is not ready, for the body of the
    /// 500 response. `Ok` may have a note for the body of the 200 response.
    pub ready: Box<dyn Fn() -> Result<Option<String>, String> + Send + Sync>,
    /// Handler of `/metrics`. Returns the whole OpenMetrics text, including `# EOF`.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Handler of `/status`. Returns a JSON object. `None`: the path does not exist.
    pub status: Option<Box<dyn Fn() -> String + Send + Sync>>,
}

/// Listens on `address`. `[::]` means all addresses of both families, or of IPv4 if the kernel has
/// no IPv6.
///
/// The kubelet probes the pod's first address, whose family depends on the cluster.
pub fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    match address {
        SocketAddr::V6(address) if address.ip().is_unspecified() => match dual_stack(address) {
            Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
            }
            listener => Ok(listener?),
        },
        address => TcpListener::bind(address),
    }
}

/// Listens on all addresses of both families, also if the sysctl `net.ipv6.bindv6only` is 1.
fn dual_stack(address: SocketAddrV6) -> Result<TcpListener, Errno> {
    let fd = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::Ipv6V6Only, &false)?;
    // A port with connections in TIME_WAIT is free, as in `TcpListener::bind`.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrIn6::from(address))?;
    listen(&fd, Backlog::MAXCONN)?;
    Ok(TcpListener::from(fd))
}

/// Serves `listener` on its own thread until the process exits.
pub fn serve(listener: TcpListener, handlers: Handlers) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    thread::Builder::new()
        .name("admin".into())
        .stack_size(STACK_SIZE)
        .spawn(move || run(&listener, &handlers))
}

fn run(listener: &TcpListener, handlers: &Handlers) {
    // Oldest first.
    let mut clients: VecDeque<Client> = VecDeque::new();
    // Set while accepting connections fails.
    let mut paused: Option<Instant> = None;
    loop {
        let wake = clients.front().map(|client| client.deadline);
        let wake = wake.into_iter().chain(paused).min();
        // Only ENOMEM and EINTR are possible. The deadlines below still apply.
        if wait(listener, paused.is_some(), &clients, wake).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
        let now = Instant::now();
        clients.retain_mut(|client| now < client.deadline && client.advance(handlers).is_ok());
        if paused.is_none_or(|until| until <= now) {
            let accepted = accept(listener, &mut clients);
            match (&accepted, paused) {
                (Err(error), None) => {
                    tracing::warn!("admin server: cannot accept a connection: {error}");
                }
                (Ok(()), Some(_)) => tracing::info!("admin server: accepts connections again"),
                _ => {}
            }
            paused = accepted.is_err().then(|| Instant::now() + ACCEPT_PAUSE);
        }
    }
}

/// Waits for a client or a new connection, at most until `wake`.
fn wait(
    listener: &TcpListener,
    paused: bool,
    clients: &VecDeque<Client>,
    wake: Option<Instant>,
) -> nix::Result<i32> {
    let timeout = wake.map_or(PollTimeout::NONE, |wake| {
        let left = wake.saturating_duration_since(Instant::now());
        // Rounded up, as a timeout of 0 ms would make the loop spin.
        PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
    });
    let mut fds: Vec<PollFd<'_>> = clients
        .iter()
        .map(|client| PollFd::new(client.stream.as_fd(), client.awaited_event()))
        .collect();
    if !paused {
        fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
    }
    poll(&mut fds, timeout)
}

/// Accepts all waiting connections. Fails if the kernel refuses, e.g. because no file descriptor is
/// free.
fn accept(listener: &TcpListener, clients: &mut VecDeque<Client>) -> io::Result<()> {
    for _ in 0..MAX_CLIENTS {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                // The client closed the connection before it was accepted.
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            },
        };
        if stream.set_nonblocking(true).is_err() {
            continue;
        }
        if clients.len() == MAX_CLIENTS {
            clients.pop_front();
            tracing::debug!("admin server: too many clients, closing the oldest");
        }
        clients.push_back(Client {
            stream,
            deadline: Instant::now() + CLIENT_TIMEOUT,
            state: State::Reading(Vec::new()),
        });
    }
    Ok(())
}

struct Client {
    stream: TcpStream,
    deadline: Instant,
    state: State,
}

enum State {
    /// The part of the request that has arrived.
    Reading(Vec<u8>),
    /// The response and the number of its bytes that are written.
    Writing(Vec<u8>, usize),
    /// The response is written. Closing a connection with unread data would reset it, and the
    /// client might lose the response. So the server reads until the client closes.
    Closing,
}

impl Client {
    /// Returns the poll event for which the server waits on this connection.
    fn awaited_event(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Closing => PollFlags::POLLIN,
            State::Writing(..) => PollFlags::POLLOUT,
        }
    }

    /// Reads and writes as much as possible without blocking. Fails when the connection is to be
    /// closed.
    fn advance(&mut self, handlers: &Handlers) -> io::Result<()> {
        for _ in 0..STEPS_PER_TURN {
            let Err(error) = self.step(handlers) else { continue };
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(()),
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
        Ok(())
    }

    fn step(&mut self, handlers: &Handlers) -> io::Result<()> {
        let mut chunk = [0; 1024];
        match &mut self.state {
            State::Reading(request) => {
                let read = at_least_one(self.stream.read(&mut chunk)?)?;
                request.extend_from_slice(&chunk[..read]);
                if let Some(response) = respond(request, handlers) {
                    self.state = State::Writing(response.into_bytes(), 0);
                }
            }
            State::Writing(response, written) => {
                *written += at_least_one(self.stream.write(&response[*written..])?)?;
                if *written == response.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Closing;
                }
            }
            State::Closing => drop(at_least_one(self.stream.read(&mut chunk)?)?),
        }
        Ok(())
    }
}

/// Fails if `count` is 0, the end of the stream.
fn at_least_one(count: usize) -> io::Result<usize> {
    match count {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// Returns the response to a request, or `None` while the request is incomplete.
fn respond(request: &[u8], handlers: &Handlers) -> Option<String> {
    let is_complete = request.windows(4).any(|end| end == b"\r\n\r\n");
    if !is_complete && request.len() < REQUEST_LIMIT {
        return None;
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let words: Vec<&str> = str::from_utf8(line).unwrap_or("").split(' ').collect();
    let (method, target) = match words[..] {
        _ if !is_complete => return Some(head("431 Request Header Fields Too Large", TEXT, 0)),
        [method, target, version] if version.starts_with("HTTP/1.") => (method, target),
        _ => return Some(head("400 Bad Request", TEXT, 0)),
    };
    let health = |result: Result<String, String>| match result {
        Ok(text) => ("200 OK", TEXT, text),
        Err(text) => ("500 Internal Server Error", TEXT, text),
    };
    let path = target.split('?').next().unwrap_or(target);
    let (status, content_type, body) = match (path, &handlers.status) {
        ("/live", _) => health(match (handlers.live)() {
            Ok(()) => Ok("alive\n".to_owned()),
            Err(reason) => Err(format!("not alive: {reason}\n")),
        }),
        ("/ready", _) => health(match (handlers.ready)() {
            Ok(None) => Ok("ready\n".to_owned()),
            Ok(Some(note)) => Ok(format!("ready ({note})\n")),
            Err(reason) => Err(format!("not ready: {reason}\n")),
        }),
        ("/metrics", _) => ("200 OK", OPENMETRICS, (handlers.metrics)()),
        ("/status", Some(status)) => ("200 OK", JSON, status()),
        _ => return Some(head("404 Not Found", TEXT, 0)),
    };
    Some(match method {
        "GET" => head(status, content_type, body.len()) + &body,
        "HEAD" => head(status, content_type, body.len()),
        _ => head("405 Method Not Allowed\r\nAllow: GET, HEAD", TEXT, 0),
    })
}

fn head(status: &str, content_type: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests;
