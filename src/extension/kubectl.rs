//! Requests to the API server through the program `kubectl`.
//!
//! An administrator's kubeconfig can have client certificates, exec plugins, proxies and several
//! merged files, and kubectl handles all of them. [`crate::kube`] reads only kubeconfigs with a
//! token. Every administrator has kubectl, and `kubectl get --raw` passes the response on unchanged.

mod children;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::api::{Api, Error};
use crate::child;
use crate::deadline::Deadline;
use children::Children;

/// Time for one request, with the credential plugin that kubectl may start.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time for the first request if a user may log in.
const LOGIN_DEADLINE: Duration = Duration::from_secs(300);
/// Time that kubectl allows the API server, as its flag.
const REQUEST_TIMEOUT: &str = "--request-timeout=15s";
/// Largest response that is read, in bytes.
const OUTPUT_LIMIT: u64 = 64 << 20;

/// kubectl with the flags that select cluster and user.
#[derive(Debug)]
pub struct Kubectl {
    program: OsString,
    flags: Vec<String>,
    deadline: Duration,
    children: Children,
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
        let children = Children::default();
        Kubectl { program: "kubectl".into(), flags, deadline: DEADLINE, children }
    }

    /// Sends the first request. On a terminal, the user has time to log in.
    ///
    /// Afterwards SIGINT, SIGTERM and SIGHUP end this process with every kubectl that runs.
    pub fn connect(&self) -> Result<(), Error> {
        let (group, deadline) = match io::stdin().is_terminal() {
            true => (Group::Foreground, LOGIN_DEADLINE),
            false => (Group::Own, self.deadline),
        };
        // The mask of blocked signals passes on to children, so that Ctrl-C would not end a
        // credential plugin in the foreground.
        if group == Group::Own {
            self.children.end_on_signals();
        }
        let response = self.run_in(group, deadline, &["get", "--raw", "/version"], "");
        if group == Group::Foreground {
            self.children.end_on_signals();
        }
        response.map(drop)
    }

    fn run(&self, arguments: &[&str], input: &str) -> Result<String, Error> {
        self.run_in(Group::Own, self.deadline, arguments, input)
    }

    fn run_in(
        &self,
        group: Group,
        deadline: Duration,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, Error> {
        let end = Deadline::after(deadline);
        let mut command = Command::new(&self.program);
        command.args(&self.flags).arg(REQUEST_TIMEOUT).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match group {
            Group::Own => command.stdin(Stdio::piped()).process_group(0),
            Group::Foreground => command.stdin(Stdio::inherit()),
        };
        let (mut child, _entry) = self.children.spawn(&mut command).map_err(Error::start)?;
        if let Some(mut stdin) = child.stdin.take() {
            // The input is smaller than a pipe. Fails only if kubectl has ended.
            let _ = stdin.write_all(input.as_bytes());
        }
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
        match status.success() {
            true => Ok(stdout),
            false => Err(Error::from_stderr(&stderr)),
        }
    }
}

impl Api for Kubectl {
    fn get(&self, path: &str) -> Result<String, Error> {
        self.run(&["get", "--raw", path], "")
    }

    fn post(&self, path: &str, body: &str) -> Result<String, Error> {
        self.run(&["create", "--raw", path, "-f", "-"], body)
    }

    fn delete(&self, path: &str) -> Result<String, Error> {
        self.run(&["delete", "--raw", path], "")
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
        Kubectl { program: "/bin/sh".into(), flags, deadline, children: Children::default() }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_response_is_passed_on_and_the_input_reaches_kubectl() {
        let api = fake("echo \"$0 $*\"", LONG);
        assert_eq!(api.get("/api").unwrap(), "--request-timeout=15s get --raw /api\n");
        assert_eq!(fake("cat", LONG).post("/api", "{}").unwrap(), "{}");
    }

    #[test]
    fn errors_of_the_api_server_are_told_from_those_of_kubectl() {
        let fail = |text: &str| fake(&format!("echo '{text}' >&2; exit 1"), LONG);
        let missing = "Error from server (NotFound): daemonsets.apps \"x\" not found";
        let error = fail(missing).get("/x").unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert!(find::<()>(&fail(missing), "/x").unwrap().is_none());
        let refused = "The connection to the server was refused\nIs it running?";
        let error = fail(refused).get("/x").unwrap_err();
        let wanted =
            "kubectl failed: The connection to the server was refused; Is it running?; check ";
        assert!(error.to_string().starts_with(wanted), "{error}");
        let error = fail("Error from server (Forbidden): no").get("/x").unwrap_err().to_string();
        assert!(error.starts_with("no (Forbidden); grant this right to the user"), "{error}");
        let error = get::<u8>(&fake("echo {}", LONG), "/x").unwrap_err();
        assert!(error.to_string().starts_with("/x: unexpected response: "), "{error}");
    }

    #[test]
    fn a_missing_kubectl_is_named_with_the_remedy() {
        let program = "/nonexistent/kubectl".into();
        let api = Kubectl { program, ..fake("", LONG) };
        let error = api.get("/x").unwrap_err().to_string();
        assert!(error.starts_with("cannot run kubectl: ") && error.contains("PATH"), "{error}");
    }

    #[test]
    fn a_kubectl_that_hangs_is_killed_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("id");
        for hang in ["echo $$ >FILE; exec sleep 60", "sleep 60 & echo $! >FILE"] {
            let start = Instant::now();
            let script = hang.replace("FILE", file.to_str().unwrap());
            let error = fake(&script, Duration::from_secs(1)).get("/x").unwrap_err();
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
        let of = |group| api.run_in(group, LONG, &[], "").unwrap().trim().to_owned();
        assert_eq!(of(Group::Foreground), own);
        assert_ne!(of(Group::Own), own);
    }

    #[test]
    fn a_login_that_hangs_ends_at_its_deadline_and_names_the_credential_plugin() {
        let api = fake("exec sleep 60", LONG);
        let error = api.run_in(Group::Foreground, Duration::from_millis(100), &[], "");
        assert!(error.unwrap_err().to_string().contains("credential plugin"));
    }
}
