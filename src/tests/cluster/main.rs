//! The chart on a real Kubernetes: install, upgrade, uninstall, and the connections of pods. Needs a cluster whose
//! only node is where the tests run, with the images loaded, as `scripts/test` creates it. Without a cluster the tests fail.
//!
//! A test that uses the node holds [`Node::exclusive`], so tests may run on any number of threads and in any order.

#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(clippy::print_stdout, reason = "shows what was measured, and where a test's time goes")]

mod admission_policy;
mod agent_replaced;
mod annotated_pods;
/// The pages of the fault catalogue that only a cluster can show. `src/tests/agent/catalogue` has the others.
mod catalogue {
    mod installation;
    mod pods;
    mod shown;
}
mod chart;
mod denied_evictions;
mod documented;
mod extension;
mod idle;
mod migration;
mod mounted_directories;
mod outage;
mod platforms;
mod pod_copy;
mod quickstart;
mod release;
mod repair;
mod reported_pods;
mod scene;
mod service_accounts;
mod sigterm;
mod take_ownership;
mod two_agents;

use std::time::Instant;

use scene::Scene;
use serde_json::Value;
use testkit::cluster::connections::{
    a_native_sidecar_passes_the_validator_and_proxies,
    connections_go_through_the_proxy_where_they_should, linkerd_check_finds_what_it_looks_up,
    pods_started_after_an_upgrade_follow_it,
};
use testkit::cluster::{
    agent, burst, connections, containers, helm, kubectl, node, pods, upstream, watcher,
};
use testkit::{cni, documented as commands, fault_page, platforms as layouts, until};

#[test]
fn install_upgrade_and_uninstall_redirect_pods_and_restore_the_node() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;

    let start = Instant::now();
    helm.run("install", &[]);
    let took = start.elapsed();
    println!("ready after {took:.1?}");

    linkerd_check_finds_what_it_looks_up();
    connections_go_through_the_proxy_where_they_should(pods);
    for name in ["meshed", "unmeshed"] {
        assert_eq!(node.api_requests(name), 0, "API requests for the pod {name}");
    }
    a_native_sidecar_passes_the_validator_and_proxies(pods);

    helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    let ports = &node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"];
    let ports: Vec<&Value> = ports.as_array().unwrap().iter().collect();
    assert!(ports.iter().any(|port| *port == "9999"), "{ports:?}");
    pods_started_after_an_upgrade_follow_it(pods);
    scene.uninstall();
}
