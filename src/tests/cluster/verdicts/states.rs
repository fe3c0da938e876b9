//! Makes the states of `verdicts.yaml`.

use std::any::Any;
use std::fs;
use std::path::PathBuf;
use std::thread;

use serde_json::{Value, json};

use super::HEALTHY;
use crate::agent::{Paused, delete_plugin_account, wait_for_rollout};
use crate::api;
use crate::containers::{address_of, kill_sandbox};
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::command;
use crate::node::{netns_of, pid_of};
use crate::pod_copy::hand_made;
use crate::pods::{self, Pods, container};
use crate::repair::{disruption_budget, stateful_set};
use crate::scene::OnDrop;
use crate::until::{until, until_found};
use crate::upstream::{self, Program};

/// A state of the cluster. Dropping the value ends the state.
pub struct State {
    /// The namespace and the pod about which `bypass` and `explain` are asked.
    pub namespace: String,
    pub pod: String,
    /// Flags of the commands, for the user that runs them.
    pub flags: Vec<String>,
    undo: Vec<Box<dyn Any>>,
}

impl State {
    /// A state of the pod in the namespace of this name, with the values that end the state when
    /// they are dropped.
    fn of(name: &str, undo: Vec<Box<dyn Any>>) -> State {
        State { namespace: name.to_owned(), pod: name.to_owned(), flags: Vec::new(), undo }
    }

    /// A state of the whole cluster.
    fn ended_by(undo: impl FnMut() + 'static) -> State {
        State::of("closed", vec![Box::new(OnDrop(undo))])
    }
}

pub fn make(name: &str) -> State {
    if let Some(resource) = name.strip_prefix("no right to ") {
        return user_without_right(resource);
    }
    match name {
        "" => State::of("closed", Vec::new()),
        "set-user-ID files" => {
            started(app_with("set-user-id", &[("allowPrivilegeEscalation", Value::Null)]))
        }
        "SYS_ADMIN" => started(capable("sys-admin", name)),
        "SYS_PTRACE" => started(capable("sys-ptrace", name)),
        "user of the image, waiting" => user_of_waiting_image(),
        "user of the image, running" => started(app_with("image-root", &[("", Value::Null)])),
        "Cilium with bpf-lb-sock" => cilium(),
        "upstream's agents beside these" => upstream_beside(),
        "no portmap" => no_portmap(),
        "broken network config" => broken_network_config(),
        "no kubelet" => State::of("closed", vec![Box::new(Paused::process(pid_of("kubelet")))]),
        "no account of the plugin" => no_account(),
        "crashing repair controller" => upgraded_without_wait(&CRASHING),
        "stale agent" => upgraded_without_wait(&STALE),
        "upstream's agents in place of these" => upstream_in_place(),
        "bare pod" => bare("bare"),
        "stranded pod of phase Running" => stranded_while_running(),
        "stranded pod made by hand" => stranded_by_hand(),
        "pod without CNI result" => pod_without_result(),
        "pod with rules of iptables-legacy" => started(pods::meshed("legacy")),
        "two disruption budgets" => two_disruption_budgets(),
        "most pods are bare" => most_pods_bare(),
        "pod without annotation" => started(hand_made("unannotated")),
        _ => panic!("no state is called {name}"),
    }
}

/// Changes the values of the release to [`HEALTHY`] and these, and waits until the agent is
/// replaced.
pub fn upgrade(values: &str) {
    let mut flags = vec!["--set", HEALTHY];
    if !values.is_empty() {
        flags.extend(["--set", values]);
    }
    Helm::new().run("upgrade", &flags);
}

/// Ends a state that an upgrade made. A second panic would end the whole test program.
fn upgrade_back() {
    if !thread::panicking() {
        upgrade("");
    }
}

// ---- pods ----

fn started(pod: Value) -> State {
    let pods = Pods::default();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    pods.start(&[pod]);
    State::of(&name, vec![Box::new(pods)])
}

/// A meshed pod with changes of its app's securityContext. The empty key is the securityContext
/// itself, and null removes.
fn app_with(name: &str, changes: &[(&str, Value)]) -> Value {
    let mut pod = pods::meshed(name);
    let app = pod["spec"]["containers"][0].as_object_mut().unwrap();
    for (key, value) in changes {
        let object = match *key {
            "" => &mut *app,
            _ => app["securityContext"].as_object_mut().unwrap(),
        };
        let key = if key.is_empty() { "securityContext" } else { key };
        object.remove(key);
        if !value.is_null() {
            object.insert(key.to_owned(), value.clone());
        }
    }
    pod
}

fn capable(name: &str, capability: &str) -> Value {
    app_with(name, &[("capabilities", json!({"drop": ["ALL"], "add": [capability]}))])
}

/// A pod whose app has not started, so that no kubelet reports the app's user.
fn user_of_waiting_image() -> State {
    let mut pod = app_with("image-user", &[("runAsUser", Value::Null)]);
    pod["spec"]["initContainers"] = json!([container("waiting", 1000, &["wait", "60m"])]);
    let pods = Pods::default();
    pods.create(&[pod]);
    State::of("image-user", vec![Box::new(pods)])
}

/// Removes all rules in the netns of the pod whose name starts with `name`.
fn remove_rules(name: &str) {
    let address = until_found("the pod's network", || address_of(name));
    netns_of(&address).must(&["nft", "flush", "ruleset"]);
}

fn bare(name: &str) -> State {
    let state = started(pods::meshed(name));
    remove_rules(name);
    state
}

fn most_pods_bare() -> State {
    let names = ["most-1", "most-2", "most-3", "most-4"];
    let pods = Pods::default();
    pods.start(&names.map(pods::meshed));
    for name in names {
        remove_rules(name);
    }
    State::of(names[0], vec![Box::new(pods)])
}

/// A meshed pod whose validator starts after some time, in which a test can remove the rules.
fn late_validator(name: &str) -> Value {
    let mut pod = pods::validated(name, "2s");
    let init = pod["spec"]["initContainers"].as_array_mut().unwrap();
    init.insert(0, container("late", 65534, &["wait", "15s"]));
    pod
}

fn until_stranded(pods: &Pods, name: &str) {
    until("the validator fails", || {
        let validator = &pods.pod(name)["status"]["initContainerStatuses"][1];
        ["lastState", "state"].iter().any(|state| validator[state]["terminated"]["exitCode"] == 95)
    });
}

/// The pod runs, and gets a new sandbox, as after a reboot. There its validator fails.
fn stranded_while_running() -> State {
    let name = "stranded-running";
    let pods = Pods::default();
    pods.start(&[late_validator(name)]);
    let old = address_of(name).unwrap();
    kill_sandbox(name);
    until("the pod has a new address", || address_of(name).is_some_and(|new| new != old));
    remove_rules(name);
    until_stranded(&pods, name);
    // Pending while the validator runs again.
    until("the pod's phase is Running", || pods.pod(name)["status"]["phase"] == "Running");
    State::of(name, vec![Box::new(pods)])
}

fn stranded_by_hand() -> State {
    let name = "stranded-by-hand";
    let mut pod = late_validator(name);
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = json!({});
    let pods = Pods::default();
    pods.create(&[pod]);
    remove_rules(name);
    until_stranded(&pods, name);
    State::of(name, vec![Box::new(pods)])
}

/// The runtime's records of the pod's networks are moved away, so that nobody finds the pod's netns.
fn pod_without_result() -> State {
    let name = "without-result";
    let mut state = started(pods::meshed(name));
    for (number, record) in cached_results(name).into_iter().enumerate() {
        let aside = format!("/var/lib/cni/{name}-{number}");
        fs::rename(&record, &aside).unwrap();
        let restore = OnDrop(move || {
            let _ = fs::rename(&aside, &record);
        });
        state.undo.insert(0, Box::new(restore));
    }
    state
}

/// Returns the files with the CNI results of the pod whose namespace is `name`: one for the loopback
/// interface, and one for eth0.
fn cached_results(name: &str) -> Vec<PathBuf> {
    let argument = format!("\"K8S_POD_NAMESPACE\",\"{name}\"");
    let entries = fs::read_dir("/var/lib/cni/results").unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| fs::read_to_string(path).unwrap_or_default().contains(&argument));
    assert_eq!(paths.len(), 2, "{paths:?}");
    paths
}

/// The API server rejects the eviction of a pod with two disruption budgets with status 500.
fn two_disruption_budgets() -> State {
    let pods = Pods::default();
    pods.create(&[stateful_set()]);
    pods.until_ready("evicted");
    api::create(&disruption_budget("none", 0));
    api::create(&disruption_budget("one", 1));
    remove_rules("evicted");
    let mut state = State::of("evicted", vec![Box::new(pods)]);
    state.pod = "evicted-0".to_owned();
    state
}

// ---- users ----

const USER: &str = "verdicts";

/// What the checks read, as docs/cli.md says.
const RESOURCES: [&str; 13] = [
    "namespaces",
    "nodes",
    "pods",
    "pods/proxy",
    "events",
    "configmaps",
    "services",
    "serviceaccounts",
    "daemonsets",
    "clusterroles",
    "clusterrolebindings",
    "roles",
    "rolebindings",
];

pub fn user_with_all_rights() -> State {
    user_without_right("")
}

fn user_without_right(resource: &str) -> State {
    let mut resources = RESOURCES.to_vec();
    resources.retain(|other| *other != resource);
    let rbac = "rbac.authorization.k8s.io";
    let groups = ["", "apps", rbac];
    api::create(&json!({
        "apiVersion": format!("{rbac}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": USER},
        "rules": [{"apiGroups": groups, "resources": resources, "verbs": ["get", "list"]}],
    }));
    api::create(&json!({
        "apiVersion": format!("{rbac}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": USER}],
    }));
    let mut state = State::ended_by(|| {
        let _ = command(&format!("delete clusterrole,clusterrolebinding {USER}")).output();
    });
    state.flags = vec![format!("--as={USER}")];
    state
}

// ---- other programs, and the node ----

fn cilium() -> State {
    api::create(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {
            "cni-exclusive": "false",
            "kube-proxy-replacement": "false",
            "bpf-lb-sock": "true",
        },
    }));
    State::ended_by(|| {
        let _ = command("delete configmap cilium-config -n kube-system").output();
    })
}

/// A DaemonSet of upstream's chart in another namespace, whose agent does nothing.
fn upstream_beside() -> State {
    let namespace = "other-agent";
    pods::create_namespace(namespace);
    let labels = json!({"k8s-app": "linkerd-cni"});
    let mut agent = container("install-cni", 65534, &["pause"]);
    agent["env"] = json!([]);
    api::create(&json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "linkerd-cni", "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [agent]}},
        },
    }));
    State::ended_by(move || {
        let _ = api::admin().delete_and_wait(&pods::namespace_path(namespace));
    })
}

fn no_portmap() -> State {
    let [plugin, aside] = ["/opt/cni/bin/portmap", "/opt/cni/portmap"];
    fs::rename(plugin, aside).unwrap();
    let restore = OnDrop(move || {
        let _ = fs::rename(aside, plugin);
    });
    let pods = Pods::default();
    pods.create(&[pods::meshed("no-network")]);
    State::of("no-network", vec![Box::new(restore), Box::new(pods)])
}

/// containerd loads no network config at all if the first file is invalid.
fn broken_network_config() -> State {
    let path = "/etc/cni/net.d/00-broken.conflist";
    fs::write(path, "{").unwrap();
    State::ended_by(move || {
        let _ = fs::remove_file(path);
    })
}

fn no_account() -> State {
    let account = delete_plugin_account();
    State::ended_by(move || {
        let _ = api::admin().create(&account);
    })
}

// ---- agents ----

/// The repair controller refuses this log level. Without a surge, the agent before is stopped first.
const CRASHING: [&str; 3] = [
    "--skip-schema-validation",
    "--set=repairController.logLevel=kube=loud",
    "--set=updateStrategy.rollingUpdate.maxSurge=0,updateStrategy.rollingUpdate.maxUnavailable=1",
];

const STALE: [&str; 1] = ["--set=updateStrategy.type=OnDelete,logLevel=debug"];

fn upgraded_without_wait(flags: &[&str]) -> State {
    let upgrade = ["upgrade", "linkerd-cni", CHART, "-n", NAMESPACE, "--set", HEALTHY];
    Helm::new().must(&[&upgrade[..], flags].concat());
    State::ended_by(upgrade_back)
}

fn upstream_in_place() -> State {
    let chart = tempfile::tempdir().unwrap();
    upstream::write_chart(chart.path(), Program::OurAgent);
    let version = format!("image.version=v{}", linkerd2_cni::VERSION);
    let upgrade = ["upgrade", "linkerd-cni", chart.path().to_str().unwrap(), "-n", NAMESPACE];
    Helm::new().must(&[&upgrade[..], &["--set", &version]].concat());
    wait_for_rollout();
    State::ended_by(upgrade_back)
}
