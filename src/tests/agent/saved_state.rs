//! Tests a saved state that is damaged or cannot be read.

use std::fs;
use std::os::unix::fs::symlink;

use crate::node::{CALICO, CONF, LIST, Node};
use crate::until::until;

const STATE: &str = ".linkerd-cni-state";
const DAMAGED: &str = ".linkerd-cni-state.damaged";

/// Creates a node whose agent was killed after it had chained a conflist and a `.conf`.
fn chained_node() -> Node {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    node.install();
    assert!(!node.net("20-net.conf").exists());
    node
}

/// Replaces the saved state by a file that cannot be opened. Returns a function that restores it.
fn hide(node: &Node) -> impl Fn() {
    let (state, hidden) = (node.net(STATE), node.root().join("hidden"));
    fs::rename(&state, &hidden).unwrap();
    symlink(STATE, &state).unwrap();
    move || fs::rename(&hidden, &state).unwrap()
}

#[test]
fn damaged_saved_state_is_renamed_and_does_not_stop_the_agent() {
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
fn uninstall_keeps_a_damaged_saved_state() {
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

#[test]
fn unreadable_saved_state_is_not_overwritten() {
    let node = chained_node();
    node.write("30-new.conf", CONF);
    let restore = hide(&node);
    let mut agent = node.start();
    until("the reason", || {
        agent.log().contains("30-new.conflist: ") && agent.log().contains("cannot be read")
    });
    // The agent still chains a conflist, because that needs no saved state.
    node.write(LIST, CALICO);
    until("the entry", || node.chained(LIST));
    assert_eq!(node.text("30-new.conf"), CONF);
    restore();
    until("the new network", || node.chained("30-new.conflist"));
    agent.until_ready();
    assert!(node.json(STATE)["originals"]["30-new.conflist"].is_object());
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("20-net.conf"), CONF);
    assert_eq!(node.text("30-new.conf"), CONF);
}

#[test]
fn uninstall_with_an_unreadable_saved_state_is_completed_by_the_next_uninstall() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    let mut agent = node.start_ready();
    let restore = hide(&node);
    agent.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(agent.wait(), Some(1), "{}", agent.log());
    assert!(!node.chained("20-net.conflist"));
    restore();
    node.uninstall();
    assert_eq!(node.tree(), before);
}
