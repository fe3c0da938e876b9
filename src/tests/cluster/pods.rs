//! Pods to connect from and to, one in a namespace of its name, so that API requests can be told apart.

use std::cell::RefCell;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The pods of a test; dropping it deletes them.
#[derive(Default)]
pub struct Pods {
    names: RefCell<Vec<String>>,
}

impl Pods {
    /// Creates all of them, then waits for all of them.
    pub fn start(&self, pods: &[Value]) {
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap();
            kubectl(&["create", "namespace", name]);
            self.names.borrow_mut().push(name.to_owned());
            apply(pod);
        }
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let ready = command(&["wait", "-n", name, "--for=condition=Ready", "--timeout=60s"])
                .arg(format!("pod/{name}"))
                .stdout(Stdio::null())
                .status();
            assert!(
                ready.unwrap().success(),
                "pod {name} is not ready: {}",
                kubectl(&["get", "pods,events", "-n", name])
            );
        }
    }

    pub fn ip(&self, name: &str) -> String {
        let ip = [
            "get",
            "pod",
            name,
            "-n",
            name,
            "-o",
            "jsonpath={.status.podIP}",
        ];
        kubectl(&ip)
    }

    /// What a connection from the container got, `refused` and `timeout` included.
    pub fn connect(&self, pod: &str, container: &str, target: &str) -> String {
        let exec = ["exec", "-n", pod, pod, "-c", container, "--"];
        let output = command(&exec)
            .args(["/probe", "connect", target])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let names = self.names.borrow();
        for name in names.iter() {
            let delete = ["delete", "pod", name, "-n", name, "--grace-period=1"];
            let _ = command(&delete).output();
        }
        let delete = ["delete", "namespace", "--timeout=60s"];
        let _ = command(&delete).args(names.iter()).output();
    }
}

pub fn unmeshed(name: &str) -> Value {
    pod(name, &[app(name)], &[])
}

pub fn meshed(name: &str) -> Value {
    pod(name, &[app(name), proxy()], &[])
}

pub fn native_sidecar(name: &str) -> Value {
    let mut sidecar = proxy();
    sidecar["restartPolicy"] = json!("Always");
    let validator = container(
        "linkerd-network-validator",
        65534,
        &[
            "validate",
            "--connect",
            "192.0.2.3:20001",
            "--listen",
            "0.0.0.0:4140",
            "--timeout",
            "10s",
        ],
    );
    pod(name, &[app(name)], &[validator, sidecar])
}

fn app(pod: &str) -> Value {
    let name = format!("app-of-{pod}");
    container("app", 1000, &["serve", &name, "0.0.0.0:8080"])
}

fn proxy() -> Value {
    let words = "serve proxy-inbound 0.0.0.0:4143 proxy-outbound 0.0.0.0:4140 proxy-admin 0.0.0.0:4190 0.0.0.0:4191";
    let words: Vec<&str> = words.split(' ').collect();
    container("linkerd-proxy", 2102, &words)
}

pub fn container(name: &str, uid: u32, words: &[&str]) -> Value {
    let args: Vec<&str> = ["/probe"].iter().chain(words).copied().collect();
    json!({
        "name": name,
        "image": "linkerd2-cni-probe:test",
        "imagePullPolicy": "Never",
        "args": args,
        "securityContext": {
            "runAsUser": uid,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
    })
}

/// With the annotation that Linkerd's injector would set, where there is a proxy.
fn pod(name: &str, containers: &[Value], init: &[Value]) -> Value {
    let all = containers.iter().chain(init);
    let meshed = all.clone().any(|one| one["name"] == "linkerd-proxy");
    let annotations = match meshed {
        true => json!({"linkerd.io/proxy-version": "test"}),
        false => json!({}),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": name, "annotations": annotations},
        "spec": {"initContainers": init, "containers": containers},
    })
}

pub fn apply(object: &Value) {
    let mut child = command(&["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(object.to_string().as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success(), "kubectl apply: {object}");
}

/// Its output; panics with what it said if it fails.
pub fn kubectl(args: &[&str]) -> String {
    let output = command(args)
        .output()
        .expect("kubectl runs; scripts/tools kubernetes puts it where scripts/tools --path says");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.args(args);
    command
}
