//! The chart on a real Kubernetes: install, upgrade, uninstall, and the connections of pods. Needs a cluster whose
//! only node is this machine, with the images loaded, as `scripts/test` creates it. Without a cluster the tests fail.
//!
//! A test that uses the node holds [`Node::exclusive`], so tests may run on any number of threads and in any order.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod admission_policy;
mod agent;
mod another_namespace;
mod burst;
mod cached;
mod chart;
#[allow(dead_code, reason = "the plugin's tests use all of it")]
#[path = "../support/cni.rs"]
mod cni;
mod hand_made;
mod helm;
mod idle;
mod ignored;
#[path = "../support/platforms.rs"]
mod layouts;
mod migration;
mod node;
mod outage;
mod own_account;
mod platforms;
mod plugin;
mod pods;
mod quickstart;
mod release;
mod repair;
mod stopped;
mod two_agents;
#[path = "../support/until.rs"]
mod until;
mod upstream;
mod watcher;

use std::time::Instant;

use helm::Helm;
use node::Node;
use pods::{Pods, kubectl};
use serde_json::Value;

#[test]
fn a_cluster_gets_the_chart_uses_it_and_is_left_as_it_was() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();

    let start = Instant::now();
    helm.run("install", &[]);
    let took = start.elapsed();
    println!("ready after {took:.1?}");

    linkerd_check_finds_what_it_looks_up();
    connections_go_through_the_proxy_where_they_should(&pods);
    let meshed = node.api_requests("meshed");
    assert!((1..=2).contains(&meshed), "{meshed} API requests");
    let unmeshed = node.api_requests("unmeshed");
    assert_eq!(unmeshed, 0, "API requests for a pod without injection annotations");
    a_native_sidecar_passes_the_validator_and_proxies(&pods);

    helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    let ports = &node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"];
    let ports: Vec<&Value> = ports.as_array().unwrap().iter().collect();
    assert!(ports.iter().any(|port| *port == "9999"), "{ports:?}");
    pods_started_after_an_upgrade_follow_it(&pods);

    drop(pods);
    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

/// Checks the objects that `linkerd check --pre --linkerd-cni-enabled` looks up.
fn linkerd_check_finds_what_it_looks_up() {
    for object in [
        "configmap/linkerd-cni-config",
        "clusterrole/linkerd-cni",
        "clusterrolebinding/linkerd-cni",
        "serviceaccount/linkerd-cni",
    ] {
        kubectl(&["get", object, "-n", "linkerd-cni", "-o", "name"]);
    }
    let status = kubectl(&[
        "get",
        "daemonset/linkerd-cni",
        "-n",
        "linkerd-cni",
        "-o",
        "jsonpath={.status.desiredNumberScheduled} {.status.numberReady}",
    ]);
    assert_eq!(status, "1 1", "scheduled and ready");
}

fn connections_go_through_the_proxy_where_they_should(pods: &Pods) {
    pods.start(&[pods::unmeshed("unmeshed"), pods::unmeshed("other"), pods::meshed("meshed")]);
    let (meshed, unmeshed) = (pods.ip("meshed"), pods.ip("unmeshed"));
    let other = pods.ip("other");
    let to = |ip: &str, port: u16| format!("{ip}:{port}");
    let original = |ip: &str| format!("original={ip}:8080");
    // (pod, container, target, container that responds, other text in the response)
    for (pod, container, target, responder, text) in [
        ("meshed", "app", to(&unmeshed, 8080), "proxy-outbound", original(&unmeshed)),
        ("meshed", "linkerd-proxy", to(&unmeshed, 8080), "app-of-unmeshed", String::new()),
        ("meshed", "app", to("127.0.0.1", 8080), "app-of-meshed", String::new()),
        ("unmeshed", "app", to(&meshed, 8080), "proxy-inbound", original(&meshed)),
        ("unmeshed", "app", to(&meshed, 4191), "proxy-admin", String::new()),
        ("unmeshed", "app", to(&meshed, 9999), "proxy-inbound", String::new()),
        ("unmeshed", "app", to(&other, 8080), "app-of-other", String::new()),
        ("unmeshed", "app", to(&other, 9999), "refused", String::new()),
    ] {
        let response = pods.connect(pod, container, &target);
        assert!(
            response.starts_with(responder) && response.contains(&text),
            "{container} in {pod} to {target}: {response}, not {responder} {text}"
        );
    }
}

/// The validator is an init container that runs before the proxy, so the rules must exist by then.
fn a_native_sidecar_passes_the_validator_and_proxies(pods: &Pods) {
    pods.start(&[pods::native_sidecar("sidecar")]);
    let validator =
        kubectl(&["logs", "-n", "sidecar", "sidecar", "-c", "linkerd-network-validator"]);
    assert_eq!(validator.trim(), "Validated");
    let response = pods.connect("unmeshed", "app", &format!("{}:8080", pods.ip("sidecar")));
    assert!(response.starts_with("proxy-inbound"), "{response}");
}

fn pods_started_after_an_upgrade_follow_it(pods: &Pods) {
    pods.start(&[pods::meshed("upgraded")]);
    let ip = pods.ip("upgraded");
    for (port, responder) in [(8080, "proxy-inbound"), (9999, "refused")] {
        let response = pods.connect("unmeshed", "app", &format!("{ip}:{port}"));
        assert!(response.starts_with(responder), "port {port}: {response}");
    }
}
