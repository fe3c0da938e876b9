//! The startup taint of the agent's Node, which holds pods off the node until it is ready.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent_with_api::Scene;
use crate::api::{Api, DaemonSetState, delete_pod};
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

const KEY: &str = "linkerd.io/cni-not-ready";

fn taints(keys: &[&str]) -> Vec<Value> {
    let taint = |key: &&str| json!({"key": key, "effect": "NoSchedule", "timeAdded": "x"});
    keys.iter().map(taint).collect()
}

/// A node with the taint and two others.
fn tainted() -> (Api, Node) {
    let api = Api::start();
    let mut node = Node::with_api(&api);
    node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
    make_bin_dir(&node);
    api.state().taints = taints(&["one", KEY, "other"]);
    (api, node)
}

/// Waits until the thread that removes the taint has had a turn from its start to its end. A turn
/// checks the credential first, and a new kubeconfig causes a check: a second check follows the end
/// of the turn of the first.
fn another_turn(scene: &Scene) {
    scene.until_checked();
    scene.until_checked();
}

/// Starts an agent that removes the taint.
fn start(more: &[(&str, &str)], prepare: impl FnOnce(&Api, &Node)) -> Scene {
    let (api, node) = tainted();
    prepare(&api, &node);
    let agent = node.start_with(&[&[("LINKERD_CNI_STARTUP_TAINT", KEY)], more].concat());
    Scene { api, node, agent }
}

/// Makes a bin dir with a plugin of the primary CNI.
fn make_bin_dir(node: &Node) {
    let _ = fs::create_dir(node.bin(""));
    fs::write(node.bin("calico"), "a plugin").unwrap();
}

/// Waits until only the other taints are left.
fn until_removed(api: &Api) {
    until("the taint is removed", || api.state().taints == taints(&["one", "other"]));
}

const SELF_TEST: (&str, &str) = ("LINKERD_CNI_SELF_TEST", "true");

fn required(required: bool) -> (&'static str, &'static str) {
    ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", if required { "true" } else { "false" })
}

/// A plugin that responds to VERSION only.
const FAILS_ADD: &[u8] =
    b"#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{\"supportedVersions\": [\"1.0.0\"]}'\n";

type Change = fn(&Node);
/// What `/ready` names, the agent's variable, the fault, and its end.
const NOT_READY: [(&str, (&str, &str), Change, Change); 4] = [
    ("bin", ("", ""), |node| node.remove_tree("bin"), make_bin_dir),
    (
        "network",
        ("", ""),
        |node| fs::remove_file(node.net(LIST)).unwrap(),
        |node| node.write(LIST, CALICO),
    ),
    (
        "not chained",
        ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", "true"),
        |node| fs::remove_file(node.bin("calico")).unwrap(),
        make_bin_dir,
    ),
    (
        "self-test",
        SELF_TEST,
        |node| node.replace(&node.root().join("image/linkerd-cni"), FAILS_ADD),
        |_| {},
    ),
];

#[test]
fn startup_taint_stays_while_the_node_is_not_ready() {
    for (what, var, fault, end) in NOT_READY {
        let vars = if var.0.is_empty() { vec![] } else { vec![var] };
        let scene = start(&vars, |_, node| fault(node));
        until(what, || scene.agent.ready().1.contains(what));
        another_turn(&scene);
        assert_eq!(scene.api.asked("", "/api/v1/nodes/"), 0, "{what}");
        assert_eq!(scene.api.state().taints.len(), 3, "{what}");
        end(&scene.node);
        if var != SELF_TEST {
            until_removed(&scene.api);
        }
    }
}

/// The plugin is chained, so no pod can start without it, and the node would never get a pod.
#[test]
fn startup_taint_is_removed_if_a_wrong_bin_dir_is_only_a_warning() {
    for killed in [false, true] {
        let scene = start(&[required(killed)], |_, node| {
            fs::remove_file(node.bin("calico")).unwrap();
            if killed {
                node.install();
            }
        });
        until_removed(&scene.api);
        assert!(scene.agent.log().contains("CNI directories: "), "{}", scene.agent.log());
    }
}

#[test]
fn failed_taint_removal_is_logged_once_and_repeated_but_not_after_sigterm() {
    let mut scene = start(&[], |api, _| api.state().conflicts = u32::MAX);
    scene.agent.until_ready();
    let Scene { api, agent, .. } = &mut scene;
    until("three tries", || api.asked("PATCH", "/api/v1/nodes/node-1") > 2);
    let says = format!("cannot remove the startup taint {KEY} from node node-1: ");
    assert_eq!(agent.log().matches(&says).count(), 1, "{}", agent.log());
    assert_eq!(agent.ready().0, 200);
    api.state().daemon_set = DaemonSetState::Status(403);
    delete_pod(api);
    agent.signal(Signal::SIGTERM);
    until("the agent asks again", || agent.log().contains("asking again"));
    api.state().conflicts = 0;
    // In this time the agent would try to remove the taint again.
    let rounds = || api.asked("GET", "/daemonsets/linkerd-cni");
    let before = rounds();
    until("two more rounds of requests", || rounds() >= before + 2);
    api.state().daemon_set = DaemonSetState::Exists;
    assert_eq!(agent.wait(), Some(0));
    assert_eq!(api.state().taints.len(), 3, "{}", agent.log());
    let _next = scene.node.start_with(&[("LINKERD_CNI_STARTUP_TAINT", KEY)]);
    until_removed(&scene.api);
}
