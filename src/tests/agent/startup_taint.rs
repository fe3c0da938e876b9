//! Tests the startup taint, which keeps pods off a node until the agent is ready.

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

/// Creates a node with the startup taint and two other taints.
fn tainted() -> (Api, Node) {
    let api = Api::start();
    let mut node = Node::with_api(&api);
    node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
    make_bin_dir(&node);
    api.state().taints = taints(&["one", KEY, "other"]);
    (api, node)
}

/// Waits until the API thread has run all of its tasks, including the removal of the taint. It
/// checks the credential first. When it checks the credential a second time, it has finished the
/// tasks that followed the first check.
fn until_tasks_finished(scene: &Scene) {
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

/// Creates a bin dir with a plugin of the primary CNI.
fn make_bin_dir(node: &Node) {
    let _ = fs::create_dir(node.bin(""));
    fs::write(node.bin("calico"), "a plugin").unwrap();
}

/// Waits until the startup taint is removed and only the other taints are left.
fn until_removed(api: &Api) {
    until("the taint is removed", || api.state().taints == taints(&["one", "other"]));
}

const SELF_TEST: (&str, &str) = ("LINKERD_CNI_SELF_TEST", "true");

fn required(required: bool) -> (&'static str, &'static str) {
    ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", if required { "true" } else { "false" })
}

/// A plugin that responds only to VERSION.
const FAILS_ADD: &[u8] =
    b"#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{\"supportedVersions\": [\"1.0.0\"]}'\n";

type Change = fn(&Node);
/// Word in the reason of `/ready`, environment variable of the agent, function that causes the
/// fault, and function that ends the fault.
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
fn startup_taint_is_kept_while_the_node_is_not_ready() {
    for (what, var, fault, end) in NOT_READY {
        let vars = if var.0.is_empty() { vec![] } else { vec![var] };
        let scene = start(&vars, |_, node| fault(node));
        until(what, || scene.agent.ready().1.contains(what));
        until_tasks_finished(&scene);
        assert_eq!(scene.api.asked("", "/api/v1/nodes/"), 0, "{what}");
        assert_eq!(scene.api.state().taints.len(), 3, "{what}");
        end(&scene.node);
        if var != SELF_TEST {
            until_removed(&scene.api);
        }
    }
}

/// The plugin is chained, so no meshed pod can start without redirect rules. If the taint were
/// kept, the node would never get a pod.
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
fn failed_taint_removal_is_logged_once_and_retried_until_sigterm() {
    let mut scene = start(&[], |api, _| api.state().conflicts = u32::MAX);
    scene.agent.until_ready();
    let Scene { api, agent, .. } = &mut scene;
    until("three attempts", || api.asked("PATCH", "/api/v1/nodes/node-1") > 2);
    let warning = format!("cannot remove the startup taint {KEY} from node node-1: ");
    assert_eq!(agent.log().matches(&warning).count(), 1, "{}", agent.log());
    assert_eq!(agent.ready().0, 200);
    api.state().daemon_set = DaemonSetState::Status(403);
    delete_pod(api);
    agent.signal(Signal::SIGTERM);
    until("the agent asks again", || agent.log().contains("asking again"));
    api.state().conflicts = 0;
    // Wait long enough for another attempt to remove the taint. There must be none.
    let requests = || api.asked("GET", "/daemonsets/linkerd-cni");
    let before = requests();
    until("two more requests for the DaemonSet", || requests() >= before + 2);
    api.state().daemon_set = DaemonSetState::Exists;
    assert_eq!(agent.wait(), Some(0));
    assert_eq!(api.state().taints.len(), 3, "{}", agent.log());
    let _next = scene.node.start_with(&[("LINKERD_CNI_STARTUP_TAINT", KEY)]);
    until_removed(&scene.api);
}
