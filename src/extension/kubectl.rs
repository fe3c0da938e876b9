//! Requests to the API server through the program `kubectl`.
//!
//! An administrator's kubeconfig can have client certificates, exec plugins, proxies and several
//! merged files. kubectl handles all of them, and every administrator has kubectl, while
//! [`crate::kube`] reads only kubeconfigs with a token. `kubectl proxy` sends the requests, from a
//! socket that only the user can open. So kubectl and its credential plugin start once, not once
//! for each of 500 agents.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::unistd::mkdtemp;

use super::requests::{Api, Error};
use crate::child;
use crate::deadline::Deadline;
use crate::kube::types::ApiStatus;
use crate::quote::one_line;

/// Longest time for the start of `kubectl proxy`, and between two bytes of a response. The first
/// response may take long, because kubectl may have to start a credential plugin first.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest time for a whole response, as a multiple of the time between two bytes, so that a
/// response that sends one byte after the other ends, too.
const RESPONSE_DEADLINES: u32 = 4;
/// Pause between two attempts to open the socket of a `kubectl proxy` that starts.
const START_PAUSE: Duration = Duration::from_millis(5);
/// Longest response of the API server that is read, in bytes.
const RESPONSE_LIMIT: usize = 64 << 20;
/// Size of the parts in which a response is read, in bytes.
const PART: usize = 64 << 10;
/// Shell script that runs its arguments in place of the shell. When `linkerd cni` ends, in whatever
/// way, the pipe at the script's stdin closes. A subshell then removes the directory `$0` and kills
/// the process group, with a credential plugin that hangs. A signal handler could not do so,
/// because none runs after SIGKILL.
const GUARD: &str = r#"exec 3<&0
(read -r _ <&3; /bin/rm -r "$0"; kill -9 0) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-"#;
/// Exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;

#[derive(Debug)]
pub struct Kubectl {
    program: OsString,
    flags: Vec<String>,
    deadline: Duration,
    proxy: OnceLock<Result<Proxy, Error>>,
}

/// A running `kubectl proxy`. Drop ends the process.
#[derive(Debug)]
struct Proxy {
    child: Child,
    /// Directory of the socket and of kubectl's stderr. Only this user can open it.
    dir: PathBuf,
}

impl Kubectl {
    /// `flags` select cluster and user, such as `--context=NAME`.
    pub fn new(flags: Vec<String>) -> Kubectl {
        Kubectl { program: "kubectl".into(), flags, deadline: DEADLINE, proxy: OnceLock::new() }
    }

    /// Starts the proxy, and waits until its socket is open.
    fn start_proxy(&self) -> Result<Proxy, Error> {
        let end = Deadline::after(self.deadline);
        let mut proxy = self.spawn_proxy().map_err(|error| Error::Start(error.to_string()))?;
        while proxy.connect().is_err() {
            // `try_wait` reaps a child that has exited. Its process group, which Drop kills, still
            // exists then, because the guard's subshell belongs to the group.
            if let Ok(Some(status)) = proxy.child.try_wait() {
                return Err(proxy.start_error(status));
            }
            if end.has_passed() {
                return Err(Error::Deadline(self.deadline));
            }
            thread::sleep(START_PAUSE);
        }
        Ok(proxy)
    }

    fn spawn_proxy(&self) -> io::Result<Proxy> {
        let dir = mkdtemp(&env::temp_dir().join("linkerd-cni-XXXXXX"))?;
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(GUARD).arg(&dir).arg(&self.program).args(&self.flags);
        command.arg("proxy").arg("--unix-socket").arg(dir.join("socket"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        command.stderr(File::create(dir.join("stderr"))?);
        Ok(Proxy { child: command.spawn()?, dir })
    }

    /// Sends a request, and reads the response until the connection ends.
    fn exchange(&self, proxy: &Proxy, request: &str) -> Result<Vec<u8>, Error> {
        let mut stream = proxy.connect()?;
        stream.set_write_timeout(Some(self.deadline))?;
        stream.write_all(request.as_bytes()).map_err(|error| self.convert_error(error))?;
        self.read_response(stream)
    }

    fn read_response(&self, mut stream: UnixStream) -> Result<Vec<u8>, Error> {
        let budget = self.deadline * RESPONSE_DEADLINES;
        let end = Deadline::after(budget);
        let mut response = Vec::new();
        let mut part = vec![0; PART];
        stream.set_read_timeout(Some(self.deadline))?;
        while response.len() < RESPONSE_LIMIT {
            if end.has_passed() {
                return Err(Error::Deadline(budget));
            }
            match stream.read(&mut part) {
                Ok(0) => return Ok(response),
                Ok(count) => response.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.convert_error(error)),
            }
        }
        Err(Error::Failed(format!("proxy: a response of more than {RESPONSE_LIMIT} bytes")))
    }

    /// Converts the error of a read or write. A timeout becomes [`Error::Deadline`].
    fn convert_error(&self, error: io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Deadline(self.deadline),
            _ => Error::from(error),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Failed(format!("proxy: {error}"))
    }
}

impl Api for Kubectl {
    /// Sends the request as HTTP/1.0, so that the response ends with the connection.
    fn body(&self, path: &str) -> Result<String, Error> {
        let proxy = match self.proxy.get_or_init(|| self.start_proxy()) {
            Ok(proxy) => proxy,
            Err(error) => return Err(error.clone()),
        };
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let response = self.exchange(proxy, &request)?;
        parse_response(&String::from_utf8_lossy(&response))
    }
}

impl Proxy {
    fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.dir.join("socket"))
    }

    /// Returns why kubectl ended before its socket was open.
    fn start_error(&self, status: ExitStatus) -> Error {
        if status.code() == Some(NOT_FOUND) {
            return Error::Start("not found".to_owned());
        }
        let stderr = fs::read(self.dir.join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&stderr).trim().replace('\n', "; ");
        Error::Failed(one_line(&text))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        child::kill(&mut self.child);
        // The removal fails only if somebody else has removed the directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns the body of an HTTP response. Fails if the status is not a success. The error has the
/// message of the API server's error object, or the whole body if that is no such object.
fn parse_response(response: &str) -> Result<String, Error> {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status.starts_with('2') {
        return Ok(body.to_owned());
    }
    let ApiStatus { kind, reason, message, .. } = serde_json::from_str(body).unwrap_or_default();
    // A proxy in front of the API server may respond with other JSON that has a `reason`.
    let reason = match reason {
        Some(reason) if kind == "Status" => reason,
        _ => format!("HTTP {status}"),
    };
    let message = message.unwrap_or_else(|| body.trim().to_owned());
    Err(Error::Status { reason: one_line(&reason), message: one_line(&message) })
}

#[cfg(test)]
mod tests;
