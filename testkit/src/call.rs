//! One call of the plugin binary, as by a container runtime.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use linkerd2_cni::pod_copy;
use serde_json::{Value, json};

use crate::api::Api;
use crate::{cni, program};

pub const UID: &str = "c0ffee00-0000-4000-8000-000000000001";

pub struct Call {
    pub environment: Vec<(String, OsString)>,
    pub config: Value,
    pub dir: Option<tempfile::TempDir>,
}

pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Outcome {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.stdout, self.stderr))
    }

    /// Fails unless the call succeeded.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{} {}", self.stdout, self.stderr);
        self
    }

    /// Fails unless the plugin's stderr contains this text.
    #[track_caller]
    pub fn logs(&self, text: &str) {
        assert!(self.stderr.contains(text), "not {text}: {}", self.stderr);
    }

    /// Fails unless the remedy in the error object contains this text.
    #[track_caller]
    pub fn advises(&self, text: &str) {
        let remedy = self.json()["details"].to_string();
        assert!(remedy.contains(text), "{remedy}");
    }

    /// Fails unless the call failed with this code, and with a message that contains this text.
    #[track_caller]
    pub fn failed(&self, code: u64, text: &str) -> &Self {
        let (actual, msg) = self.error();
        assert!(actual == code && msg.contains(text), "{actual} instead of {code}, {text}: {msg}");
        self
    }

    /// Returns code and message of the error object. Fails if the call succeeded.
    #[track_caller]
    pub fn error(&self) -> (u64, String) {
        assert_eq!(self.code, Some(1), "{} {}", self.stdout, self.stderr);
        let error = self.json();
        assert!(error["cniVersion"].is_string(), "{error}");
        (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
    }
}

impl Call {
    /// A call for the pod `ns/web` with a kubeconfig for `api`.
    pub fn new(command: &str, netns: &Path, api: &Api) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        let mut call = Call::with_kubeconfig(command, netns, &kubeconfig);
        call.dir = Some(dir);
        call
    }

    pub fn with_kubeconfig(command: &str, netns: &Path, kubeconfig: &Path) -> Self {
        let mut environment = cni::environment(command, netns.to_str().unwrap()).to_vec();
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID={UID}");
        let run_dir = kubeconfig.with_file_name("run");
        environment.extend([
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("CNI_ARGS", &args),
            (pod_copy::RUN_DIR_VARIABLE, run_dir.to_str().unwrap()),
        ]);
        let mut config = cni::upstream_entry();
        config["cniVersion"] = json!("1.0.0");
        config["name"] = json!("k8s-pod-network");
        config["log_level"] = json!("debug");
        config["kubernetes"] = json!({"kubeconfig": kubeconfig});
        // The budget is long, so that a busy machine does not fail the test.
        config["linkerd"]["api-retry-seconds"] = json!(10);
        let ips = json!([{"address": "10.99.0.1/24", "interface": 0}]);
        let interfaces = json!([{"name": "eth0", "sandbox": "/x"}]);
        config["prevResult"] =
            json!({"cniVersion": "1.0.0", "ips": ips, "interfaces": interfaces, "dns": {}});
        let environment = environment.iter().map(|&(name, value)| (name.into(), value.into()));
        Call { environment: environment.collect(), config, dir: None }
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(existing, _)| existing != name);
        self.environment.push((name.into(), value.as_ref().into()));
        self
    }

    pub fn linkerd(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config["linkerd"][key] = value.into();
        self
    }

    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    /// Sets the annotations that the runtime passes to the plugin. `None`: the runtime passes no
    /// annotations.
    pub fn annotated(self, annotations: impl Into<Option<Value>>) -> Self {
        let key = "io.kubernetes.cri.pod-annotations";
        match annotations.into() {
            Some(annotations) => self.set("runtimeConfig", json!({key: annotations})),
            None => self,
        }
    }

    pub fn run_dir(&self) -> PathBuf {
        self.kubeconfig().with_file_name("run")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        PathBuf::from(self.config["kubernetes"]["kubeconfig"].as_str().unwrap())
    }

    pub fn run(&self) -> Outcome {
        self.run_with(&self.config.to_string())
    }

    pub fn run_with(&self, stdin: &str) -> Outcome {
        let mut command = Command::new(program("linkerd-cni"));
        self.run_command(command.stdout(Stdio::piped()).stderr(Stdio::piped()), stdin)
    }

    pub fn run_under(&self, wrapper: &[&str]) -> Outcome {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(program("linkerd-cni"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.run_command(&mut command, &self.config.to_string())
    }

    pub fn run_command(&self, command: &mut Command, stdin: &str) -> Outcome {
        command.env_clear().envs(self.environment.iter().cloned()).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The plugin may end without reading stdin, so a failed write is not an error.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        Outcome::from(child.wait_with_output().unwrap())
    }

    /// Runs the plugin in a mount namespace in which the directories of iptables are empty.
    pub fn run_without_iptables(&self) -> Outcome {
        let hide = "/bin/mount -t tmpfs none /usr/sbin && exec \"$0\"";
        self.run_under(&["/usr/bin/unshare", "--mount", "/bin/sh", "-c", hide])
    }

    /// Runs the plugin where sysctls are read-only, as in a container that is not privileged.
    pub fn run_with_read_only_sysctls(&self) -> Outcome {
        let bind = "/bin/mount --bind /proc/sys /proc/sys && \
                    /bin/mount -o remount,bind,ro /proc/sys && exec \"$0\"";
        self.run_under(&["/usr/bin/unshare", "--mount", "/bin/sh", "-c", bind])
    }
}
