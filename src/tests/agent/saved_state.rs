//! Saved state that the agent cannot use: damaged, or written by a newer agent.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::node::{CALICO, CONF, Node};

const STATE: &str = ".linkerd-cni-state";
const ASIDE: &str = ".linkerd-cni-state.aside-1";

/// A node whose agent was killed after it had chained to a conflist and to a `.conf`.
fn chained_node() -> Node {
    let node = Node::uninstalling();
    node.write("10-calico.conflist", CALICO);
    node.write("20-net.conf", CONF);
    let mut agent = node.start();
    agent.until_ready();
    assert!(!node.net("20-net.conf").exists());
    agent.kill();
    node
}

/// The saved state as a newer agent would write it.
fn newer(node: &Node) -> String {
    let mut state: Value = node.json(STATE);
    state["version"] = json!(2);
    state["routes"] = json!(["unknown"]);
    state["lists"]["30-new.conflist"] = json!({"form": "unknown"});
    format!("{state:#}\n")
}

fn uninstall(node: &Node, status: i32) -> String {
    let mut uninstall = node.start_args(&["uninstall"], &[]);
    assert_eq!(uninstall.wait(), Some(status), "{}", uninstall.log());
    uninstall.log()
}

#[test]
fn an_older_agent_restores_the_conf_and_keeps_the_saved_state_of_a_newer_agent() {
    let node = chained_node();
    let newer = newer(&node);
    node.write(STATE, &newer);
    let mut agent = node.start();
    agent.until_ready();
    assert_eq!(node.text(ASIDE), newer);
    assert_eq!(fs::metadata(node.net(ASIDE)).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(node.json(STATE)["version"], 1);
    let log = agent.log();
    assert_eq!(log.matches("of a newer format").count(), 1, "{log}");
    assert!(log.contains(ASIDE), "{log}");

    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("10-calico.conflist"), CALICO);
    assert_eq!(node.text("20-net.conf"), CONF);
    assert!(!node.net("20-net.conflist").exists() && !node.net(STATE).exists());
    assert_eq!(node.text(ASIDE), newer);
    assert!(agent.log().contains("is kept: it holds saved state"), "{}", agent.log());
}

#[test]
fn an_agent_restarted_again_and_again_keeps_one_copy_of_the_same_saved_state() {
    let node = chained_node();
    let newer = newer(&node);
    for _ in 0..3 {
        node.write(STATE, &newer);
        let mut agent = node.start();
        agent.until_ready();
        agent.kill();
    }
    assert_eq!(node.text(ASIDE), newer);
    assert!(!node.net(".linkerd-cni-state.aside-2").exists());
}

#[test]
fn an_agent_that_knows_a_kept_saved_state_uses_it_and_removes_it_at_uninstall() {
    let node = chained_node();
    fs::rename(node.net(STATE), node.net(ASIDE)).unwrap();
    let mut agent = node.start();
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("20-net.conf"), CONF);
    assert!(!node.net("20-net.conflist").exists() && !node.net(ASIDE).exists());
}

#[test]
fn a_damaged_saved_state_is_kept_and_the_agent_works_without_it() {
    let node = chained_node();
    let text = node.text(STATE);
    for (number, damaged) in ["", "{", &text[..text.len() / 2], "[]"].into_iter().enumerate() {
        node.write(STATE, damaged);
        node.write("30-new.conf", CONF);
        let mut agent = node.start();
        agent.until_ready();
        assert!(node.chained("30-new.conflist"));
        let kept = format!(".linkerd-cni-state.aside-{}", number + 1);
        assert_eq!(node.text(&kept), damaged);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        assert_eq!(node.text("30-new.conf"), CONF);
        assert_eq!(node.text("10-calico.conflist"), CALICO);
    }
}

#[test]
fn a_saved_state_that_cannot_be_kept_stays_and_the_conflist_is_chained_nevertheless() {
    let node = chained_node();
    for number in 1..10 {
        node.write(&format!(".linkerd-cni-state.aside-{number}"), &number.to_string());
    }
    node.write(STATE, "{");
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start();
    agent.until_ready();
    assert!(node.chained("10-calico.conflist"));
    assert_eq!(node.text(STATE), "{");
    let log = agent.log();
    assert!(log.contains("remove the files .linkerd-cni-state.aside-*"), "{log}");
}

#[test]
fn an_uninstall_keeps_a_saved_state_that_is_damaged() {
    let node = chained_node();
    let damaged = &node.text(STATE)[..40];
    node.write(STATE, damaged);
    let log = uninstall(&node, 1);
    assert!(log.contains("is damaged"), "{log}");
    assert_eq!(node.text(STATE), damaged);
    assert_eq!(node.text("10-calico.conflist"), CALICO);
    assert_eq!(node.types("20-net.conflist"), ["bridge"]);
    assert!(!node.bin("linkerd-cni").exists() && !node.net("kubeconfig.json").exists());
}
