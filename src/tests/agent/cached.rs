//! Pods that exist before an uninstall and are deleted after it, through the real libcni.

use std::fs;
use std::process::{Command, Output};

use crate::agent::Agent;
use crate::filesystems::{bind, with_mounts};
use crate::node::{CONF, Node, TEMPLATE};

const PODS: usize = 20;

/// A primary CNI that keeps a file for each address in use.
const BRIDGE: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
  VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
  ADD) : >"${0%/*}/../addresses/$CNI_CONTAINERID"
    echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}' ;;
  DEL) rm -f "${0%/*}/../addresses/$CNI_CONTAINERID" ;;
esac
"#;

/// Calls plugins for the containers `ids` as a container runtime does.
fn runtime(node: &Node, command: &str, ids: &[String]) -> Output {
    let output = Command::new("cni-runtime").arg(command).arg(node.root()).args(ids).output();
    output.unwrap_or_else(|error| {
        panic!(
            "cni-runtime: {error}: run `scripts/tools cni-runtime` and put `scripts/tools --path` on PATH"
        )
    })
}

fn succeeds(node: &Node, command: &str) {
    let ids: Vec<String> = (0..PODS).map(|number| format!("pod-{number}")).collect();
    let output = runtime(node, command, &ids);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn addresses(node: &Node) -> usize {
    fs::read_dir(node.root().join("addresses")).unwrap().count()
}

/// Lays out a node with the real plugin, chains it and adds the pods.
fn add_pods(node: &Node) -> Agent {
    fs::copy(env!("CARGO_BIN_EXE_linkerd-cni"), node.root().join("image/linkerd-cni")).unwrap();
    testkit::write_program(node.bin("bridge"), BRIDGE);
    fs::create_dir(node.root().join("addresses")).unwrap();
    node.write("10-net.conf", CONF);
    let mut agent = start(node, &[], "");
    agent.until_ready();
    succeeds(node, "add");
    assert_eq!(addresses(node), PODS);
    agent
}

fn start(node: &Node, args: &[&str], keep: &str) -> Agent {
    let capabilities = r#""capabilities": {"io.kubernetes.cri.pod-annotations": true},"#;
    let template = TEMPLATE.replacen('{', &format!("{{{capabilities}"), 1);
    node.start_args(args, &[("LINKERD_CNI_KEEP_BINARY", keep), ("CNI_NETWORK_CONFIG", &template)])
}

fn uninstall(node: &Node, keep: &str) -> String {
    let mut uninstall = start(node, &["uninstall"], keep);
    assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
    uninstall.log()
}

/// Makes a mount as CRI-O does in each container.
fn mount_as_cri_o(node: &Node) {
    let dir = node.root().join("storage/overlay-containers/0a1b/userdata");
    fs::create_dir_all(&dir).unwrap();
    for path in [dir.join("hostname"), node.root().join("hostname")] {
        fs::write(path, "node-1\n").unwrap();
    }
    bind(&dir.join("hostname"), &node.root().join("hostname"));
}

#[test]
fn pods_of_cri_o_are_deleted_from_the_cache_after_an_uninstall() {
    with_mounts(|node| {
        mount_as_cri_o(node);
        let mut agent = add_pods(node);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        let log = agent.log();
        assert!(log.contains("linkerd-cni is left in place: CRI-O needs the plugin"), "{log}");
        assert_eq!(node.text("10-net.conf"), CONF);
        assert!(node.bin("linkerd-cni").exists() && !node.net("kubeconfig.json").exists());
        succeeds(node, "del-cached");
        assert_eq!(addresses(node), 0);

        // With the last pod deleted, an operator removes the binary.
        uninstall(node, "false");
        assert!(!node.bin("linkerd-cni").exists());
    });
}

#[test]
fn pods_of_containerd_are_deleted_after_an_uninstall_that_removes_the_binary() {
    let node = Node::uninstalling();
    let mut agent = add_pods(&node);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert!(!node.bin("linkerd-cni").exists());
    // CRI-O could not delete them.
    let cached = runtime(&node, "del-cached", &["pod-1".into()]);
    let error = String::from_utf8_lossy(&cached.stderr).into_owned();
    assert!(error.contains("failed to find plugin \"linkerd-cni\""), "{error}");
    assert_eq!(addresses(&node), PODS);
    succeeds(&node, "del");
    assert_eq!(addresses(&node), 0);
}

#[test]
fn pods_of_multus_are_deleted_from_the_cache_after_an_uninstall() {
    let node = Node::uninstalling();
    let mut agent = add_pods(&node);
    agent.kill();
    node.write("00-multus.conf", r#"{"name":"multus","type":"multus"}"#);
    let log = uninstall(&node, "");
    assert!(log.contains("linkerd-cni is left in place: Multus needs the plugin"), "{log}");
    fs::remove_file(node.net("00-multus.conf")).unwrap();
    succeeds(&node, "del-cached");
    assert_eq!(addresses(&node), 0);
}

#[test]
fn the_runtime_loads_the_plugin_with_a_conf_that_lies_beside_a_conflist() {
    let node = Node::uninstalling();
    let conflist = r#"{"name":"other","cniVersion":"0.4.0","plugins":[{"type":"other"}]}"#;
    node.write("10-net.conflist", conflist);
    let mut agent = add_pods(&node);
    let loaded = runtime(&node, "loaded", &[]).stdout;
    let loaded: serde_json::Value = serde_json::from_slice(&loaded).unwrap();
    let types: Vec<_> = loaded["plugins"].as_array().unwrap().iter().map(|p| &p["type"]).collect();
    assert_eq!(types, ["bridge", "linkerd-cni"]);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("10-net.conf"), CONF);
    assert_eq!(node.text("10-net.conflist"), conflist);
    succeeds(&node, "del");
}
