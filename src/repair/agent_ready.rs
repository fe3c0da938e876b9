//! Waits until the node's agent is ready. While the plugin is not installed, each deleted pod
//! would be replaced by another stranded pod.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::Shared;

/// Time between two requests to an agent that is not ready.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for connecting, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Number of bytes read of a response; status line and reason are shorter.
const MAX_RESPONSE_BYTES: u64 = 4 << 10;

/// Why the node is not known to be ready.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot request /ready from the agent at {address}: {source}")]
    Request {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("the agent at {address} is not ready: {reason}")]
    NotReady { address: String, reason: String },
}

/// Waits until the agent at `address` (`host:port`) is ready. Returns `false` if the queue is
/// closed first.
pub fn wait_until_ready(address: &str, shared: &Shared) -> bool {
    let mut is_logged = false;
    while let Err(error) = ready(address) {
        if !is_logged {
            shared.metrics.agent_waits.inc();
            tracing::warn!("Repairs are paused: {error}");
            is_logged = true;
        }
        if shared.queue.is_closed_within(POLL_INTERVAL) {
            return false;
        }
    }
    true
}

/// Requests `/ready` from the agent at `address` (`host:port`). Returns `Ok` on status 200.
fn ready(address: &str) -> Result<(), Error> {
    let response = request(address)
        .map_err(|source| Error::Request { address: address.to_owned(), source })?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let body = body.trim();
    let status_line = head.lines().next().unwrap_or_default();
    let reason = match body {
        "" if status_line.is_empty() => "empty response",
        "" => status_line,
        // [`Error::NotReady`] already says "not ready".
        body => body.strip_prefix("not ready: ").unwrap_or(body),
    };
    Err(Error::NotReady { address: address.to_owned(), reason: reason.to_owned() })
}

/// Sends the request to the first of the address's IP addresses that accepts a connection.
fn request(address: &str) -> io::Result<String> {
    let mut result = Err(io::Error::other("the host name has no IP address"));
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return exchange(stream),
            Err(error) => result = Err(error),
        }
    }
    result
}

fn exchange(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn serving(response: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(response.as_bytes());
        });
        address
    }

    #[test]
    fn the_agent_is_ready_only_at_status_200() {
        assert!(ready(&serving("HTTP/1.1 200 OK\r\n\r\nready\n")).is_ok());
        for (response, reason) in [
            ("HTTP/1.1 500 X\r\n\r\nnot ready: no binary\n", " is not ready: no binary"),
            ("HTTP/1.1 503 Unavailable\r\n\r\n", "HTTP/1.1 503 Unavailable"),
            ("", "not ready: empty response"),
            ("nonsense 200", "is not ready"),
        ] {
            let error = ready(&serving(response)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_unreachable_agent_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(matches!(ready(&address), Err(Error::Request { .. })));
        assert!(matches!(ready("no port"), Err(Error::Request { .. })));
    }
}
