//! Whether the agent of this node says that the node is verified. A pod that is made
//! anew before would be stranded again.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// For connecting, and for each read and write.
const PATIENCE: Duration = Duration::from_secs(1);
/// The status line and a reason fit.
const ANSWER_LIMIT: u64 = 4 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot ask the agent at {address}: {source}")]
    Ask {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("the agent at {address} is not ready: {answer}")]
    NotReady { address: String, answer: String },
}

/// Asks `/ready` of the agent at `address` (`host:port`).
pub fn ready(address: &str) -> Result<(), Error> {
    let answer = ask(address).map_err(|source| Error::Ask {
        address: address.to_owned(),
        source,
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(());
    }
    let body = body.trim();
    let line = head.lines().next().unwrap_or_default();
    Err(Error::NotReady {
        address: address.to_owned(),
        answer: if body.is_empty() { line } else { body }.to_owned(),
    })
}

fn ask(address: &str) -> io::Result<String> {
    let mut result = Err(io::Error::other("the name has no address"));
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return exchange(stream),
            Err(error) => result = Err(error),
        }
    }
    result
}

fn exchange(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /ready HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer.as_bytes());
        });
        address
    }

    #[test]
    fn only_a_200_opens_the_gate() {
        assert!(ready(&answering("HTTP/1.1 200 OK\r\n\r\nready\n")).is_ok());
        for (answer, says) in [
            (
                "HTTP/1.1 500 X\r\n\r\nnot ready: no binary\n",
                "not ready: no binary",
            ),
            (
                "HTTP/1.1 503 Unavailable\r\n\r\n",
                "HTTP/1.1 503 Unavailable",
            ),
            ("", "not ready: "),
            ("nonsense 200", "is not ready"),
        ] {
            let error = ready(&answering(answer)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn an_agent_that_is_not_there_keeps_it_shut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(matches!(ready(&address), Err(Error::Ask { .. })));
        assert!(matches!(ready("no port"), Err(Error::Ask { .. })));
    }
}
