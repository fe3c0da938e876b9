//! The built controller as a child process.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

use crate::api::Api;
use crate::eventually;

pub const BINARY: &str = env!("CARGO_BIN_EXE_linkerd-cni-repair-controller");

pub struct Controller {
    child: Child,
    log: Arc<Mutex<String>>,
    dir: TempDir,
}

impl Controller {
    /// Starts it as the chart does, but for the kubeconfig.
    pub fn start(api: &Api) -> Controller {
        Controller::with(api, &[])
    }

    /// The same with more arguments.
    pub fn with(api: &Api, arguments: &[&str]) -> Controller {
        Controller::configured(api, arguments, &[])
    }

    /// The same with more of an environment.
    pub fn configured(api: &Api, arguments: &[&str], environment: &[(&str, &str)]) -> Controller {
        let dir = TempDir::new().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let text = json!({
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.address)}}],
            "users": [
                {"name": "u", "user": {"tokenFile": "token"}},
                {"name": "second", "user": {"token": "of-second"}},
            ],
            "contexts": [
                {"name": "linkerd-cni-context", "context": {"cluster": "c", "user": "u"}},
            ],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        fs::write(dir.path().join("token"), "first\n").unwrap();
        let mut child = Command::new(BINARY)
            .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node-1")
            .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "linkerd-cni-x")
            .args(["--admin-addr=127.0.0.1:0", "--log-format", "plain"])
            .args(["--log-level", "linkerd_cni_repair_controller=debug,warn"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let sink = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *sink.lock().unwrap() += &(line + "\n");
            }
        });
        let controller = Controller { child, log, dir };
        controller.logs("Answering");
        controller
    }

    /// Starts it and waits until it watches.
    pub fn watching(api: &Api) -> Controller {
        let controller = Controller::start(api);
        eventually("the watch has begun", || {
            !api.requests(|request| request.is_watch()).is_empty()
        });
        controller
    }

    pub fn rotate(&self, token: &str) {
        let new = self.dir.path().join("new");
        fs::write(&new, token).unwrap();
        fs::rename(new, self.dir.path().join("token")).unwrap();
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log has `text` in it.
    pub fn logs(&self, text: &str) {
        eventually(text, || self.log().contains(text));
    }

    /// Status line and body of the admin server's answer.
    pub fn get(&self, path: &str) -> (String, String) {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("Answering")).unwrap();
        let mut stream = TcpStream::connect(line.rsplit(' ').next().unwrap()).unwrap();
        let timeout = Some(Duration::from_secs(10));
        stream.set_read_timeout(timeout).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().into(), body.into())
    }

    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let name = format!("linkerd_cni_repair_controller_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value
            .unwrap_or_else(|| panic!("no {name}"))
            .parse()
            .unwrap()
    }

    /// A figure of `/proc/PID/status`, e.g. `VmHWM:`, the peak of memory in kB.
    pub fn status(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let value = line.unwrap().split_whitespace().next();
        value.unwrap().parse().unwrap()
    }

    /// Waits until a metric has the value.
    pub fn counts(&self, name: &str, value: u64) {
        let what = format!("{name} is {value}");
        eventually(&what, || self.metric(name) == value);
    }

    /// Sends the signal; how it ended, and how long that took.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        let mut status = None;
        eventually("the controller ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), began.elapsed())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("controller's log:\n{}", self.log());
        }
    }
}
