//! Pods that connect to each other. Each pod is in a namespace of the same name, so that a test can
//! count the API requests for the pod.

use std::cell::RefCell;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::families::{self, Family};
use super::kubectl::succeeds;
pub use super::kubectl::{apply, command, field, kubectl};
use crate::OnDrop;
use crate::chart::yaml;
use crate::until::{until, until_some, until_within};

/// Longest time until kubelet accepts `kubectl exec` again after a restart.
const EXEC_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Default)]
pub struct Pods {
    names: RefCell<Vec<String>>,
}

impl Pods {
    pub fn start(&self, pods: &[Value]) {
        self.create(pods);
        for pod in pods {
            self.until_ready(pod["metadata"]["name"].as_str().unwrap());
        }
    }

    pub fn create(&self, objects: &[Value]) {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            // The creation fails while an earlier test's namespace of this name is being deleted.
            until("the namespace is created", || succeeds(&format!("create namespace {name}")));
            self.names.borrow_mut().push(name.to_owned());
            until_account(name);
            apply(object);
        }
    }

    pub fn until_ready(&self, name: &str) {
        assert!(
            succeeds(&format!("wait -n {name} --for=condition=Ready --timeout=180s pod --all")),
            "pod {name} is not ready: {}",
            kubectl(&format!("get pods,events -n {name}"))
        );
    }

    /// Returns a field of the pod in the namespace `name`. Empty if there is no pod or no such
    /// field.
    pub fn field(&self, name: &str, jsonpath: &str) -> String {
        let path = format!("jsonpath={{.items[0]{jsonpath}}}");
        let output = command(&format!("get pods -n {name} -o {path}")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub fn ip(&self, name: &str) -> String {
        self.field(name, ".status.podIP")
    }

    pub fn ip_of(&self, name: &str, family: Family) -> String {
        let addresses = self.field(name, ".status.podIPs[*].ip");
        let ip = addresses.split(' ').find(|ip| family.includes(ip));
        ip.unwrap_or_else(|| panic!("pod {name} has no {family:?} address: {addresses}")).to_owned()
    }

    /// Connects from a container, and returns the server's line, or why there is none.
    pub fn connect(&self, pod: &str, container: &str, target: &str) -> String {
        let connect = format!("exec -n {pod} {pod} -c {container} -- /probe connect {target}");
        // Kubelet rejects `kubectl exec` for some time after a restart, so it is repeated until
        // there is a response.
        until_some(EXEC_TIMEOUT, &format!("kubectl exec in {pod}"), || {
            let output = command(&connect).output().unwrap();
            let response = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            if response.is_empty() {
                println!("{}", String::from_utf8_lossy(&output.stderr).trim());
                return None;
            }
            Some(response)
        })
    }

    /// Connects from the app of a pod to the app of another one, and returns the server's line.
    pub fn response(&self, from: &str, to: &str) -> String {
        self.connect(from, "app", &Family::all()[0].to(&self.ip(to), 8080))
    }

    pub fn assert_answers(&self, from: &str, to: &str, responder: &str) {
        let response = self.response(from, to);
        assert!(response.starts_with(responder), "{from} to {to}: {response}, not {responder}");
    }

    pub fn assert_connects(
        &self,
        [pod, container, target]: [&str; 3],
        responder: &str,
        text: &str,
    ) {
        let response = self.connect(pod, container, target);
        assert!(
            response.starts_with(responder) && response.contains(text),
            "{container} in {pod} to {target}: {response}, not {responder} {text}"
        );
    }

    /// Waits until the validator of the pod `name` has failed, because the pod has no redirect
    /// rules.
    pub fn until_stranded(&self, name: &str) {
        let exit = ".status.initContainerStatuses[0].lastState.terminated.exitCode";
        until("the validator fails", || self.field(name, exit) == "95");
    }

    /// Waits until the proxy responds, because it may start after the app. Fails if a connection
    /// reaches the app directly meanwhile.
    pub fn until_proxied(&self, pod: &str, target: &str) {
        until_within(EXEC_TIMEOUT, "the proxy responds", || {
            let response = self.connect(pod, "app", target);
            assert!(!response.starts_with("app-of"), "past the proxy: {response}");
            response.starts_with("proxy-inbound")
        });
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let names = self.names.borrow();
        thread::scope(|scope| {
            for name in names.iter() {
                let delete = format!("delete statefulset,pod --all --grace-period=1 -n {name}");
                scope.spawn(move || succeeds(&delete));
            }
        });
        // The deletion of a namespace takes 5 s. Nothing depends on its end, so it is not awaited.
        let _ = command("delete namespace --wait=false").args(names.iter()).output();
    }
}

pub fn apply_all(pods: impl Iterator<Item = Value>) {
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()}));
}

/// Creates a namespace. Dropping the returned value deletes it.
pub fn namespace(name: &str) -> OnDrop<impl FnMut()> {
    kubectl(&format!("create namespace {name}"));
    until_account(name);
    OnDrop(move || {
        succeeds(&format!("delete namespace {name} --timeout=60s"));
    })
}

/// Waits until the namespace has its ServiceAccount `default`, without which no pod can be created.
pub fn until_account(namespace: &str) {
    let get = format!("get serviceaccount default -n {namespace}");
    until("the namespace's account", || succeeds(&get));
}

/// Returns the messages of the Events with this reason.
pub fn events(namespace: &str, reason: &str) -> String {
    let events = format!("events -n {namespace} --field-selector reason={reason}");
    field(&events, ".items[*].message")
}

pub fn in_default(mut pod: Value) -> Value {
    pod["metadata"]["namespace"] = "default".into();
    pod
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

/// A pod that starts only if its connections are redirected: without redirect rules, its validator
/// exits with 95 and is restarted.
pub fn validated(name: &str, timeout: &str) -> Value {
    let mut sidecar = proxy();
    sidecar["restartPolicy"] = json!("Always");
    let validator = container("linkerd-network-validator", 65534, &validation(timeout));
    pod(name, &[app(name)], &[validator, sidecar])
}

/// Returns the words of a command that connects as Linkerd's validator does.
pub fn validation(timeout: &str) -> Vec<String> {
    let family = Family::all()[0];
    let nobody = family.nobody();
    let outbound = family.any(4140);
    let words = ["validate", "--connect", &nobody, "--listen", &outbound, "--timeout", timeout];
    words.map(str::to_owned).to_vec()
}

fn app(pod: &str) -> Value {
    let name = format!("app-of-{pod}");
    let mut words = vec!["serve".to_owned(), name];
    words.extend(families::any(8080));
    with_readiness_probe(8080, container("app", 1000, &words))
}

fn proxy() -> Value {
    let mut words = vec!["serve".to_owned()];
    for (name, ports) in [
        ("proxy-inbound", &[4143][..]),
        ("proxy-outbound", &[4140]),
        ("proxy-admin", &[4190, 4191]),
    ] {
        words.push(name.to_owned());
        words.extend(ports.iter().flat_map(|port| families::any(*port)));
    }
    with_readiness_probe(4191, container("linkerd-proxy", 2102, &words))
}

/// Adds a readiness probe that connects to `port`.
fn with_readiness_probe(port: u16, mut container: Value) -> Value {
    container["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    container
}

pub fn container(name: &str, uid: u32, words: &[impl AsRef<str>]) -> Value {
    let mut args = vec!["/probe"];
    args.extend(words.iter().map(AsRef::as_ref));
    let mut container = manifest("container");
    container["name"] = name.into();
    container["args"] = args.into();
    container["securityContext"]["runAsUser"] = uid.into();
    container
}

pub(super) fn manifest(name: &str) -> Value {
    yaml(include_str!("pods.yaml"))[name].take()
}

/// A pod with these containers. If one of them is a proxy, the pod gets the annotation and the
/// label that Linkerd's injector sets.
fn pod(name: &str, containers: &[Value], init: &[Value]) -> Value {
    let mut pod = manifest("pod");
    for key in ["name", "namespace"] {
        pod["metadata"][key] = name.into();
    }
    pod["spec"] = json!({"initContainers": init, "containers": containers});
    if containers.iter().chain(init).any(|container| container["name"] == "linkerd-proxy") {
        pod["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "test"});
        pod["metadata"]["labels"] = json!({"linkerd.io/control-plane-ns": "linkerd"});
    }
    pod
}
