//! Runs the repair controller as a child process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use linkerd2_cni::kube::plain_http;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

use crate::api::Api;
use crate::until::until;

pub const BINARY: &str = env!("CARGO_BIN_EXE_linkerd-cni-repair-controller");

/// Address of an admin server on a port that the system chooses.
pub const ANY_PORT: &str = "127.0.0.1:0";

pub struct Controller {
    child: Child,
    log: Arc<Mutex<String>>,
    /// `host:port` of the admin server.
    admin: String,
    dir: TempDir,
}

impl Controller {
    /// Starts the controller as the chart does, but with a kubeconfig.
    pub fn start(api: &Api) -> Controller {
        Controller::with(api, &[])
    }

    /// Starts the controller with additional arguments.
    pub fn with(api: &Api, arguments: &[&str]) -> Controller {
        Controller::at(ANY_PORT, api, |command| {
            command.args(arguments);
        })
    }

    /// Starts the controller with its admin server on the address `admin`.
    pub fn at(admin: &str, api: &Api, set: impl FnOnce(&mut Command)) -> Controller {
        let mut command = Command::new(BINARY);
        command.stderr(Stdio::piped());
        let mut controller = Controller::by(command, api, admin, set);
        let lines = BufReader::new(controller.child.stderr.take().unwrap()).lines();
        let sink = Arc::clone(&controller.log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *sink.lock().unwrap() += &(line + "\n");
            }
        });
        controller.until_logged("serving");
        let log = controller.log();
        let line = log.lines().find(|line| line.contains("serving")).unwrap();
        controller.admin = line.rsplit(' ').next().unwrap().to_owned();
        controller
    }

    /// Starts the controller with `command`, whose output is not read. Waits until the admin server
    /// listens.
    pub fn start_silent(api: &Api, command: Command) -> Controller {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap().to_string();
        drop(listener);
        let controller = Controller::by(command, api, &admin, |_| {});
        until("the admin server", || TcpStream::connect(&admin).is_ok());
        controller
    }

    fn by(
        mut command: Command,
        api: &Api,
        admin: &str,
        set: impl FnOnce(&mut Command),
    ) -> Controller {
        let dir = TempDir::new().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        let text = json!({
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.address)}}],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}],
            "contexts": [
                {"name": "linkerd-cni-context", "context": {"cluster": "c", "user": "u"}},
            ],
        });
        fs::write(&kubeconfig, text.to_string()).unwrap();
        fs::write(dir.path().join("token"), "first\n").unwrap();
        command
            .env("LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME", "node-1")
            .env("LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME", "linkerd-cni-x")
            .args(["--admin-addr", admin, "--log-format", "plain"])
            .args(["--log-level", "linkerd_cni_repair_controller=debug,warn"])
            .arg("--kubeconfig")
            .arg(kubeconfig);
        set(&mut command);
        Controller {
            child: command.spawn().unwrap(),
            log: Arc::default(),
            admin: admin.to_owned(),
            dir,
        }
    }

    /// Starts the controller, and waits until it watches the pods.
    pub fn watching(api: &Api) -> Controller {
        let controller = Controller::start(api);
        until("the watch has begun", || !api.watches().is_empty());
        controller
    }

    /// Starts an API server and a controller, and waits until the controller watches the pods.
    pub fn watched() -> (Api, Controller) {
        let api = Api::start();
        let controller = Controller::watching(&api);
        (api, controller)
    }

    /// Replaces the token file of the kubeconfig.
    pub fn rotate(&self, token: &str) {
        let new = self.dir.path().join("new");
        fs::write(&new, token).unwrap();
        fs::rename(new, self.dir.path().join("token")).unwrap();
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains `text`.
    pub fn until_logged(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    /// Returns the HTTP status and the body of the admin server's response.
    pub fn get(&self, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.admin);
        plain_http::get(&url, Duration::from_secs(10)).unwrap()
    }

    /// Returns the port of the admin server.
    pub fn port(&self) -> u16 {
        self.admin.rsplit(':').next().unwrap().parse().unwrap()
    }

    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let name = format!("linkerd_cni_repair_controller_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    /// Returns a number from `/proc/PID/status`. For example, `VmHWM:` is the peak memory in kB.
    pub fn status(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let value = line.unwrap().split_whitespace().next();
        value.unwrap().parse().unwrap()
    }

    /// Waits until a metric has this value. Panics if the metric exceeds the value.
    pub fn until_metric_is(&self, name: &str, value: u64) {
        let what = format!("{name} is {value}");
        until(&what, || {
            let now = self.metric(name);
            assert!(now <= value, "{name} is {now}, not {value}");
            now == value
        });
    }

    /// Waits until a metric has at least this value.
    pub fn until_metric_reaches(&self, name: &str, value: u64) {
        until(&format!("{name} reaches {value}"), || self.metric(name) >= value);
    }

    /// Sends the signal. Returns the exit status, and the time that the controller took to exit.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        (self.until_ended(), began.elapsed())
    }

    /// Waits until the controller has exited.
    pub fn until_ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the controller ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
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
