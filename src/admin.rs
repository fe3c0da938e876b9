//! `/live`, `/ready` and `/metrics`, for the agent and for the repair controller.
//!
//! One thread and one poll loop. No client is ever waited for, so none can keep the
//! kubelet's probe from being answered; each has [`PATIENCE`] to come and go.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long one client may take for all of its exchange.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many clients are served side by side; one more and the oldest is dropped.
const CLIENTS: usize = 32;
/// The longest request that is read, in bytes.
const REQUEST_LIMIT: usize = 8 << 10;
/// How long to leave the listener alone after an accept that failed: without file
/// descriptors it stays readable, and the loop would spin.
const PAUSE: Duration = Duration::from_millis(200);
/// How many reads or writes one client gets before it is another's turn.
const TURN: usize = 16;
/// The handlers only format text.
const STACK: usize = 256 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the owner of the server has to say; both are asked anew for each request, on
/// the server's thread, and should not block.
pub struct Answers {
    /// `Err` says what is missing; it becomes the body of the 500. `Ok` may have a remark for
    /// the body of the 200.
    pub ready: Box<dyn Fn() -> Result<Option<String>, String> + Send + Sync>,
    /// The whole OpenMetrics text, with its `# EOF`.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
}

/// Answers on `listener` for the rest of the process, on a thread of its own.
pub fn serve(listener: TcpListener, answers: Answers) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    thread::Builder::new()
        .name("admin".into())
        .stack_size(STACK)
        .spawn(move || run(&listener, &answers))
}

fn run(listener: &TcpListener, answers: &Answers) {
    // Oldest first.
    let mut clients: VecDeque<Client> = VecDeque::new();
    let mut paused: Option<Instant> = None;
    loop {
        let wake = clients.front().map(|client| client.deadline);
        let wake = wake.into_iter().chain(paused).min();
        // An error is ENOMEM or a signal; the deadlines below go on without it.
        if wait(listener, paused.is_some(), &clients, wake).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
        let now = Instant::now();
        clients.retain_mut(|client| now < client.deadline && client.advance(answers).is_ok());
        if paused.is_none_or(|until| until <= now) {
            paused = accept(listener, &mut clients)
                .is_err()
                .then(|| Instant::now() + PAUSE);
        }
    }
}

/// Waits until something can be done, at most until `wake`.
fn wait(
    listener: &TcpListener,
    paused: bool,
    clients: &VecDeque<Client>,
    wake: Option<Instant>,
) -> nix::Result<i32> {
    let timeout = wake.map_or(PollTimeout::NONE, |wake| {
        let left = wake.saturating_duration_since(Instant::now());
        // Rounded up, or the last millisecond would spin.
        PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
    });
    let mut fds: Vec<PollFd<'_>> = clients
        .iter()
        .map(|client| PollFd::new(client.stream.as_fd(), client.wants()))
        .collect();
    if !paused {
        fds.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
    }
    poll(&mut fds, timeout)
}

fn accept(listener: &TcpListener, clients: &mut VecDeque<Client>) -> io::Result<()> {
    for _ in 0..CLIENTS {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // The client went away before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!("admin server: cannot accept a connection: {error}");
                return Err(error);
            }
        };
        if stream.set_nonblocking(true).is_err() {
            continue;
        }
        if clients.len() == CLIENTS {
            clients.pop_front();
            tracing::debug!("admin server: too many clients, the oldest is dropped");
        }
        clients.push_back(Client {
            stream,
            deadline: Instant::now() + PATIENCE,
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
    /// The request as far as it is there.
    Reading(Vec<u8>),
    /// The answer and how much of it is gone.
    Writing(Vec<u8>, usize),
    /// The answer is gone; closing before the client does would reset the connection
    /// when there is something unread, and the client might lose the answer.
    Closing,
}

impl Client {
    fn wants(&self) -> PollFlags {
        match self.state {
            State::Reading(_) | State::Closing => PollFlags::POLLIN,
            State::Writing(..) => PollFlags::POLLOUT,
        }
    }

    /// Goes on as far as possible without waiting; an error means that it is over.
    fn advance(&mut self, answers: &Answers) -> io::Result<()> {
        for _ in 0..TURN {
            match self.step(answers) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn step(&mut self, answers: &Answers) -> io::Result<()> {
        let mut chunk = [0; 1024];
        match &mut self.state {
            State::Reading(request) => {
                let read = some(self.stream.read(&mut chunk)?)?;
                request.extend_from_slice(&chunk[..read]);
                if let Some(answer) = answer(request, answers) {
                    self.state = State::Writing(answer, 0);
                }
            }
            State::Writing(answer, gone) => {
                *gone += some(self.stream.write(&answer[*gone..])?)?;
                if *gone == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Closing;
                }
            }
            State::Closing => {
                some(self.stream.read(&mut chunk)?)?;
            }
        }
        Ok(())
    }
}

fn some(count: usize) -> io::Result<usize> {
    match count {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

/// The answer to what has been read, or `None` while the request is not whole.
fn answer(request: &[u8], answers: &Answers) -> Option<Vec<u8>> {
    let whole = request.windows(4).any(|end| end == b"\r\n\r\n");
    if !whole && request.len() < REQUEST_LIMIT {
        return None;
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let words: Vec<&str> = str::from_utf8(line).unwrap_or("").split(' ').collect();
    let (method, target) = match words[..] {
        _ if !whole => return Some(response("431 Request Header Fields Too Large", "")),
        [method, target, version] if version.starts_with("HTTP/1.") => (method, target),
        _ => return Some(response("400 Bad Request", "")),
    };
    let path = target.split('?').next().unwrap_or(target);
    if !matches!(path, "/live" | "/ready" | "/metrics") {
        return Some(response("404 Not Found", ""));
    }
    if !matches!(method, "GET" | "HEAD") {
        return Some(response("405 Method Not Allowed\r\nAllow: GET, HEAD", ""));
    }
    let (status, kind, body) = match path {
        "/metrics" => ("200 OK", OPENMETRICS, (answers.metrics)()),
        "/ready" => match (answers.ready)() {
            Ok(None) => ("200 OK", TEXT, "ready\n".to_owned()),
            Ok(Some(remark)) => ("200 OK", TEXT, format!("ready ({remark})\n")),
            Err(reason) => (
                "500 Internal Server Error",
                TEXT,
                format!("not ready: {reason}\n"),
            ),
        },
        _ => ("200 OK", TEXT, "alive\n".to_owned()),
    };
    let mut whole = head(status, kind, body.len());
    if method == "GET" {
        whole.push_str(&body);
    }
    Some(whole.into_bytes())
}

fn response(status: &str, body: &str) -> Vec<u8> {
    (head(status, TEXT, body.len()) + body).into_bytes()
}

fn head(status: &str, kind: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests;
