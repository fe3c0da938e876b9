//! Responses of a fake API server, and the faults of its connections.

use std::io;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::server::Connection;

/// What the fake API server does instead of sending its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFault {
    /// Sends nothing, and keeps the connection open.
    Hang,
    /// Closes the connection without a response.
    Close,
    /// Sends half of the body, and closes the connection.
    Cut,
    /// Sends the body with a pause of 100 ms after each byte.
    Drip,
    /// Sends a body that never ends.
    Endless,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends this status, with a `Retry-After` of this number of seconds.
    Status(u16, u64),
    /// Sends the right response after this number of milliseconds.
    Slow(u64),
}

pub struct Response {
    pub code: u16,
    pub body: String,
    pub fault: Option<ApiFault>,
}

impl Response {
    pub fn new(code: u16, body: impl ToString) -> Response {
        Response { code, body: body.to_string(), fault: None }
    }

    /// Returns an error response as Kubernetes' `Status`, with the reason for this code.
    pub fn refusal(code: u16, message: &str) -> Response {
        let reason = match code {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            _ => "",
        };
        let body = json!({
            "kind": "Status", "metadata": {}, "code": code, "reason": reason, "message": message,
        });
        Response::new(code, body)
    }

    pub fn status(code: u16) -> Response {
        match code {
            401 => Response::refusal(code, "Unauthorized"),
            503 => Response::refusal(code, "the server is currently unable to handle the request"),
            _ => Response::refusal(code, &format!("says {code}")),
        }
    }

    /// Sends the response, or does what its fault says.
    pub(super) fn send(&self, connection: &mut Connection) -> io::Result<()> {
        let code = self.code;
        let body = self.body.as_bytes();
        match self.fault {
            None => connection.send_response(code, body),
            Some(ApiFault::Slow(ms)) => {
                thread::sleep(Duration::from_millis(ms));
                connection.send_response(code, body)
            }
            Some(ApiFault::Hang) => Ok(()),
            Some(ApiFault::Close) => {
                connection.close();
                Ok(())
            }
            Some(ApiFault::Cut) => {
                connection.send_part(code, body.len(), "", &body[..body.len() / 2])?;
                connection.close();
                Ok(())
            }
            Some(ApiFault::Drip) => {
                connection.send_part(code, body.len(), "", b"")?;
                for byte in body {
                    connection.send(&[*byte])?;
                    thread::sleep(Duration::from_millis(100));
                }
                Ok(())
            }
            Some(ApiFault::Endless) => {
                connection.send_chunked_head()?;
                let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
                loop {
                    connection.send(chunk.as_bytes())?;
                }
            }
            Some(ApiFault::Garbage) => connection.send(b"SSH-2.0-x\r\n\r\n"),
            Some(ApiFault::Status(code, seconds)) => {
                connection.send_part(code, 0, &format!("Retry-After: {seconds}\r\n"), b"")
            }
        }
    }
}
