//! Pods to connect from and to, one in a namespace of its name, so that API requests can be told apart.

use std::cell::RefCell;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::until::{until, until_within};

/// For kubelet to come back.
const EXEC: Duration = Duration::from_secs(90);

/// The pods of a test; dropping it deletes them.
#[derive(Default)]
pub struct Pods {
    names: RefCell<Vec<String>>,
}

impl Pods {
    /// Creates all of them, then waits for all of them.
    pub fn start(&self, pods: &[Value]) {
        self.create(pods);
        for pod in pods {
            self.until_ready(pod["metadata"]["name"].as_str().unwrap());
        }
    }

    /// Creates pods, or what makes pods, each in a namespace of its name.
    pub fn create(&self, objects: &[Value]) {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            kubectl(&["create", "namespace", name]);
            self.names.borrow_mut().push(name.to_owned());
            until_account(name);
            apply(object);
        }
    }

    /// Waits for the pod of the name's namespace.
    #[allow(clippy::print_stdout, reason = "shows where a test's time goes")]
    pub fn until_ready(&self, name: &str) {
        let begin = Instant::now();
        let wait = ["wait", "-n", name, "--for=condition=Ready", "--timeout=180s"];
        let ready = command(&wait).args(["pod", "--all"]).stdout(Stdio::null()).status();
        assert!(
            ready.unwrap().success(),
            "pod {name} is not ready: {}",
            kubectl(&["get", "pods,events", "-n", name])
        );
        println!("{:>6.1?} pod {name} is ready", begin.elapsed());
    }

    /// One field of the pod in the name's namespace, empty as long as there is none.
    pub fn field(&self, name: &str, jsonpath: &str) -> String {
        let path = format!("jsonpath={{.items[0]{jsonpath}}}");
        let output = command(&["get", "pods", "-n", name, "-o", &path]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub fn ip(&self, name: &str) -> String {
        self.field(name, ".status.podIP")
    }

    /// What a connection from the container got, `refused` and `timeout` included.
    pub fn connect(&self, pod: &str, container: &str, target: &str) -> String {
        let exec = ["exec", "-n", pod, pod, "-c", container, "--"];
        let mut answer = String::new();
        // kubelet may have just been started anew, and then refuses kubectl.
        until_within(EXEC, &format!("kubectl exec in {pod}"), || {
            let mut kubectl = command(&exec);
            let output = kubectl.args(["/probe", "connect", target]).output();
            let output = output.unwrap();
            answer = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            let said = String::from_utf8_lossy(&output.stderr);
            show_unless(!answer.is_empty(), &said);
            !answer.is_empty()
        });
        answer
    }

    /// Waits for a container's proxy, which may start after the app next to it, to get
    /// connections to `target`. The app must get none before.
    pub fn until_proxied(&self, pod: &str, target: &str) {
        until_within(EXEC, "the proxy answers", || {
            let answer = self.connect(pod, "app", target);
            assert!(!answer.starts_with("app-of"), "past the proxy: {answer}");
            answer.starts_with("proxy-inbound")
        });
    }
}

#[allow(clippy::print_stdout, reason = "says why a test waits")]
fn show_unless(good: bool, said: &str) {
    if !good {
        println!("{}", said.trim());
    }
}

impl Drop for Pods {
    #[allow(clippy::print_stdout, reason = "shows where a test's time goes")]
    fn drop(&mut self) {
        let begin = Instant::now();
        let names = self.names.borrow();
        for name in names.iter() {
            let delete = ["delete", "statefulset,pod", "--all", "-n", name];
            let _ = command(&delete).arg("--grace-period=1").output();
        }
        let delete = ["delete", "namespace", "--timeout=60s"];
        let _ = command(&delete).args(names.iter()).output();
        println!("{:>6.1?} pods are gone", begin.elapsed());
    }
}

/// Waits for the account without which a new namespace takes no pods.
pub fn until_account(namespace: &str) {
    until("the namespace's account", || {
        let account = ["get", "serviceaccount", "default", "-n", namespace];
        command(&account).output().unwrap().status.success()
    });
}

pub fn unmeshed(name: &str) -> Value {
    pod(name, &[app(name)], &[])
}

pub fn meshed(name: &str) -> Value {
    pod(name, &[app(name), proxy()], &[])
}

pub fn native_sidecar(name: &str) -> Value {
    validated(name, "10s")
}

/// Starts only if its connections go to the proxy. Without that its init container
/// fails with 95 after `timeout`, again and again.
pub fn validated(name: &str, timeout: &str) -> Value {
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
            timeout,
        ],
    );
    pod(name, &[app(name)], &[validator, sidecar])
}

/// The pod, which waits before its first init container.
pub fn after(wait: &str, mut pod: Value) -> Value {
    let init = pod["spec"]["initContainers"].as_array_mut().unwrap();
    init.insert(0, container("wait", 1000, &["wait", wait]));
    pod
}

/// The StatefulSet of the pod `name-0`, made like `pod`.
pub fn stateful(pod: &Value) -> Value {
    let name = &pod["metadata"]["name"];
    let annotations = &pod["metadata"]["annotations"];
    let mut labels = pod["metadata"]["labels"].clone();
    labels["app"] = name.clone();
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": pod["spec"],
            },
        },
    })
}

fn app(pod: &str) -> Value {
    let name = format!("app-of-{pod}");
    let app = container("app", 1000, &["serve", &name, "0.0.0.0:8080"]);
    listening(8080, app)
}

fn proxy() -> Value {
    let words = "serve proxy-inbound 0.0.0.0:4143 proxy-outbound 0.0.0.0:4140 proxy-admin 0.0.0.0:4190 0.0.0.0:4191";
    let words: Vec<&str> = words.split(' ').collect();
    listening(4191, container("linkerd-proxy", 2102, &words))
}

/// The container, which is ready once it takes connections.
fn listening(port: u16, mut container: Value) -> Value {
    container["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    container
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

/// With the annotation and the label that Linkerd's injector would set, where there is
/// a proxy.
fn pod(name: &str, containers: &[Value], init: &[Value]) -> Value {
    let all = containers.iter().chain(init);
    let meshed = all.clone().any(|one| one["name"] == "linkerd-proxy");
    let (annotations, labels) = match meshed {
        true => (
            json!({"linkerd.io/proxy-version": "test"}),
            json!({"linkerd.io/control-plane-ns": "linkerd"}),
        ),
        false => (json!({}), json!({})),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": name,
            "annotations": annotations,
            "labels": labels,
        },
        "spec": {"initContainers": init, "containers": containers},
    })
}

pub fn apply(object: &Value) {
    let mut child =
        command(&["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
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
