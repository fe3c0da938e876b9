//! Tests the agent together with other programs on the node: installers that rename network configs
//! or append plugins, Multus, and runtimes that need the plugin binary after the uninstall.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use crate::filesystems::{bind, in_mount_namespace};
use crate::node::{CALICO, CONF, LIST, Node};
use crate::until::until;

const WRITES: &str = "linkerd_cni_agent_conflist_writes_total";
const MULTUS: &str = "00-multus.conf";
/// Network config of Multus' daemon, which writes it at its start and removes it at its end.
const DAEMON: &str = r#"{"cniVersion":"0.3.1","name":"multus-cni-network",
"clusterNetwork":"/host/etc/cni/net.d/10-calico.conflist","type":"multus-shim"}"#;

/// Renames a network config, as Cilium does with `cni.exclusive=true`. Returns the new name.
fn rename(node: &Node, name: &str) -> String {
    let backup = format!("{name}.cilium_bak");
    fs::rename(node.net(name), node.net(&backup)).unwrap();
    backup
}

#[test]
fn uninstall_restores_renamed_configs_of_cilium_under_their_new_names() {
    let node = Node::uninstalling_with_calico();
    node.write("20-net.conf", CONF);
    node.write("30-real", CALICO);
    symlink("30-real", node.net("30-link.conflist")).unwrap();
    let mut agent = node.start_ready();
    node.write("05-cilium.conflist", CALICO);
    until("Cilium's conflist is chained", || node.chained("05-cilium.conflist"));
    for name in [LIST, "20-net.conflist", "30-link.conflist"] {
        let backup = rename(&node, name);
        assert!(node.text(&backup).contains("linkerd-cni"), "{backup}");
    }
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    let left: Vec<String> = node.tree().into_keys().collect();
    let names = [
        "05-cilium.conflist",
        "10-calico.conflist.cilium_bak",
        "20-net.conf.cilium_bak",
        "30-link.conflist.cilium_bak",
        "30-real",
    ];
    assert_eq!(left, names.map(|name| format!("etc/{name}")));
    assert_eq!([names[0], names[1], names[2]].map(|name| node.text(name)), [CALICO, CALICO, CONF]);
    let target = fs::read_link(node.net("30-link.conflist.cilium_bak")).unwrap();
    assert_eq!(target.to_str(), Some("30-real"));
}

#[test]
fn uninstall_removes_a_standalone_config_that_cilium_has_renamed() {
    let node = Node::uninstalling_with_calico();
    // A renamed config that is invalid does not prevent the uninstall: no runtime loads it.
    node.write("20-half.conflist.cilium_bak", r#"{"plugins":[{"type":"linkerd-cni""#);
    let before = node.tree();
    let mut agent = node.start_ready_with(&[("LINKERD_CNI_CHAINED", "false")]);
    rename(&node, "linkerd-cni.conf");
    agent.until_ready();
    node.assert_restored(&mut agent, &before);
}

/// Appends Istio's plugin to the conflist, as Istio's installer does.
pub fn with_appended(mut conflist: Value) -> Value {
    let plugins = conflist["plugins"].as_array_mut().unwrap();
    plugins.retain(|plugin| plugin["type"] != "istio-cni");
    plugins.push(json!({"type": "istio-cni"}));
    conflist
}

#[test]
fn plugin_appended_after_the_entry_causes_no_rewrite_and_no_contention() {
    let node = Node::uninstalling_with_calico();
    let mut agent = node.start_ready();
    let own_writes = agent.metric(WRITES);
    let appended = with_appended(node.json(LIST)).to_string();
    node.replace(&node.net(LIST), appended.as_bytes());
    // Wait for a reconcile pass after the change: that pass also chains this config.
    node.write("20-net.conf", CONF);
    until("a later change is chained", || node.chained("20-net.conflist"));
    agent.until_ready();
    assert_eq!(node.text(LIST), appended);
    assert_eq!(agent.metric(WRITES), own_writes + 1.0);
    assert!(!agent.log().contains("keeps being overwritten"), "{}", agent.log());
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.types(LIST), ["calico", "portmap", "istio-cni"]);
}

#[test]
fn entry_that_is_replaced_keeps_its_place_before_an_appended_plugin() {
    let node = Node::uninstalling_with_calico();
    node.install();
    let appended = with_appended(node.json(LIST));
    node.write(LIST, &format!("{appended:#}"));
    let changed = crate::node::TEMPLATE.replace("4143", "5143");
    let mut agent = node.start_ready_with(&[("CNI_NETWORK_CONFIG", &changed)]);
    assert_eq!(node.types(LIST), ["calico", "portmap", "linkerd-cni", "istio-cni"]);
    assert!(node.text(LIST).contains("5143"));
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.types(LIST), ["calico", "portmap", "istio-cni"]);
}

#[test]
fn conflist_that_the_config_of_multus_names_is_chained_instead_of_that_config() {
    let node = Node::uninstalling_with_calico();
    node.write(MULTUS, DAEMON);
    let mut agent = node.start_ready();
    assert_eq!(node.text(MULTUS), DAEMON);
    assert!(node.chained(LIST));
    // The agent must not convert Multus' config to a conflist. It would remain when the daemon
    // stops, and no pod could start.
    assert!(!node.net("00-multus.conflist").exists());
    fs::remove_file(node.net(MULTUS)).unwrap();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text(LIST), CALICO);
    assert!(!node.net("00-multus.conflist").exists() && !node.net(MULTUS).exists());
}

/// Creates a mount like those in each container of CRI-O.
fn mount_as_cri_o(node: &Node) {
    let dir = node.root().join("storage/overlay-containers/0a1b/userdata");
    fs::create_dir_all(&dir).unwrap();
    for path in [dir.join("hostname"), node.root().join("hostname")] {
        fs::write(path, "node-1\n").unwrap();
    }
    bind(&dir.join("hostname"), &node.root().join("hostname"));
}

#[test]
fn uninstall_keeps_the_binary_that_cri_o_and_multus_still_call() {
    for program in ["CRI-O", "Multus"] {
        in_mount_namespace(move || {
            let node = Node::uninstalling();
            node.write("10-net.conf", CONF);
            let before = node.tree();
            node.install();
            if program == "CRI-O" {
                mount_as_cri_o(&node);
            } else {
                node.write("00-multus.conf", r#"{"name":"multus","type":"multus"}"#);
            }
            let mut uninstall = node.start_args(&["uninstall"], &[("LINKERD_CNI_KEEP_BINARY", "")]);
            assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
            let reason = format!("linkerd-cni is left in place: {program} needs the plugin");
            assert!(uninstall.log().contains(&reason), "{}", uninstall.log());
            assert!(node.has_own_binary() && !node.net("kubeconfig.json").exists());
            // After the last pod is deleted, an operator can remove the binary.
            node.uninstall();
            let _ = fs::remove_file(node.net("00-multus.conf"));
            assert_eq!(node.tree(), before);
        });
    }
}

/// Uses the real libcni to load the network config.
#[test]
fn libcni_loads_the_plugin_from_a_conf_beside_a_conflist_of_the_same_name() {
    let node = Node::uninstalling();
    node.write("10-net.conf", CONF);
    let other = r#"{"name":"other","cniVersion":"0.4.0","plugins":[{"type":"other"}]}"#;
    node.write("10-net.conflist", other);
    let _agent = node.start_ready();
    let output = Command::new("cni-runtime").arg("loaded").arg(node.root()).output().expect(
        "cni-runtime: run `scripts/tools cni-runtime` and put `scripts/tools --path` on PATH",
    );
    let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let types: Vec<_> = loaded["plugins"].as_array().unwrap().iter().map(|p| &p["type"]).collect();
    assert_eq!(types, ["bridge", "linkerd-cni"]);
}
