//! Requests to the API server through the program `kubectl`.
//!
//! An administrator's kubeconfig can have client certificates, exec plugins, proxies and several
//! merged files, and kubectl handles all of them. [`crate::kube`] reads only kubeconfigs with a
//! token. Every administrator has kubectl. `kubectl proxy` sends the requests, from a socket that
//! only the user can open: kubectl and its credential plugin start once, not for each of 500
//! agents.

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

/// Longest time for the start of `kubectl proxy`, and without a byte of a response. The first
/// response waits for the credential plugin that kubectl may start.
const DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two attempts to open the socket of a `kubectl proxy` that starts.
const START_PAUSE: Duration = Duration::from_millis(5);
/// Longest response of the API server that is read, in bytes.
const OUTPUT_LIMIT: u64 = 64 << 20;
/// Runs its arguments in place of the shell. When this process ends, in whatever way, the pipe at
/// stdin closes: a subshell then removes the directory `$0` and kills the process group, with a
/// credential plugin that hangs. A signal handler could not do so after SIGKILL.
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
        while proxy.open().is_err() {
            // The process group of a child that is reaped here remains until its guard ends.
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
    fn exchange(&self, proxy: &Proxy, request: &str) -> io::Result<Vec<u8>> {
        let mut stream = proxy.open()?;
        stream.set_read_timeout(Some(self.deadline))?;
        stream.write_all(request.as_bytes())?;
        let mut response = Vec::new();
        stream.take(OUTPUT_LIMIT).read_to_end(&mut response)?;
        Ok(response)
    }
}

impl Api for Kubectl {
    /// Sends a request as HTTP/1.0, whose response ends with the connection.
    fn body(&self, path: &str) -> Result<String, Error> {
        let proxy = self.proxy.get_or_init(|| self.start_proxy()).as_ref().map_err(Clone::clone)?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        match self.exchange(proxy, &request) {
            Ok(response) => body_of(&String::from_utf8_lossy(&response)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(Error::Deadline(self.deadline))
            }
            Err(error) => Err(Error::Failed(format!("proxy: {error}"))),
        }
    }
}

impl Proxy {
    fn open(&self) -> io::Result<UnixStream> {
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

/// Returns the body of an HTTP response.
/// Fails if the status is an error: with the API server's error object, or another body as the
/// message.
fn body_of(response: &str) -> Result<String, Error> {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status.starts_with('2') {
        return Ok(body.to_owned());
    }
    let ApiStatus { reason, message, .. } = serde_json::from_str(body).unwrap_or_default();
    let reason = reason.unwrap_or_else(|| format!("HTTP {status}"));
    let message = message.unwrap_or_else(|| body.trim().to_owned());
    Err(Error::Status { reason: one_line(&reason), message: one_line(&message) })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::extension::requests::{find, get};

    /// A program in place of kubectl: `sh -c SCRIPT`, whose arguments are those of kubectl.
    fn fake(script: &str, deadline: Duration) -> Kubectl {
        let flags = vec!["-c".to_owned(), script.to_owned()];
        Kubectl { program: "/bin/sh".into(), deadline, ..Kubectl::new(flags) }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// An API server that sends this response to each request.
    struct Responded(&'static str);

    impl Api for Responded {
        fn body(&self, _: &str) -> Result<String, Error> {
            body_of(self.0)
        }
    }

    #[test]
    fn errors_of_the_api_server_are_told_from_those_of_kubectl() {
        let missing =
            "HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"reason\":\"NotFound\",\"message\":\"no x\"}";
        let error = get::<u8>(&Responded(missing), "/x").unwrap_err();
        assert_eq!(error.to_string(), "no x (NotFound)");
        assert!(find::<()>(&Responded(missing), "/x").unwrap().is_none());
        let forbidden =
            "HTTP/1.0 403 Forbidden\r\n\r\n{\"reason\":\"Forbidden\",\"message\":\"no\"}";
        let error = get::<u8>(&Responded(forbidden), "/x").unwrap_err().to_string();
        assert!(error.starts_with("no (Forbidden); grant this right to the user"), "{error}");
        let refused = Responded("HTTP/1.0 500 Internal\r\n\r\ndial tcp: connection refused\n");
        let error = get::<u8>(&refused, "/x").unwrap_err().to_string();
        let wanted = "dial tcp: connection refused (HTTP 500); check with kubectl version ";
        assert!(error.starts_with(wanted), "{error}");
        let error = get::<u8>(&Responded("HTTP/1.0 200 OK\r\n\r\n{}"), "/x").unwrap_err();
        assert!(error.to_string().starts_with("/x: unexpected response: "), "{error}");
        assert!(get::<u8>(&Responded("cut"), "/x").is_err());
    }

    #[test]
    fn a_kubectl_proxy_that_does_not_start_fails_each_request() {
        let api = fake("printf 'refused\\nIs it running?' >&2; exit 1", LONG);
        for _ in 0..2 {
            let error = api.body("/x").unwrap_err().to_string();
            let wanted = "kubectl failed: refused; Is it running?; check with kubectl version ";
            assert!(error.starts_with(wanted), "{error}");
        }
        let api = fake("exec sleep 60", Duration::from_millis(100));
        let error = api.body("/x").unwrap_err();
        assert!(error.to_string().contains("credential plugin"), "{error}");
    }

    #[test]
    fn a_hanging_kubectl_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("id");
        for hang in ["echo $$ >FILE; exec sleep 60", "sleep 60 & echo $! >FILE; wait"] {
            let start = Instant::now();
            let script = hang.replace("FILE", file.to_str().unwrap());
            let error = fake(&script, Duration::from_secs(1)).body("/x");
            assert!(matches!(error, Err(Error::Deadline(_))), "{hang}: {error:?}");
            assert!(start.elapsed() < Duration::from_secs(30), "{hang}");
            child::tests::assert_ends(&file);
            std::fs::remove_file(&file).unwrap();
        }
    }
}
