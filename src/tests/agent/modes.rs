//! Tests the chain modes: chained to every config, chained to one named config, and standalone.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use testkit::cni::upstream_entry;
use testkit::table;

use crate::agent_with_api::in_parallel;
use crate::node::{CALICO, CONF, LIST, Node};
use crate::repeated::Repeated;
use crate::until::until;

pub type Vars = &'static [(&'static str, &'static str)];

const ONLY: Vars = &[("LINKERD_CNI_CONF_NAME", "20-net.conf")];
const ALONE: Vars = &[("LINKERD_CNI_CHAINED", "false")];
pub const STANDALONE: &str = "linkerd-cni.conf";

/// The chain modes. The second element lists the files with the plugin entry, on a node with
/// `10-calico.conflist` and `20-net.conf`.
pub const MODES: [(Vars, &[&str]); 3] =
    [(&[], &[LIST, "20-net.conflist"]), (ONLY, &["20-net.conflist"]), (ALONE, &[STANDALONE])];

/// Returns the names of the network configs that contain `text`.
pub fn configs_with(node: &Node, text: &str) -> Vec<String> {
    let entries = fs::read_dir(node.net("")).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| name.contains(".conf") && node.text(name).contains(text));
    names.sort();
    names
}

#[test]
fn agent_waits_for_the_named_config_and_changes_no_other() {
    let node = Node::uninstalling_with_calico();
    let mut agent = node.start_with(ONLY);
    until("the reason", || {
        let (status, why) = agent.ready();
        status == 500
            && why.contains("20-net.conf, which cniConfFileName names, does not exist yet")
    });
    assert!(!node.chained(LIST));
    let inode = node.inode(LIST);
    node.write("20-net.conf", CONF);
    agent.until_ready();
    assert_eq!(node.types("20-net.conflist"), ["bridge", "linkerd-cni"]);
    assert!(!node.net("20-net.conf").exists());
    // The agent may become ready before a pass reports this.
    until("the warning", || {
        agent
            .log()
            .contains("the active network config is 10-calico.conflist, but cniConfFileName names")
    });
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("20-net.conf"), CONF);
    assert_eq!(node.text(LIST), CALICO);
    assert_eq!(node.inode(LIST), inode);
    assert!(!node.net(".linkerd-cni-state").exists());
}

#[test]
fn agent_restores_and_uninstalls_a_standalone_config() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    let mut agent = node.start_ready_with(ALONE);
    let conf = node.json(STANDALONE);
    assert_eq!(
        (&conf["name"], &conf["type"], &conf["cniVersion"]),
        (&json!("linkerd-cni"), &json!("linkerd-cni"), &json!("0.3.1"))
    );
    assert_eq!(conf["kubernetes"]["kubeconfig"], "etc/kubeconfig.json");
    assert_eq!(node.text(LIST), CALICO);
    let whole = node.text(STANDALONE);
    for damaged in ["", "{\"type\":\"linkerd-cni\"}"] {
        node.write(STANDALONE, damaged);
        until("the damaged file is restored", || node.text(STANDALONE) == whole);
    }
    fs::remove_file(node.net(STANDALONE)).unwrap();
    until("the deleted file is restored", || node.text(STANDALONE) == whole);
    agent.until_ready();
    // The next agent adopts the file without rewriting it.
    agent.kill();
    let inode = node.inode(STANDALONE);
    let mut agent = node.start_ready_with(ALONE);
    assert_eq!(node.inode(STANDALONE), inode);
    node.assert_restored(&mut agent, &before);
}

#[test]
fn standalone_config_with_the_name_of_upstreams_leftover_is_adopted() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    let name = "01-linkerd-cni.conf";
    let vars = [ALONE[0], ("LINKERD_CNI_CONF_NAME", name)];
    node.start_ready_with(&vars).kill();
    let inode = node.inode(name);
    let mut agent = node.start_ready_with(&vars);
    assert_eq!(node.inode(name), inode, "{}", agent.log());
    node.assert_restored(&mut agent, &before);
}

#[test]
fn change_from_any_mode_to_any_other_leaves_no_file_behind() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    let before = node.tree();
    for (from, old_files) in MODES {
        for (to, new_files) in MODES {
            let mut agent = node.start_ready_with(from);
            until("the first mode", || configs_with(&node, "linkerd-cni") == old_files);
            agent.kill();
            // Kill the next agent in the middle of the change.
            let mut agent = node.start_with(to);
            thread::sleep(Duration::from_millis(5));
            agent.kill();
            node.assert_not_stranded();
            let mut agent = node.start_ready_with(to);
            until("the second mode", || configs_with(&node, "linkerd-cni") == new_files);
            agent.until_ready();
            node.assert_not_stranded();
            node.assert_restored(&mut agent, &before);
        }
    }
}

#[test]
fn change_between_chained_and_standalone_never_removes_the_plugin() {
    let node = Arc::new(Node::with_calico());
    node.install();
    let read = Arc::clone(&node);
    let reader = Repeated::start(Duration::ZERO, 0, move |reads| {
        // A runtime opens one of the two files. The first check may miss a file that is written at
        // this moment, so check twice.
        let is_installed = || read.net(STANDALONE).exists() || read.chained(LIST);
        assert!(is_installed() || is_installed(), "read {reads}");
        *reads += 1;
    });
    for change in 0..8 {
        let mut agent = node.start_ready_with([ALONE, &[]][change % 2]);
        until("the other mode's entry is removed", || {
            node.chained(LIST) != node.net(STANDALONE).exists()
        });
        agent.kill();
    }
    assert!(reader.finish() > 8);
}

/// Kills agents at random times, while another thread reads the node's files like a runtime. The
/// tests in `faults` kill the agent at each system call.
#[test]
fn kill_at_any_time_never_strands_the_node_in_any_mode() {
    in_parallel([(&[][..], 60), (ALONE, 40), (ONLY, 40)], |(vars, kills)| {
        let node = Arc::new(Node::uninstalling_with_calico());
        node.write("20-net.conf", CONF);
        let before = node.tree();
        let read = Arc::clone(&node);
        let reader = Repeated::start(Duration::ZERO, (), move |()| read.assert_not_stranded());
        for kill in 0..kills {
            let mut agent = node.start_with(vars);
            thread::sleep(Duration::from_micros(700 * (kill % 20)));
            if kill >= kills / 2 {
                agent.signal(Signal::SIGTERM);
                agent.until_uninstalling();
                thread::sleep(Duration::from_micros(300 * (kill % 20)));
            } else if vars.is_empty() {
                node.replace(&node.net(LIST), CALICO.as_bytes());
                thread::sleep(Duration::from_micros(300 * (kill % 20)));
            }
            agent.kill();
            node.assert_not_stranded();
        }
        reader.finish();
        let mut agent = node.start_ready_with(vars);
        node.assert_restored(&mut agent, &before);
    });
}

#[test]
fn each_mode_writes_exactly_the_keys_of_the_template() {
    let template = upstream_entry().to_string();
    for (mode, file) in [
        (("LINKERD_CNI_CHAINED", "true"), LIST),
        (("LINKERD_CNI_CONF_NAME", LIST), LIST),
        (ALONE[0], STANDALONE),
    ] {
        let node = Node::with_calico();
        let vars = [mode, ("CNI_NETWORK_CONFIG", &template), ("LINKERD_CNI_NAMESPACE", "mesh")];
        let mut agent = node.start_ready_with(&vars);
        let mut entry = node.json(file);
        match entry.get_mut("plugins").and_then(|list| list.as_array_mut()?.pop()) {
            Some(last) => entry = last,
            // A standalone config has the CNI version beside the keys of the entry.
            None => assert!(entry.as_object_mut().unwrap().remove("cniVersion").is_some()),
        }
        assert_eq!(entry["kubernetes"]["kubeconfig"].take(), "etc/kubeconfig.json", "{mode:?}");
        let mut expected = upstream_entry();
        expected["kubernetes"]["kubeconfig"].take();
        assert_eq!(entry, expected, "{mode:?}");
        let files = fs::read_dir(node.net("")).unwrap().count();
        // Linkerd's tests accept at most three files in the net dir. Upstream has only the chained
        // modes.
        assert!(files <= 3 || file != LIST, "{mode:?}: {files}");
        agent.kill();
    }
}

#[test]
fn reformatted_entry_is_kept_and_changed_entry_is_replaced() {
    let node = Node::with_calico();
    node.install();
    let (text, inode) = (node.text(LIST), node.inode(LIST));
    let formatted = node.json(LIST).to_string();
    let with_key = text.replace("4143", "4143, \"agent-namespace\": \"mesh\"");
    assert_ne!(with_key, text);
    for (name, (content, expected)) in table::named([
        ("an unchanged entry", (&text, &text)),
        ("a reformatted entry", (&formatted, &formatted)),
        ("an entry with another key", (&with_key, &text)),
    ]) {
        // Write in place, so that the inode shows whether the agent replaces the file.
        node.write(LIST, content);
        node.install();
        until("the entry", || node.text(LIST) == *expected);
        assert_eq!(node.inode(LIST) == inode, content == expected, "{name}");
    }
}
