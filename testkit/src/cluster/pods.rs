//! Pods that connect to each other. Each pod is in a namespace of the same name, so that a test can
//! count the API requests for the pod.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};

use super::api;
use super::families::{self, Family};
use super::kubectl::{command, kubectl};
use crate::OnDrop;
use crate::chart::yaml;
use crate::until::{becomes_true, until, until_some, until_within};

/// Longest time until kubelet accepts `kubectl exec` again after a restart.
const EXEC_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest time until a pod is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(180);
/// Longest time until deleted pods have ended.
const END_TIMEOUT: Duration = Duration::from_secs(60);

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
            create_namespace(name);
            self.names.borrow_mut().push(name.to_owned());
            api::create(object);
        }
    }

    pub fn until_ready(&self, name: &str) {
        let became_ready = becomes_true(READY_TIMEOUT, || {
            let pods = list(name);
            !pods.is_empty() && pods.iter().all(is_ready)
        });
        assert!(
            became_ready,
            "pod {name} is not ready: {}",
            kubectl(&format!("get pods,events -n {name}"))
        );
    }

    /// Returns the pod in the namespace `name`. Null if there is no pod, or no response.
    pub fn pod(&self, name: &str) -> Value {
        let pods = api::admin().get(&path(name)).unwrap_or_default();
        pods["items"][0].clone()
    }

    /// Returns the UID of the pod in the namespace `name`. Empty if there is no pod.
    pub fn uid(&self, name: &str) -> String {
        self.pod(name)["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
    }

    pub fn ip(&self, name: &str) -> String {
        self.pod(name)["status"]["podIP"].as_str().unwrap_or_default().to_owned()
    }

    pub fn ip_of(&self, name: &str, family: Family) -> String {
        let pod = self.pod(name);
        let addresses = &pod["status"]["podIPs"];
        let mut ips = addresses.as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
        let ip = ips.find(|ip| family.includes(ip));
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
        until("the validator fails", || {
            let validator = &self.pod(name)["status"]["initContainerStatuses"][0];
            validator["lastState"]["terminated"]["exitCode"] == 95
        });
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
    /// Errors are ignored, because a second panic would end the whole test program.
    fn drop(&mut self) {
        let names = self.names.borrow();
        for name in names.iter() {
            let sets = format!("/apis/apps/v1/namespaces/{name}/statefulsets");
            let _ = api::admin().delete(&sets);
            let _ = api::admin().delete(&format!("{}?gracePeriodSeconds=1", path(name)));
        }
        becomes_true(END_TIMEOUT, || names.iter().all(|name| are_gone(name)));
        // The deletion of a namespace takes 5 s. Nothing depends on its end, so it is not awaited.
        for name in names.iter() {
            let _ = api::admin().delete(&namespace_path(name));
        }
    }
}

/// Returns the path of the pods in a namespace.
pub fn path(namespace: &str) -> String {
    format!("{}/pods", namespace_path(namespace))
}

pub fn list(namespace: &str) -> Vec<Value> {
    api::list(&path(namespace))
}

/// Whether the namespace has no pods. False if the API server does not respond.
pub fn are_gone(namespace: &str) -> bool {
    let pods = api::admin().get(&path(namespace));
    pods.is_ok_and(|pods| pods["items"].as_array().is_some_and(Vec::is_empty))
}

pub fn until_gone(namespace: &str) {
    until_within(END_TIMEOUT, &format!("the pods in {namespace} are gone"), || are_gone(namespace));
}

pub fn log(namespace: &str, pod: &str, container: &str) -> Result<String, api::Error> {
    api::admin().get_text(&format!("{}/{pod}/log?container={container}", path(namespace)))
}

/// Deletes the pods of the namespace, and waits until they are gone.
pub fn delete_all(namespace: &str) {
    api::admin().delete(&path(namespace)).unwrap();
    until_gone(namespace);
}

pub fn has_ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

pub fn is_ready(pod: &Value) -> bool {
    api::condition(pod, "Ready") == "True"
}

pub fn namespace_path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

/// Creates a namespace. Dropping the returned value deletes it.
pub fn namespace(name: &str) -> OnDrop<impl FnMut()> {
    create_namespace(name);
    let path = namespace_path(name);
    OnDrop(move || {
        let _ = api::admin().delete_and_wait(&path);
    })
}

/// Creates a namespace, and waits until it has its ServiceAccount `default`, without which no pod
/// can be created.
pub fn create_namespace(name: &str) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    // The creation fails while an earlier test's namespace of this name is being deleted.
    until("the namespace is created", || api::admin().create(&namespace).is_ok());
    let account = format!("{}/serviceaccounts/default", namespace_path(name));
    until("the namespace's account", || api::admin().get(&account).is_ok());
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
