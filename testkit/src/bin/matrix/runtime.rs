//! Checks and expected results that depend on the node's container runtime.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::cluster::agent::wait_for_rollout;
use testkit::cluster::api;
use testkit::cluster::families::{Family, setting};
use testkit::cluster::kubectl::kubectl;
use testkit::cluster::leftovers::remove_leftovers;
use testkit::cluster::node::{self, Files, Node, kill_component, start_missing_components};
use testkit::cluster::pods::{self, Pods};
use testkit::until::until_within;

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const CACHE: &str = "/var/lib/cni/results";
/// Directories of the networks of `host-local`.
const ALLOCATED: &str = "/var/lib/cni/networks";

/// Returns the name of the runtime without its version.
fn component() -> String {
    let runtime = setting("CLUSTER_RUNTIME");
    runtime.split('-').next().unwrap_or_default().to_owned()
}

/// Whether the runtime deletes a pod with the network config that it cached when it created the
/// pod, as CRI-O does, and not with the current one.
pub fn deletes_from_cache() -> bool {
    component() == "crio"
}

/// Asserts that the runtime needs the plugin binary to delete a pod's network: begins to delete a
/// pod while the binary is missing, and waits for the runtime's error. CRI-O 1.34 tries again until
/// the binary is back. CRI-O 1.36 deletes the pod, but not its network, so nobody gives the address
/// of the pod back to the primary CNI.
pub fn assert_deletion_needs_binary(node: &Node, name: &str) {
    let pod = api::get(&format!("{}/{name}", pods::path(name)));
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    let hidden_binary = Path::new("/opt/cni/linkerd-cni.away");
    fs::rename(BINARY, hidden_binary).unwrap();
    kubectl(&format!("delete pod -n {name} {name} --grace-period=1 --wait=false"));
    until_within(Duration::from_secs(60), "the runtime fails to delete the pod", || {
        let log = node.kubelet_log();
        let mut failures = log.lines().filter(|line| line.contains("failed to find plugin"));
        failures.any(|line| line.contains("linkerd-cni"))
    });
    assert!(is_allocated(address), "{address} of the pod {name}");
    fs::rename(hidden_binary, BINARY).unwrap();
}

/// Whether the plugin `host-local`, which has a file for each address, has given this one to a pod.
fn is_allocated(address: &str) -> bool {
    let networks = fs::read_dir(ALLOCATED).unwrap().flatten();
    networks.into_iter().any(|network| network.path().join(address).exists())
}

/// Whether the runtime has cached the result of ADD for a pod in this namespace.
pub fn has_cached(namespace: &str) -> bool {
    let files = fs::read_dir(CACHE).unwrap().flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    let argument = format!(r#"["K8S_POD_NAMESPACE","{namespace}"]"#);
    texts.into_iter().any(|text| text.contains(&argument))
}

/// Removes the plugin binary that the uninstall has left for the runtime.
pub fn remove_kept_binary(node: &Node, before: &Files) -> String {
    remove_leftovers(node, before, "--env=LINKERD_CNI_KEEP_BINARY=false");
    "the node's files as before".to_owned()
}

/// Restarts the runtime. Checks that running pods keep their containers, and that new pods start.
pub fn restart(pods: &Pods) -> String {
    let containers = || {
        let pod = pods.pod("meshed");
        let statuses = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        statuses.iter().map(|status| status["containerID"].clone()).collect::<Vec<_>>()
    };
    let before = containers();
    let begin = Instant::now();
    kill_component(&component());
    start_missing_components();
    let restart_time = begin.elapsed();
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");
    pods.start(&[pods::meshed("restarted")]);
    pods.assert_answers("unmeshed", "restarted", "proxy-inbound");
    assert_eq!(containers(), before, "the restart ends containers");
    wait_for_rollout();
    format!("{} back after {:.1} s; its pods run on", component(), restart_time.as_secs_f64())
}

pub fn has_user_namespaces() -> bool {
    let nodes = node::list();
    let handlers = nodes.iter().flat_map(|node| node["status"]["runtimeHandlers"].as_array());
    handlers.flatten().any(|handler| handler["features"]["userNamespaces"] == true)
}

/// Checks a pod in a user namespace. The proxy's UID is exempt as in any pod, because nf_tables
/// compares UIDs as the pod's user namespace maps them. With iptables this would fail, because the
/// kernel refuses its owner match in a user namespace (`owner_check` in
/// `net/netfilter/xt_owner.c`).
pub fn start_in_user_namespace(pods: &Pods) -> String {
    let mut pod = pods::native_sidecar("mapped");
    pod["spec"]["hostUsers"] = json!(false);
    pods.start(&[pod]);
    pods.assert_answers("unmeshed", "mapped", "proxy-inbound");
    let target = Family::all()[0].to(&pods.ip("unmeshed"), 8080);
    for (container, responder) in [("app", "proxy-outbound"), ("linkerd-proxy", "app-of-unmeshed")]
    {
        pods.assert_connects(["mapped", container, &target], responder, "");
    }
    let map = mapped_uids().expect("a process of a pod is in another user namespace");
    format!("redirected as in other pods; UIDs are mapped: {map}")
}

/// Returns the UID map of a pod's process in a user namespace of its own.
fn mapped_uids() -> Option<String> {
    for pid in testkit::pids() {
        let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
        if command_line.starts_with("/probe\0") && maps_root(&map) {
            return Some(map.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    None
}

/// Whether the first line of a UID map maps root to another user. The line has the first UID inside
/// of the namespace, the first UID outside, and the number of UIDs.
fn maps_root(uid_map: &str) -> bool {
    let mut numbers = uid_map.split_whitespace();
    let inside = numbers.next();
    let outside = numbers.next();
    inside == Some("0") && outside.is_some() && outside != Some("0")
}
