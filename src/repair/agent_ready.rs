//! Asks the node's agent whether it is ready. Pods are repaired only then: while the plugin is not
//! installed, each deleted pod would be replaced by another stranded pod.

use std::thread;
use std::time::Duration;

use crate::kube::plain_http;

/// Time for which a response of the agent is valid. An agent that is not ready is asked again after
/// this time.
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Why the agent counts as not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error("the agent at {address} does not respond: {error}")]
    NoResponse { address: String, error: String },
    #[error("the agent at {address} is not ready: {why}")]
    Unready { address: String, why: String },
}

/// Asks the agent at `address`, which is `host:port`.
pub fn ask(address: &str) -> Result<(), NotReady> {
    let address = address.to_owned();
    let (status, body) = match plain_http::get(&format!("http://{address}/ready"), TIMEOUT) {
        Ok(response) => response,
        Err(error) => return Err(NotReady::NoResponse { address, error: error.to_string() }),
    };
    if status == 200 {
        return Ok(());
    }
    Err(NotReady::Unready { address, why: unready_reason(status, &body) })
}

/// Returns the reason in the body of `/ready`, or the status if the body is empty.
fn unready_reason(status: u16, body: &str) -> String {
    let body = body.trim();
    if body.is_empty() {
        return format!("HTTP {status}");
    }
    body.strip_prefix("not ready: ").unwrap_or(body).to_owned()
}

/// Waits until the agent is ready.
pub fn wait_until_ready(address: &str) {
    let Err(why) = ask(address) else { return };
    tracing::warn!("Repairs are paused: {why}");
    while ask(address).is_err() {
        thread::sleep(ASK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_agent_is_ready_only_at_status_200() {
        for (response, reason) in [
            ("HTTP/1.1 200 OK\r\n\r\nready\n", None),
            ("HTTP/1.1 500 X\r\n\r\nnot ready: no binary\n", Some(" is not ready: no binary")),
            ("HTTP/1.1 503 Unavailable\r\n\r\n", Some(" is not ready: HTTP 503")),
            ("", Some(" does not respond: ")),
            ("nonsense 200", Some(" does not respond: ")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(response.as_bytes());
            });
            match (ask(&address), reason) {
                (Ok(()), None) => {}
                (Err(error), Some(reason)) if error.to_string().contains(reason) => {}
                (result, _) => panic!("{response}: {result:?}"),
            }
        }
        for address in ["127.0.0.1:1", "no port"] {
            let error = ask(address).unwrap_err().to_string();
            assert!(error.contains(" does not respond: "), "{error}");
        }
    }
}
