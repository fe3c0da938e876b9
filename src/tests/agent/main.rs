//! Tests of the agent program. They run it on a temporary directory that stands for the host.

// Clippy's exemptions for tests do not apply to helpers of tests.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod agent;
mod agent_with_api;
mod api;
mod api_name;
/// The fault catalogue. Each test causes one fault and captures the texts that
/// `docs/maintainers/faults.md` quotes. Faults that need a cluster are in
/// `src/tests/cluster/catalogue`.
mod catalogue {
    mod calls;
    mod chart;
    mod check;
    mod fault;
    mod node_files;
}
mod chain;
mod credential;
mod directories;
mod durability;
mod every_mode;
mod faults;
mod filesystems;
mod foreign_entries;
mod modes;
mod node;
mod operations;
mod other_installers;
mod platforms;
mod pods;
mod readiness;
mod rechained;
mod records;
mod rewrites;
mod runtime_proof;
mod saved_state;
mod self_test;
mod stale_mounts;
mod start_and_stop;
mod startup_taint;
mod stop_decision;
mod stop_evidence;
mod two_agents;
mod unreadable;
mod unrunnable;
mod upstream;
mod upstream_agent;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use agent::Agent;
use node::{CALICO, LIST, Node, TEMPLATE};
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::chart as helm;
use testkit::table;
use testkit::until::until;
use testkit::{
    call, child, fault_page, mounts, namespaces, promtool, repeated, server, until, unwritable,
};

#[test]
fn agent_installs_binary_kubeconfig_and_entry_and_uninstalls_on_sigterm() {
    let node = Node::uninstalling_with_calico();
    fs::set_permissions(node.net(LIST), PermissionsExt::from_mode(0o600)).unwrap();
    let before = node.tree();
    let mut agent = node.start_ready();

    let mode = |path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert!(node.has_own_binary());
    assert_eq!(mode(node.bin("linkerd-cni")), 0o755);
    assert_eq!([mode(node.net("kubeconfig.json")), mode(node.net(LIST))], [0o600, 0o600]);
    let kubeconfig = node.kubeconfig();
    assert_eq!(kubeconfig["users"][0]["user"]["token"], "token-1");
    let server = format!("https://127.0.0.1:{}", node.vars[1].1);
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], server);
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
fn rotated_token_is_written_only_to_the_kubeconfig() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    let list = node.inode(LIST);
    for token in ["token-2", "token-3", "token-4"] {
        node.rotate(token);
        until("the new token", || node.token() == token);
    }
    agent.until_ready();
    assert_eq!(node.inode(LIST), list);
}

#[test]
fn agent_restores_deleted_and_damaged_files() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    for attempt in 0..3 {
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        until("the binary", || node.bin("linkerd-cni").exists());
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        until("the kubeconfig", || node.net("kubeconfig.json").exists());
        fs::set_permissions(node.net("kubeconfig.json"), PermissionsExt::from_mode(0o644)).unwrap();
        until("the kubeconfig's mode", || {
            fs::metadata(node.net("kubeconfig.json")).is_ok_and(|file| file.mode() & 0o777 == 0o600)
        });
        // Damage the binary without changing its length, and remove the plugin entry.
        let mut damaged = node::PLUGIN.to_vec();
        damaged[attempt] ^= 1;
        node.replace(&node.bin("linkerd-cni"), &damaged);
        until("the right binary", || node.has_own_binary());
        node.rewrite_calico();
    }
    agent.until_ready();
}

/// Waits until `/ready` gives a reason that contains `text`.
fn until_not_ready(agent: &Agent, text: &str) {
    until(text, || agent.ready().1.contains(text));
}

#[test]
fn ready_names_each_problem_and_recovers() {
    let node = Node::new();
    let mut agent = node.start();
    until_not_ready(&agent, "no network config exists yet");
    assert_eq!(agent.ready().0, 500);
    node.write(LIST, CALICO);
    agent.until_ready();

    // The agent keeps reporting problems that it cannot correct: a missing token, and another
    // network config that sorts first.
    fs::rename(node.sa(), node.root().join("away")).unwrap();
    until_not_ready(&agent, "kubeconfig: cannot read");
    fs::rename(node.root().join("away"), node.sa()).unwrap();
    agent.until_ready();
    node.write("04-x.conflist", r#"{"name":"x","plugins":[{"type":"linkerd-cni"}]}"#);
    until_not_ready(&agent, "no plugin besides linkerd-cni");
    fs::remove_file(node.net("04-x.conflist")).unwrap();
    node.write("05-ours.conf", r#"{"type":"x","name":"n"}"#);
    until("conversion", || node.chained("05-ours.conflist"));
    agent.until_ready();
    node.remove_tree("bin");
    until_not_ready(&agent, "binary: ");
    fs::create_dir(node.bin("")).unwrap();
    agent.until_ready();
    assert!(node.bin("linkerd-cni").exists());
    node.remove_tree("etc");
    until("not ready", || agent.ready().0 == 500);
    fs::create_dir(node.net("")).unwrap();
    node.write(LIST, CALICO);
    agent.until_ready();
    // The agent watches the new directory.
    node.rewrite_calico();
}

#[test]
fn agent_chains_the_plugin_only_after_missing_files_appear() {
    type Remove = fn(&Node);
    let missing: [(&str, Remove); 4] = [
        ("token", |node| fs::rename(node.sa().join("token"), node.sa().join("t")).unwrap()),
        ("ca.crt", |node| fs::rename(node.sa().join("ca.crt"), node.sa().join("t")).unwrap()),
        ("bin", |node| fs::remove_dir(node.root().join("bin")).unwrap()),
        ("is empty", |node| node.rotate(" \n")),
    ];
    for (what, remove) in missing {
        let node = Node::with_calico();
        remove(&node);
        let mut agent = node.start();
        until(what, || agent.ready().1.contains(what));
        assert_eq!(node.text(LIST), CALICO, "{what}");
        match what {
            "bin" => fs::create_dir(node.root().join("bin")).unwrap(),
            "is empty" => node.rotate("token-2"),
            name => fs::rename(node.sa().join("t"), node.sa().join(name)).unwrap(),
        }
        agent.until_ready();
        // The agent logs the problem once, although each pass finds it. Other log lines also
        // contain `bin`, so they cannot be counted.
        let lines = agent.log().matches(what).count();
        assert!(lines == 1 || what == "bin", "{what}: {}", agent.log());
        assert_eq!(agent.stop(), Some(0));
    }
    for (name, row) in table::rows_of::<InvalidSetting>(include_str!("invalid.yaml"), "waits") {
        let node = Node::with_calico();
        let agent = row.start(&node);
        until(&name, || agent.ready().1.contains(&row.reason));
        assert_eq!(node.text(LIST), CALICO, "{name}");
    }
}

/// A row of `invalid.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvalidSetting {
    #[serde(default)]
    variables: BTreeMap<String, String>,
    #[serde(default)]
    arguments: Vec<String>,
    reason: String,
}

impl InvalidSetting {
    fn start(&self, node: &Node) -> Agent {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let variables: Vec<_> =
            self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        node.start_args(&arguments, &variables)
    }
}

#[test]
fn agent_exits_with_the_reason_if_template_or_setting_is_invalid() {
    let node = Node::with_calico();
    let before = node.tree();
    for (name, row) in table::rows_of::<InvalidSetting>(include_str!("invalid.yaml"), "ends") {
        let mut agent = row.start(&node);
        assert_eq!(agent.wait(), Some(1), "{name}");
        assert!(agent.log().contains(&row.reason), "{name}: {}", agent.log());
    }
    let file = [("CNI_NETWORK_CONFIG", ""), ("CNI_NETWORK_CONFIG_FILE", "/no/such")];
    let mut agent = node.start_with(&file);
    assert_eq!(agent.wait(), Some(1));
    assert!(agent.log().contains("/no/such"), "{}", agent.log());
    assert_eq!(node.tree(), before);
}

#[test]
fn template_and_certificate_authority_may_come_from_files() {
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
