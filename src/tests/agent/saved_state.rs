//! Saved state that an earlier agent has written, or that is damaged.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::node::{CALICO, CONF, LIST, Node};

const STATE: &str = ".linkerd-cni-state";
const DAMAGED: &str = ".linkerd-cni-state.damaged";

/// A node whose agent was killed after it had chained to a conflist and to a `.conf`.
fn chained_node() -> Node {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let mut agent = node.start_ready();
    assert!(!node.net("20-net.conf").exists());
    agent.kill();
    node
}

#[test]
fn the_next_agent_restores_the_conf_and_adds_to_the_saved_state() {
    let node = chained_node();
    node.write("30-new.conf", CONF);
    let mut agent = node.start_ready();
    let now = node.json(STATE);
    assert!(now["originals"]["30-new.conflist"].is_object(), "{now}");
    assert_eq!(fs::metadata(node.net(STATE)).unwrap().mode() & 0o7777, 0o600);

    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text(LIST), CALICO);
    assert_eq!(node.text("20-net.conf"), CONF);
    assert!(!node.net("20-net.conflist").exists() && !node.net(STATE).exists());
}

#[test]
fn a_damaged_saved_state_is_renamed_once_and_the_agent_works_without_it() {
    let node = chained_node();
    let text = node.text(STATE);
    for damaged in ["", "{", &text[..text.len() / 2], "[1]"] {
        node.write(STATE, damaged);
        node.write("30-new.conf", CONF);
        let mut agent = node.start_ready();
        assert!(node.chained("30-new.conflist"));
        assert_eq!(node.text(DAMAGED), damaged);
        assert_eq!(agent.log().matches("is damaged; it is kept as").count(), 1, "{}", agent.log());
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        assert_eq!(node.text("30-new.conf"), CONF);
        assert_eq!(node.text(LIST), CALICO);
        assert_eq!(node.text(DAMAGED), damaged);
        assert!(agent.log().contains("state.damaged is kept"), "{}", agent.log());
    }
}

#[test]
fn an_uninstall_keeps_a_saved_state_that_is_damaged() {
    let node = chained_node();
    let damaged = &node.text(STATE)[..40];
    node.write(STATE, damaged);
    let log = node.uninstall_ends_with(1);
    assert!(log.contains("is damaged"), "{log}");
    assert_eq!(node.text(STATE), damaged);
    assert_eq!(node.text(LIST), CALICO);
    assert_eq!(node.types("20-net.conflist"), ["bridge"]);
    assert!(!node.bin("linkerd-cni").exists() && !node.net("kubeconfig.json").exists());
}
