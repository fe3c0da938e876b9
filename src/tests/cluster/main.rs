//! The chart on a real Kubernetes: install, upgrade, uninstall, and the connections of pods. Needs a cluster whose
//! only node is where the tests run, with the images loaded, as `scripts/test` creates it. Without a cluster the tests fail.
//!
//! A test that uses the node holds [`Node::exclusive`], so tests may run on any number of threads and in any order.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod active;
mod admission_policy;
mod agent;
mod agent_replaced;
mod another_namespace;
mod burst;
mod cached;
mod catalogue;
mod chart;
#[allow(dead_code, reason = "the plugin's tests use all of it")]
#[path = "../support/cni.rs"]
mod cni;
#[allow(dead_code, reason = "the chart's tests use all of it")]
#[path = "../support/documented.rs"]
mod commands;
mod connections;
mod copies;
mod documented;
mod drift;
mod extension;
mod families;
#[allow(dead_code, reason = "each suite has sources of its own")]
#[path = "../support/fault_page.rs"]
mod fault_page;
mod hand_made;
mod helm;
mod idle;
mod ignored;
#[allow(dead_code, reason = "the agent's tests use all of it")]
#[path = "../support/platforms.rs"]
mod layouts;
mod migration;
mod node;
mod outage;
mod own_account;
mod platforms;
mod plugin;
mod pods;
mod proxy_user;
mod quickstart;
mod refused;
mod release;
#[path = "../support/release_folder.rs"]
mod release_folder;
mod repair;
mod scene;
mod stopped;
mod take_over;
mod two_agents;
mod unreadable;
#[path = "../support/until.rs"]
mod until;
mod upstream;
mod watcher;

use std::time::Instant;

use connections::{
    a_native_sidecar_passes_the_validator_and_proxies,
    connections_go_through_the_proxy_where_they_should, linkerd_check_finds_what_it_looks_up,
    pods_started_after_an_upgrade_follow_it,
};
use scene::Scene;
use serde_json::Value;

#[test]
fn a_cluster_gets_the_chart_uses_it_and_is_left_as_it_was() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;

    let start = Instant::now();
    helm.run("install", &[]);
    let took = start.elapsed();
    println!("ready after {took:.1?}");

    linkerd_check_finds_what_it_looks_up();
    connections_go_through_the_proxy_where_they_should(pods);
    let meshed = node.api_requests("meshed");
    assert!((1..=2).contains(&meshed), "{meshed} API requests");
    let unmeshed = node.api_requests("unmeshed");
    assert_eq!(unmeshed, 0, "API requests for a pod without injection annotations");
    a_native_sidecar_passes_the_validator_and_proxies(pods);

    helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    let ports = &node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"];
    let ports: Vec<&Value> = ports.as_array().unwrap().iter().collect();
    assert!(ports.iter().any(|port| *port == "9999"), "{ports:?}");
    pods_started_after_an_upgrade_follow_it(pods);
    scene.uninstall();
}
