//! Waits until the node's agent is ready. While the plugin is not installed, each deleted pod
//! would be replaced by another stranded pod.

use std::thread;
use std::time::Duration;

use super::Shared;
use crate::kube::plain_http;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(1);

/// Waits until the agent is ready, if the settings name its address.
pub fn wait_until_ready(shared: &Shared) {
    let Some(address) = &shared.settings.agent_addr else { return };
    let Err(why) = ready(address) else { return };
    tracing::warn!("Repairs are paused: {why}");
    while ready(address).is_err() {
        thread::sleep(POLL_INTERVAL);
    }
}

fn ready(address: &str) -> Result<(), String> {
    let (status, body) = plain_http::get(&format!("http://{address}/ready"), TIMEOUT)
        .map_err(|error| format!("the agent at {address} does not respond: {error}"))?;
    let why = match body.trim() {
        _ if status == 200 => return Ok(()),
        "" => format!("HTTP {status}"),
        why => why.strip_prefix("not ready: ").unwrap_or(why).to_owned(),
    };
    Err(format!("the agent at {address} is not ready: {why}"))
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
            let error = ready(&address).err();
            let contains = |reason| error.as_ref().is_some_and(|error| error.contains(reason));
            assert!(reason.map_or(error.is_none(), contains), "{response}: {error:?}");
        }
        for address in ["127.0.0.1:1", "no port"] {
            let error = ready(address).unwrap_err();
            assert!(error.contains(" does not respond: "), "{error}");
        }
    }
}
