//! Pods that connect to each other, each in a namespace of its name, so that API requests are
//! counted for each.

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

/// Time in which kubelet accepts `kubectl exec` again after a restart.
const EXEC: Duration = Duration::from_secs(90);

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
            // An earlier test's namespace of that name may not be deleted yet.
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

    /// A field of the pod in the namespace `name`; empty if there is no pod or no such field.
    pub fn field(&self, name: &str, jsonpath: &str) -> String {
        let path = format!("jsonpath={{.items[0]{jsonpath}}}");
        let output = command(&format!("get pods -n {name} -o {path}")).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub fn ip(&self, name: &str) -> String {
        self.field(name, ".status.podIP")
    }

    pub fn ip_of(&self, name: &str, family: Family) -> String {
        let all = self.field(name, ".status.podIPs[*].ip");
        let ip = all.split(' ').find(|ip| family.includes(ip));
        ip.unwrap_or_else(|| panic!("pod {name} has no {family:?} address: {all}")).to_owned()
    }

    pub fn connect(&self, pod: &str, container: &str, target: &str) -> String {
        let connect = format!("exec -n {pod} {pod} -c {container} -- /probe connect {target}");
        // After a restart, kubelet rejects kubectl for some time.
        until_some(EXEC, &format!("kubectl exec in {pod}"), || {
            let output = command(&connect).output().unwrap();
            let response = String::from_utf8(output.stdout).unwrap().trim().to_owned();
            if response.is_empty() {
                println!("{}", String::from_utf8_lossy(&output.stderr).trim());
            }
            if response.is_empty() { None } else { Some(response) }
        })
    }

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

    /// Waits until the validator of the pod `name`, which has no redirect rules, has failed.
    pub fn until_stranded(&self, name: &str) {
        let exit = ".status.initContainerStatuses[0].lastState.terminated.exitCode";
        until("the validator fails", || self.field(name, exit) == "95");
    }

    /// Waits for the proxy, which may start after the app. No connection may reach the app
    /// directly.
    pub fn until_proxied(&self, pod: &str, target: &str) {
        until_within(EXEC, "the proxy responds", || {
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
        // The deletion of a namespace takes 5 s, for which nothing has to wait.
        let _ = command("delete namespace --wait=false").args(names.iter()).output();
    }
}

pub fn apply_all(pods: impl Iterator<Item = Value>) {
    apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()}));
}

pub fn namespace(name: &str) -> OnDrop<impl FnMut()> {
    kubectl(&format!("create namespace {name}"));
    until_account(name);
    OnDrop(move || {
        succeeds(&format!("delete namespace {name} --timeout=60s"));
    })
}

pub fn until_account(namespace: &str) {
    let get = format!("get serviceaccount default -n {namespace}");
    until("the namespace's account", || succeeds(&get));
}

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

pub fn validation(timeout: &str) -> Vec<String> {
    let family = Family::all()[0];
    let (nobody, outbound) = (family.nobody(), family.any(4140));
    let words = ["validate", "--connect", &nobody, "--listen", &outbound, "--timeout", timeout];
    words.map(str::to_owned).to_vec()
}

fn app(pod: &str) -> Value {
    let name = format!("app-of-{pod}");
    let addresses = families::any(8080);
    let words = [&["serve".to_owned(), name][..], &addresses].concat();
    listening(8080, container("app", 1000, &words))
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
    listening(4191, container("linkerd-proxy", 2102, &words))
}

fn listening(port: u16, mut container: Value) -> Value {
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

/// A pod with these containers. If one is a proxy, the pod has the annotation and the label of
/// Linkerd's injector.
fn pod(name: &str, containers: &[Value], init: &[Value]) -> Value {
    let mut pod = manifest("pod");
    for key in ["name", "namespace"] {
        pod["metadata"][key] = name.into();
    }
    pod["spec"] = json!({"initContainers": init, "containers": containers});
    if containers.iter().chain(init).any(|one| one["name"] == "linkerd-proxy") {
        pod["metadata"]["annotations"] = json!({"linkerd.io/proxy-version": "test"});
        pod["metadata"]["labels"] = json!({"linkerd.io/control-plane-ns": "linkerd"});
    }
    pod
}
