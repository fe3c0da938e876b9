//! The built agent on a temporary host tree.

// Clippy's leave for tests does not reach their helpers.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod accounts;
mod agent;
mod agent_with_api;
mod api;
mod api_name;
mod cached;
/// The fault catalogue: each test causes one fault and captures what `docs/maintainers/faults.md` quotes. Faults that
/// only a cluster can show are in `src/tests/cluster/catalogue`.
mod catalogue {
    mod api_server;
    mod chart;
    mod check;
    mod fault;
    mod node_files;
    mod pods;
    mod rules;
}
mod chain;
mod credential;
mod directories;
mod durability;
mod faults;
mod filesystems;
mod metrics;
mod modes;
mod node;
mod node_object;
mod operations;
mod other_installers;
mod outputs;
mod ownership;
mod platforms;
mod plugin_entry;
mod pod_events;
mod pods;
mod readiness;
mod rechained;
mod records;
mod requests;
mod rewrites;
mod saved_state;
mod self_test;
mod stale_mounts;
mod start_and_stop;
mod stop_decision;
mod stop_evidence;
mod two_agents;
mod unreadable;
mod upstream;
mod upstream_agent;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use node::{CALICO, LIST, Node, TEMPLATE};
use serde_json::{Value, json};
use testkit::chart as helm;
use testkit::platforms as layouts;
use testkit::until::until;
use testkit::{
    call, child, cni, fault_page, mounts, namespaces, promtool, repeated, server, until, unwritable,
};

#[test]
fn agent_installs_binary_kubeconfig_and_entry_and_uninstalls_on_sigterm() {
    let node = Node::with_calico();
    fs::set_permissions(node.net(LIST), PermissionsExt::from_mode(0o600)).unwrap();
    let before = node.tree();
    let mut agent = node.start_ready();

    let copied = fs::metadata(node.bin("linkerd-cni")).unwrap();
    assert_eq!(copied.mode() & 0o7777, 0o755);
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), node::PLUGIN);
    let kubeconfig = node.kubeconfig();
    assert_eq!(kubeconfig["users"][0]["user"]["token"], "token-1");
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://[fd00::1]:443");
    assert_eq!(fs::metadata(node.net("kubeconfig.json")).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::metadata(node.net(LIST)).unwrap().mode() & 0o7777, 0o600);
    let list = node.json(LIST);
    let mut expected: Value = serde_json::from_str(CALICO).unwrap();
    let mut entry: Value = serde_json::from_str(TEMPLATE).unwrap();
    entry["kubernetes"]["kubeconfig"] = json!("etc/kubeconfig.json");
    expected["plugins"].as_array_mut().unwrap().push(entry);
    assert_eq!(list, expected);
    assert_eq!(agent.get("/live").1, "alive\n");
    assert!(agent.get("/metrics").1.contains("linkerd_cni_agent_ready 1\n"));

    let log = agent.log();
    let at = |line: String| log.find(&line).unwrap_or_else(|| panic!("no {line} in {log}"));
    let wrote = at(format!("Wrote linkerd CNI binaries to {}", node.root().join("bin").display()));
    let created = at(format!("Created CNI config {}", node.net(LIST).display()));
    assert!(wrote < at("wrote kubeconfig".into()) && at("wrote kubeconfig".into()) < created);

    node.assert_restored(&mut agent, &before);
    assert!(!agent.log().contains("token-1"));
}

#[test]
fn a_rotated_token_reaches_the_kubeconfig_and_nothing_else_is_written() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let list = node.inode(LIST);
    for turn in 2..6 {
        node.rotate(&format!("token-{turn}"));
        let token = format!("token-{turn}");
        until("the new token", || node.kubeconfig()["users"][0]["user"]["token"] == token.as_str());
    }
    agent.until_ready();
    assert_eq!(node.inode(LIST), list);
}

#[test]
fn agent_restores_deleted_and_damaged_files() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    for round in 0..3 {
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        until("the binary", || node.bin("linkerd-cni").exists());
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        until("the kubeconfig", || node.net("kubeconfig.json").exists());
        fs::set_permissions(node.net("kubeconfig.json"), PermissionsExt::from_mode(0o644)).unwrap();
        until("the kubeconfig's mode", || {
            fs::metadata(node.net("kubeconfig.json")).is_ok_and(|file| file.mode() & 0o777 == 0o600)
        });
        // A damaged binary of the same length, and a foreign rewrite that drops us.
        let mut damaged = node::PLUGIN.to_vec();
        damaged[round] ^= 1;
        node.replace(&node.bin("linkerd-cni"), &damaged);
        until("the right binary", || {
            fs::read(node.bin("linkerd-cni")).is_ok_and(|bytes| bytes == node::PLUGIN)
        });
        node.rewrite_calico();
    }
    agent.until_ready();
}

#[test]
fn ready_names_each_problem_and_recovers() {
    let node = Node::new();
    let mut agent = node.start();
    until("no network yet", || agent.ready().1.contains("no network config exists yet"));
    assert_eq!(agent.ready().0, 500);
    node.write(LIST, CALICO);
    agent.until_ready();

    // What the agent cannot heal stays visible: a token gone, a foreign list in front.
    fs::rename(node.sa(), node.root().join("away")).unwrap();
    until("kubeconfig wrong", || agent.ready().1.contains("kubeconfig: cannot read"));
    fs::rename(node.root().join("away"), node.sa()).unwrap();
    agent.until_ready();
    node.write("05-ours.conf", r#"{"type":"x","name":"n"}"#);
    until("conversion", || node.chained("05-ours.conflist"));
    agent.until_ready();
    node.remove_tree("bin");
    until("binary wrong", || agent.ready().1.contains("binary: "));
    fs::create_dir(node.root().join("bin")).unwrap();
    agent.until_ready();
    assert!(node.bin("linkerd-cni").exists());
}

#[test]
fn agent_chains_again_after_the_net_dir_is_recreated() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    node.remove_tree("etc");
    until("not ready", || agent.ready().0 == 500);
    fs::create_dir(node.root().join("etc")).unwrap();
    node.write(LIST, CALICO);
    agent.until_ready();
    assert!(node.chained(LIST));
    // And the watch is on the new directory.
    node.rewrite_calico();
}

#[test]
fn agent_waits_for_missing_files_and_chains_only_then() {
    type TakeAway = fn(&Node);
    let missing: [(&str, TakeAway); 4] = [
        ("token", |node| fs::rename(node.sa().join("token"), node.sa().join("t")).unwrap()),
        ("ca.crt", |node| fs::rename(node.sa().join("ca.crt"), node.sa().join("t")).unwrap()),
        ("bin", |node| fs::remove_dir(node.root().join("bin")).unwrap()),
        ("is empty", |node| node.rotate(" \n")),
    ];
    for (what, take_away) in missing {
        let node = Node::with_calico();
        take_away(&node);
        let mut agent = node.start();
        until(what, || agent.ready().1.contains(what));
        assert_eq!(node.text(LIST), CALICO, "{what}");
        match what {
            "bin" => fs::create_dir(node.root().join("bin")).unwrap(),
            "is empty" => node.rotate("token-2"),
            name => fs::rename(node.sa().join("t"), node.sa().join(name)).unwrap(),
        }
        agent.until_ready();
        // Said once, though looked at again and again. (`bin` is in other lines too.)
        let said = agent.log().matches(what).count();
        assert!(said == 1 || what == "bin", "{what}: {}", agent.log());
        assert_eq!(agent.stop(), Some(0));
    }
    for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        let node = Node::with_calico();
        let mut agent = node.start_with(&[(name, "")]);
        until(name, || agent.ready().1.contains(&format!("{name} is not set")));
        assert_eq!(node.text(LIST), CALICO);
        assert_eq!(agent.stop(), Some(0));
    }
}

#[test]
fn invalid_entry_template_or_setting_ends_the_agent_with_the_reason() {
    let node = Node::with_calico();
    let before = node.tree();
    for (vars, reason) in [
        ([("CNI_NETWORK_CONFIG", "{"), ("X", "")], "CNI_NETWORK_CONFIG is not JSON"),
        ([("CNI_NETWORK_CONFIG", "[]"), ("X", "")], "is not a JSON object"),
        ([("CNI_NETWORK_CONFIG", ""), ("X", "")], "no plugin entry template"),
        ([("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", "/no/such")], "/no/such"),
        ([("LINKERD_CNI_LOG_LEVEL", "loud"), ("X", "")], "Cannot parse log-level 'loud'"),
        ([("LINKERD_CNI_CONF_NAME", "10-calico"), ("X", "")], "LINKERD_CNI_CONF_NAME=10-calico: "),
        (
            [("KUBERNETES_SERVICE_PORT", "https"), ("X", "")],
            "KUBERNETES_SERVICE_PORT=https: not a port",
        ),
    ] {
        let mut agent = node.start_with(&vars);
        assert_eq!(agent.wait(), Some(1), "{reason}");
        assert!(agent.log().contains(reason), "{}", agent.log());
    }
    assert_eq!(node.tree(), before);
}

#[test]
fn the_template_may_come_from_a_file_and_the_ca_from_another() {
    let node = Node::with_calico();
    let (template, ca) = (node.root().join("template"), node.root().join("other-ca"));
    fs::write(&template, TEMPLATE).unwrap();
    fs::write(&ca, "other CA\n").unwrap();
    let _agent = node.start_ready_with(&[
        ("CNI_NETWORK_CONFIG", ""),
        ("CNI_NETWORK_CONFIG_FILE", template.to_str().unwrap()),
        ("KUBE_CA_FILE", ca.to_str().unwrap()),
    ]);
    let data = &node.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"];
    assert_eq!(data, "b3RoZXIgQ0E=");
}

#[test]
fn ready_names_the_setting_of_a_missing_file_or_directory() {
    let node = Node::new();
    for name in ["KUBE_CA_FILE", "CONTAINER_CNI_BIN_DIR"] {
        let agent = node.start_with(&[(name, "no/such")]);
        until(name, || agent.ready().1.contains(&format!("{name}=no/such: cannot ")));
    }
}

#[test]
fn upstreams_flag_with_one_dash_is_accepted() {
    let node = Node::new();
    for (flag, status) in [("-log-level", 0), ("--log-level", 0)] {
        let mut agent = node.start_args(&[flag, "debug"], &[]);
        until("signals are taken over", || agent.takes_signals());
        assert_eq!(agent.stop(), Some(status));
    }
    let mut agent = node.start_args(&["-log-level", "loud"], &[]);
    assert_eq!(agent.wait(), Some(1));
    assert!(agent.log().contains("Cannot parse log-level 'loud'"));
}
