//! The agent's Node object: the startup taint, which holds pods off the node until it is ready, and the
//! condition.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState};
use crate::node::{CALICO, LIST, Node};
use crate::until::{until, until_within};

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
    fs::write(node.bin("calico"), "a plugin").unwrap();
    api.state().taints = taints(&["one", KEY, "other"]);
    (api, node)
}

/// Waits until the thread that removes the taint has had a turn from its start to its end. A turn checks the credential
/// first, and a new kubeconfig causes a check: a second check follows the end of the turn of the first.
fn another_turn(api: &Api, node: &Node) {
    let checks = || api.asked("GET", "/api/v1/namespaces/linkerd-cni?");
    for _ in 0..2 {
        until("the kubeconfig is written", || node.net("kubeconfig.json").exists());
        let before = checks();
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        until("a check of the credential", || checks() > before);
    }
}

fn start(node: &Node, more: &[(&str, &str)]) -> Agent {
    node.start_with(&[&[("LINKERD_CNI_STARTUP_TAINT", KEY)], more].concat())
}

#[test]
fn startup_taint_alone_is_removed_once_the_node_is_verified() {
    let (api, node) = tainted();
    api.state().conflicts = 2;
    let agent = start(&node, &[]);
    let left = taints(&["one", "other"]);
    until("the taint is off", || api.state().taints == left);
    let log = || agent.log();
    let line = format!("removed the startup taint {KEY} from node node-1");
    until("it is said", || log().contains(&line));
    assert!(log().find("is installed and verified") < log().find(&line));
    assert_eq!(api.asked("PATCH", "/api/v1/nodes/node-1"), 3);
    assert!(!log().contains("cannot remove the startup taint"), "{}", log());
}

#[test]
fn startup_taint_stays_while_the_node_is_not_ready() {
    let fails = b"#!/bin/sh\nexit 1\n";
    for what in ["bin", "network", "self-test"] {
        let (api, node) = tainted();
        match what {
            "bin" => node.remove_tree("bin"),
            "network" => fs::remove_file(node.net(LIST)).unwrap(),
            _ => node.replace(&node.root().join("image/linkerd-cni"), fails),
        }
        let test = ("LINKERD_CNI_SELF_TEST", if what == "self-test" { "true" } else { "false" });
        let agent = start(&node, &[test]);
        until("not ready", || agent.ready().1.contains(what));
        another_turn(&api, &node);
        assert_eq!(api.asked("", "/api/v1/nodes/"), 0, "{what}");
        assert_eq!(api.state().taints.len(), 3, "{what}");
        match what {
            "bin" => {
                fs::create_dir(node.root().join("bin")).unwrap();
                fs::write(node.bin("calico"), "a plugin").unwrap();
            }
            "network" => node.write(LIST, CALICO),
            _ => continue,
        }
        until("the taint is off", || api.state().taints.len() == 2);
    }
}

#[test]
fn startup_taint_stays_while_a_wrong_bin_dir_prevents_chaining() {
    let (api, node) = tainted();
    fs::remove_file(node.bin("calico")).unwrap();
    let agent = start(&node, &[required(true)]);
    until("the doubt", || agent.ready().1.contains("not chained"));
    another_turn(&api, &node);
    assert_eq!(api.asked("", "/api/v1/nodes/"), 0);
    fs::write(node.bin("calico"), "a plugin").unwrap();
    until("the taint is off", || api.state().taints.len() == 2);
}

/// The plugin is chained, so no pod can start without it, and the node would never get a pod.
#[test]
fn startup_taint_is_removed_if_a_wrong_bin_dir_is_only_a_warning() {
    for killed in [false, true] {
        let (api, node) = tainted();
        fs::remove_file(node.bin("calico")).unwrap();
        if killed {
            let mut earlier = node.start_ready();
            earlier.kill();
        }
        let agent = start(&node, &[required(killed)]);
        until("the taint is off", || api.state().taints.len() == 2);
        assert!(agent.log().contains("CNI directories: "), "{}", agent.log());
    }
}

fn required(required: bool) -> (&'static str, &'static str) {
    ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", if required { "true" } else { "false" })
}

#[test]
fn failed_taint_removal_is_logged_once_and_repeated() {
    let (api, node) = tainted();
    api.state().conflicts = u32::MAX;
    let mut agent = start(&node, &[]);
    agent.until_ready();
    until("two rounds of tries", || api.asked("PATCH", "/api/v1/nodes/node-1") > 6);
    let says = format!("cannot remove the startup taint {KEY} from node node-1: ");
    assert_eq!(agent.log().matches(&says).count(), 1, "{}", agent.log());
    assert_eq!(agent.ready().0, 200);
    api.state().conflicts = 0;
    until("the taint is off", || api.state().taints.len() == 2);
}

#[test]
fn an_agent_that_received_sigterm_does_not_remove_the_taint() {
    let (api, node) = tainted();
    api.state().conflicts = u32::MAX;
    let mut agent = start(&node, &[]);
    agent.until_ready();
    until("a failed removal", || agent.log().contains("cannot remove the startup taint"));
    api.state().daemon_set = DaemonSetState::Status(403);
    agent.signal(Signal::SIGTERM);
    until("the agent asks again", || agent.log().contains("asking again"));
    api.state().conflicts = 0;
    // In this time the agent would try to remove the taint again.
    let rounds = || api.asked("GET", "/daemonsets/linkerd-cni");
    let before = rounds();
    until("three more rounds of requests", || rounds() >= before + 3);
    assert_eq!(api.state().taints.len(), 3, "{}", agent.log());
    api.state().daemon_set = DaemonSetState::Exists;
    assert_eq!(agent.wait(), Some(0));
    assert_eq!(api.state().taints.len(), 3, "{}", agent.log());
}

#[test]
fn agent_without_a_startup_taint_reads_no_node() {
    let (api, node) = tainted();
    let _agent = node.start_ready();
    another_turn(&api, &node);
    assert_eq!(api.asked("GET", "/api/v1/nodes/"), 0);
}

/// The kubelet registers its node only when it starts, and then also renews the tokens of all pods.
#[test]
fn startup_taint_of_a_node_registered_again_is_removed_within_minutes() {
    let (api, node) = tainted();
    let agent = start(&node, &[]);
    until("the taint is removed", || api.state().taints.len() == 2);
    let reads = || api.asked("GET", "/api/v1/nodes/node-1");
    let before = reads();
    api.state().taints = taints(&[KEY]);
    api.state().tokens.push("token-2".into());
    node.rotate("token-2");
    until_within(Duration::from_secs(90), "the taint is removed again", || {
        api.state().taints.is_empty()
    });
    assert_eq!(reads(), before + 1, "{}", agent.log());
}

const CONDITION: &str = "linkerd-cni.linkerd.io/Ready";
/// Longest time from a fault to the withdrawal of the condition.
const WITHDRAWAL: Duration = Duration::from_secs(2);

fn start_with_condition(node: &Node) -> Agent {
    node.start_with(&[("LINKERD_CNI_NODE_CONDITION", "true")])
}

/// The agent's condition, or null.
fn condition(api: &Api) -> Value {
    let conditions = api.state().conditions.clone();
    assert_eq!(conditions[0], json!({"type": "Ready", "status": "True"}), "the kubelet's own");
    conditions.into_iter().find(|condition| condition["type"] == CONDITION).unwrap_or_default()
}

fn patches(api: &Api) -> usize {
    assert_eq!(api.asked("PATCH", "/api/v1/nodes/node-1"), api.asked("PATCH", "/node-1/status"));
    api.asked("PATCH", "/node-1/status")
}

#[test]
fn condition_is_true_while_the_node_is_ready_and_withdrawn_within_two_seconds_of_a_fault() {
    let (api, node) = tainted();
    api.state().conflicts = 2;
    let agent = start_with_condition(&node);
    until("the condition is true", || condition(&api)["status"] == "True");
    assert_eq!(condition(&api)["reason"], "PluginVerified");
    until("the change is logged", || agent.log().contains("to True"));
    assert!(agent.log().find("is installed and verified") < agent.log().find("to True"));
    assert_eq!((patches(&api), api.state().taints.len()), (3, 3), "{}", agent.log());

    for (count, fault) in [(4, "bin"), (6, "network config")] {
        let begin = Instant::now();
        match fault {
            "bin" => node.remove_tree("bin"),
            _ => fs::remove_file(node.net(LIST)).unwrap(),
        }
        until("the condition is withdrawn", || condition(&api)["status"] == "False");
        assert!(begin.elapsed() < WITHDRAWAL, "{:?}\n{}", begin.elapsed(), agent.log());
        let withdrawn = condition(&api);
        assert_eq!(withdrawn["reason"], "LinkerdCNINotReady");
        assert!(withdrawn["message"].as_str().unwrap().contains(fault), "{withdrawn}");
        assert_eq!(patches(&api), count, "{}", agent.log());
        match fault {
            "bin" => {
                fs::create_dir(node.root().join("bin")).unwrap();
                fs::write(node.bin("calico"), "a plugin").unwrap();
            }
            _ => node.write(LIST, CALICO),
        }
        until("the condition is true again", || condition(&api)["status"] == "True");
    }
    assert_eq!(agent.ready().0, 200);
    another_turn(&api, &node);
    assert_eq!(patches(&api), 7, "only changes are written: {}", agent.log());
}

#[test]
fn condition_outlasts_a_fault_that_the_agent_corrects_and_a_replaced_agent() {
    let (api, node) = tainted();
    let mut agent = start_with_condition(&node);
    until("the condition is true", || condition(&api)["status"] == "True");
    let before = condition(&api);
    for _ in 0..3 {
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        until("the binary is restored", || node.bin("linkerd-cni").exists());
    }
    agent.until_ready();
    another_turn(&api, &node);
    assert_eq!(agent.stop(), Some(0));
    assert!(agent.log().contains("left in place for the next agent"), "{}", agent.log());
    let mut next = start_with_condition(&node);
    next.until_ready();
    another_turn(&api, &node);
    next.kill();
    assert_eq!((patches(&api), condition(&api)), (1, before), "{}", next.log());
}

#[test]
fn condition_of_a_node_that_never_gets_ready_says_why() {
    let (api, node) = tainted();
    fs::remove_file(node.net(LIST)).unwrap();
    let agent = start_with_condition(&node);
    until("the condition is false", || condition(&api)["status"] == "False");
    assert!(condition(&api)["message"].as_str().unwrap().contains("network config"));
    node.write(LIST, CALICO);
    until("the condition is true", || condition(&api)["status"] == "True");
    assert_eq!(patches(&api), 2, "{}", agent.log());
}

#[test]
fn uninstall_removes_the_condition() {
    let (api, node) = tainted();
    let mut agent = start_with_condition(&node);
    until("the condition is true", || condition(&api)["status"] == "True");
    api.state().daemon_set = DaemonSetState::BeingDeleted;
    assert_eq!(agent.stop(), Some(0));
    assert!(!node.bin("linkerd-cni").exists(), "{}", agent.log());
    assert_eq!((condition(&api), patches(&api)), (Value::Null, 2), "{}", agent.log());
}
