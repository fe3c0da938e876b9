//! The plugin entry that the agent writes: the template, and no other key.

use std::fs;

use serde_json::Value;
use testkit::cni::upstream_entry;

use crate::node::{LIST, Node};
use crate::until::until;

/// The keys that the strict reader of upstream's integration tests knows
/// (`cni-plugin/integration/testutil/test_util.go` in linkerd2-proxy-init).
const UPSTREAM_KEYS: [(&str, &[&str]); 3] = [
    ("", &["name", "type", "log_level", "policy", "kubernetes", "linkerd"]),
    ("/kubernetes", &["kubeconfig", "k8s_api_root"]),
    (
        "/linkerd",
        &[
            "incoming-proxy-port",
            "outgoing-proxy-port",
            "proxy-uid",
            "proxy-gid",
            "ports-to-redirect",
            "inbound-ports-to-ignore",
            "outbound-ports-to-ignore",
            "subnets-to-ignore",
            "simulate",
            "use-wait-flag",
            "iptables-mode",
            "ipv6",
        ],
    ),
];

fn assert_upstream_reads(entry: &Value) {
    for (object, known) in UPSTREAM_KEYS {
        for key in entry.pointer(object).unwrap().as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()), "{object}/{key} in {entry}");
        }
    }
}

#[test]
fn the_plugin_entry_has_only_the_templates_keys_in_each_mode_and_the_net_dir_three_files() {
    let template = upstream_entry().to_string();
    let named = ("LINKERD_CNI_CONF_NAME", LIST);
    for (mode, file) in [
        (("LINKERD_CNI_CHAINED", "true"), LIST),
        (named, LIST),
        (("LINKERD_CNI_OWN_CONFIG", "true"), "00-linkerd-cni.conflist"),
        (("LINKERD_CNI_CHAINED", "false"), "linkerd-cni.conf"),
    ] {
        let node = Node::with_calico();
        let vars = [
            mode,
            ("CNI_NETWORK_CONFIG", &template),
            ("LINKERD_CNI_NAMESPACE", "mesh"),
            ("LINKERD_CNI_DAEMONSET", "mesh-cni"),
        ];
        let mut agent = node.start_ready_with(&vars);
        let mut entry = node.json(file);
        match entry.get_mut("plugins").and_then(|list| list.as_array_mut()?.pop()) {
            Some(last) => entry = last,
            // The CNI version of the file itself.
            None => assert!(entry.as_object_mut().unwrap().remove("cniVersion").is_some()),
        }
        assert_upstream_reads(&entry);
        assert_eq!(entry["kubernetes"]["kubeconfig"].take(), "etc/kubeconfig.json");
        let mut expected = upstream_entry();
        expected["kubernetes"]["kubeconfig"].take();
        assert_eq!(entry, expected);
        let files = fs::read_dir(node.net("")).unwrap().count();
        // Upstream has no other modes.
        assert!(files <= 3 || file != LIST, "{files}");
        agent.kill();
    }
}

#[test]
fn a_reformatted_plugin_entry_is_adopted_and_one_with_another_key_is_replaced() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let (text, inode) = (node.text(LIST), node.inode(LIST));
    agent.kill();

    let formatted = node.json(LIST).to_string();
    for content in [&text, &formatted] {
        if *content != text {
            node.write(LIST, content);
        }
        let mut agent = node.start_ready();
        agent.kill();
        assert_eq!(node.text(LIST), *content);
        assert_eq!(node.inode(LIST), inode);
    }

    let with_key = text.replace("4143", "4143, \"agent-namespace\": \"mesh\"");
    assert_ne!(with_key, text);
    node.write(LIST, &with_key);
    let mut agent = node.start_ready();
    until("the template", || node.text(LIST) == text);
    agent.kill();
}
