//! Requests to the API server through the program `kubectl`.
//!
//! An administrator's kubeconfig can have client certificates, exec plugins, proxies and several
//! merged files, and kubectl handles all of them. [`crate::kube`] reads only kubeconfigs with a
//! token. Every administrator has kubectl. After the first request, `kubectl proxy` sends the others,
//! from a socket that only the user can open: kubectl and its credential plugin start once, not for
//! each of 500 agents.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, IsTerminal as _, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::unistd::mkdtemp;

use super::api::{Api, Error};
use crate::child;
use crate::deadline::Deadline;

/// Time for the first request, with the credential plugin that kubectl may start, for the start of
/// `kubectl proxy`, and for each response through it to begin or go on.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time for the first request if a user may log in.
const LOGIN_DEADLINE: Duration = Duration::from_secs(300);
/// Time that kubectl allows the API server for the first request, as its flag.
const REQUEST_TIMEOUT: &str = "--request-timeout=15s";
/// Pause between two attempts to open the socket of a `kubectl proxy` that starts.
const START_PAUSE: Duration = Duration::from_millis(5);
const OUTPUT_LIMIT: u64 = 64 << 20;
/// Runs its arguments in place of the shell. When this process ends, in whatever way, the pipe at stdin
/// closes: a subshell then removes the socket's directory `$0` and kills the process group, with a credential
/// plugin that hangs. A signal handler could not do so after SIGKILL.
const GUARD: &str = r#"exec 3<&0
(read -r _ <&3; /bin/rm "$0/socket"; /bin/rmdir "$0"; kill -9 0) >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-"#;
/// Exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;
/// Held by the request in which a user may log in.
static LOGIN: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Kubectl {
    program: OsString,
    flags: Vec<String>,
    deadline: Duration,
    proxy: OnceLock<Result<Proxy, Error>>,
}

/// A `kubectl proxy` that runs. Dropping it ends it.
#[derive(Debug)]
struct Proxy {
    child: Child,
    /// Has the socket. Only this user can open it.
    dir: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// In a process group of its own, with which a credential plugin that hangs is killed.
    Own,
    /// In the group of this process, in which a credential plugin can ask the user: only the
    /// foreground group reads from the terminal. What kubectl writes to stderr is shown at once.
    Foreground,
}

impl Kubectl {
    /// `flags` select cluster and user, such as `--context=NAME`.
    pub fn new(flags: Vec<String>) -> Kubectl {
        let proxy = OnceLock::new();
        Kubectl { program: "kubectl".into(), flags, deadline: DEADLINE, proxy }
    }

    /// Sends the first request. On a terminal, the user has time to log in, to one cluster at a time.
    pub fn connect(&self) -> Result<(), Error> {
        let (group, deadline) = match io::stdin().is_terminal() {
            true => (Group::Foreground, LOGIN_DEADLINE),
            false => (Group::Own, self.deadline),
        };
        let _turn = (group == Group::Foreground)
            .then(|| LOGIN.lock().unwrap_or_else(PoisonError::into_inner));
        self.run(group, deadline, &["get", "--raw", "/version"]).map(drop)
    }

    fn run(&self, group: Group, deadline: Duration, arguments: &[&str]) -> Result<String, Error> {
        let end = Deadline::after(deadline);
        let mut command = match group {
            Group::Own => self.guarded("".as_ref()),
            Group::Foreground => {
                let mut command = Command::new(&self.program);
                command.args(&self.flags).stdin(Stdio::inherit());
                command
            }
        };
        command.arg(REQUEST_TIMEOUT).args(arguments);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(Error::start)?;
        let shown: Box<dyn Write + Send> = match group {
            Group::Own => Box::new(io::sink()),
            Group::Foreground => Box::new(io::stderr()),
        };
        let stdout = reader(child.stdout.take(), io::sink());
        let stderr = reader(child.stderr.take(), shown);
        let text = |output: &Receiver<String>| output.recv_timeout(end.remaining()).ok();
        let outputs = text(&stdout).zip(text(&stderr));
        // Only after both outputs: a process group cannot be killed safely once its leader is reaped.
        let done = outputs.and_then(|texts| Some((texts, child::wait(&mut child, end).ok()??)));
        let Some(((stdout, stderr), status)) = done else {
            child::kill(&mut child);
            return Err(Error::Deadline(deadline));
        };
        match status.code() {
            Some(0) => Ok(stdout),
            Some(NOT_FOUND) => Err(Error::Start("not found".to_owned())),
            _ => Err(Error::from_stderr(&stderr)),
        }
    }

    /// Makes the command of a kubectl that [`GUARD`] ends.
    fn guarded(&self, dir: &OsStr) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(GUARD).arg(dir).arg(&self.program).args(&self.flags);
        command.stdin(Stdio::piped()).process_group(0);
        command
    }

    fn start_proxy(&self) -> Result<Proxy, Error> {
        let end = Deadline::after(self.deadline);
        let dir = mkdtemp(&env::temp_dir().join("linkerd-cni-XXXXXX"))
            .map_err(|errno| Error::start(errno.into()))?;
        let mut command = self.guarded(dir.as_os_str());
        command.arg("proxy").arg("--unix-socket").arg(dir.join("socket"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut proxy = Proxy { child: child.map_err(Error::start)?, dir };
        let stderr = reader(proxy.child.stderr.take(), io::sink());
        while proxy.open().is_err() {
            if let Ok(text) = stderr.try_recv() {
                return Err(Error::from_stderr(&text));
            }
            if end.has_passed() {
                return Err(Error::Deadline(self.deadline));
            }
            thread::sleep(START_PAUSE);
        }
        Ok(proxy)
    }
}

impl Api for Kubectl {
    /// Sends a request as HTTP/1.0, whose response ends with the connection.
    fn request(&self, method: &str, path: &str, body: &str) -> Result<String, Error> {
        let proxy = self.proxy.get_or_init(|| self.start_proxy()).as_ref().map_err(Clone::clone)?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        let exchange = || {
            let mut stream = proxy.open()?;
            stream.set_read_timeout(Some(self.deadline))?;
            stream.write_all(request.as_bytes())?;
            let mut response = Vec::new();
            stream.take(OUTPUT_LIMIT).read_to_end(&mut response)?;
            Ok(response)
        };
        match exchange() {
            Ok(response) => body_of(&String::from_utf8_lossy(&response)),
            Err(error) if io::Error::kind(&error) == ErrorKind::WouldBlock => {
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
}

impl Drop for Proxy {
    fn drop(&mut self) {
        child::kill(&mut self.child);
        // Fails only if the proxy made no socket, or somebody else has removed it.
        let _ = fs::remove_file(self.dir.join("socket"));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Returns the body of an HTTP response.
/// Fails if the status is an error.
fn body_of(response: &str) -> Result<String, Error> {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    match status.starts_with('2') {
        true => Ok(body.to_owned()),
        false => Err(Error::from_status(status, body)),
    }
}

/// Reads a pipe to its end on a thread of its own, and copies it to `shown` as it is written. Bytes
/// after [`OUTPUT_LIMIT`] are left out.
fn reader(
    pipe: Option<impl Read + Send + 'static>,
    mut shown: impl Write + Send + 'static,
) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let mut pipe = pipe.take(OUTPUT_LIMIT);
            let mut part = vec![0; 1 << 16];
            while let Ok(length @ 1..) = pipe.read(&mut part) {
                bytes.extend_from_slice(&part[..length]);
                // Without a terminal, nothing is left to show the text on.
                let _ = shown.write_all(&part[..length]);
            }
        }
        // The receiver is gone after the deadline.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::extension::api::{find, get};

    /// A program in place of kubectl: `sh -c SCRIPT`, whose arguments are those of kubectl.
    fn fake(script: &str, deadline: Duration) -> Kubectl {
        let flags = vec!["-c".to_owned(), script.to_owned()];
        Kubectl { program: "/bin/sh".into(), deadline, ..Kubectl::new(flags) }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Responses of the API server, each as the only one.
    struct Responded(&'static str);

    impl Api for Responded {
        fn request(&self, _: &str, _: &str, _: &str) -> Result<String, Error> {
            body_of(self.0)
        }
    }

    #[test]
    fn errors_of_the_api_server_are_told_from_those_of_kubectl() {
        let fail =
            |text: &str| fake(&format!("echo '{text}' >&2; exit 1"), LONG).connect().unwrap_err();
        let refused = "The connection to the server was refused\nIs it running?";
        let wanted =
            "kubectl failed: The connection to the server was refused; Is it running?; check ";
        let error = fail(refused).to_string();
        assert!(error.starts_with(wanted), "{error}");
        let error = fail("Error from server (Forbidden): no").to_string();
        assert!(error.starts_with("no (Forbidden); grant this right to the user"), "{error}");

        let missing =
            "HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"reason\":\"NotFound\",\"message\":\"no x\"}";
        let error = get::<u8>(&Responded(missing), "/x").unwrap_err();
        assert_eq!(error.to_string(), "no x (NotFound)");
        assert!(find::<()>(&Responded(missing), "/x").unwrap().is_none());
        let refused = Responded("HTTP/1.0 500 Internal\r\n\r\ndial tcp: connection refused\n");
        let error = get::<u8>(&refused, "/x").unwrap_err();
        assert_eq!(error.to_string(), "dial tcp: connection refused (HTTP 500)");
        let error = get::<u8>(&Responded("HTTP/1.0 200 OK\r\n\r\n{}"), "/x").unwrap_err();
        assert!(error.to_string().starts_with("/x: unexpected response: "), "{error}");
        assert!(get::<u8>(&Responded("cut"), "/x").is_err());
    }

    #[test]
    fn a_proxy_that_ends_or_hangs_at_its_start_fails_each_request() {
        let api = fake("echo 'error: unknown flag' >&2; exit 1", LONG);
        for _ in 0..2 {
            let error = api.request("GET", "/x", "").unwrap_err().to_string();
            assert!(error.starts_with("kubectl failed: error: unknown flag"), "{error}");
        }
        let api = fake("exec sleep 60", Duration::from_millis(100));
        assert!(matches!(api.request("GET", "/x", ""), Err(Error::Deadline(_))));
    }

    #[test]
    fn a_kubectl_that_hangs_is_killed_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("id");
        for hang in ["echo $$ >FILE; exec sleep 60", "sleep 60 & echo $! >FILE"] {
            let start = Instant::now();
            let script = hang.replace("FILE", file.to_str().unwrap());
            let error = fake(&script, Duration::from_secs(1)).connect().unwrap_err();
            assert!(matches!(error, Error::Deadline(_)), "{hang}: {error}");
            assert!(start.elapsed() < Duration::from_secs(30), "{hang}");
            child::tests::assert_ends(&file);
            std::fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn a_credential_plugin_can_ask_only_in_the_foreground_group() {
        let group = "read -r pid name state parent group rest </proc/self/stat; echo $group";
        let api = fake(group, LONG);
        let own = nix::unistd::getpgrp().to_string();
        let of = |group| api.run(group, LONG, &[]).unwrap().trim().to_owned();
        assert_eq!(of(Group::Foreground), own);
        assert_ne!(of(Group::Own), own);
    }

    #[test]
    fn a_login_that_hangs_ends_at_its_deadline_and_names_the_credential_plugin() {
        let api = fake("exec sleep 60", LONG);
        let error = api.run(Group::Foreground, Duration::from_millis(100), &[]);
        assert!(error.unwrap_err().to_string().contains("credential plugin"));
    }
}
