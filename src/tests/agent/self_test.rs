//! Tests the self-test, in which the agent calls the installed plugin in scratch network
//! namespaces. Needs root.

use std::fs;

use testkit::table;
use testkit::write_program;

use crate::agent::Agent;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

pub const PLUGIN: &str = env!("CARGO_BIN_EXE_linkerd-cni");

/// Plugin entry as the chart renders it for a dual-stack cluster.
pub const ENTRY: &str = include_str!("self_test.json");

/// Puts this plugin into the image, and a network config of CNI 1.0.0 on the node. This version has
/// CHECK.
fn use_plugin(node: &Node, plugin: impl AsRef<[u8]>) {
    write_program(node.root().join("image/linkerd-cni"), plugin);
    node.write(LIST, &CALICO.replace("0.3.1", "1.0.0"));
}

/// Puts the real plugin into the image, and a network config of CNI 1.0.0 on the node.
pub fn use_real_plugin(node: &Node) {
    use_plugin(node, fs::read(PLUGIN).unwrap());
}

fn node_with(plugin: impl AsRef<[u8]>) -> Node {
    let node = Node::new();
    use_plugin(&node, plugin);
    node
}

fn real_node() -> Node {
    node_with(fs::read(PLUGIN).unwrap())
}

/// Returns a plugin that responds to VERSION, and runs these shell commands for all other commands.
fn script(text: &str) -> String {
    let version = r#"{"supportedVersions": ["1.0.0"]}"#;
    format!("#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{version}' && exit\n{text}\n")
}

fn vars(entry: &str) -> [(&str, &str); 3] {
    let resync = ("LINKERD_CNI_RESYNC_SECONDS", "1");
    [("LINKERD_CNI_SELF_TEST", "true"), ("CNI_NETWORK_CONFIG", entry), resync]
}

pub fn start(node: &Node, entry: &str) -> Agent {
    node.start_with(&vars(entry)[..2])
}

/// Starts the agent without a capability.
pub fn start_without(node: &Node, capability: &str) -> Agent {
    let bounds = format!("--bounding-set=-{capability}");
    node.start_under(&["setpriv", &bounds], &[], &vars(ENTRY)[..2])
}

fn self_tests(agent: &Agent, result: &str) -> f64 {
    agent.metric(&format!("linkerd_cni_agent_self_tests_total{{result=\"{result}\"}}"))
}

#[test]
fn self_test_shows_redirected_tcp_in_both_directions_and_families() {
    for (version, calls) in [("0.3.1", "ADD succeeded"), ("1.0.0", "ADD and CHECK succeeded")] {
        let node = real_node();
        node.write(LIST, &CALICO.replace("0.3.1", version));
        // Without a plugin of the primary CNI in the bin dir, the agent would log a warning.
        fs::write(node.bin("portmap"), "").unwrap();
        let mut agent = start(&node, ENTRY);
        agent.until_ready();
        let log = agent.log();
        let passed = format!(
            "self-test passed: {calls}, TCP is redirected \
             (IPv4 outbound, IPv4 inbound, IPv6 outbound, IPv6 inbound), in "
        );
        assert!(log.contains(&passed), "{log}");
        let (tested, ready) = (log.find(&passed), log.find("is installed and verified"));
        assert!(tested < ready, "{log}");
        assert!(!log.contains("WARN"), "{log}");
        assert_eq!(self_tests(&agent, "passed"), 1.0);
    }
}

/// Under some AppArmor profiles, the plugin has no ptrace rights over the agent. In this test, it
/// has none because it is in another user namespace.
#[test]
fn plugin_opens_the_netns_of_the_self_test_without_ptrace_rights_over_the_agent() {
    let node = Node::new();
    let opened = node.root().join("opened");
    let open = r#"unshare --user sh -c ': <"$CNI_NETNS"'"#;
    use_plugin(&node, script(&format!("{open} && : >{}", opened.display())));
    let _agent = node.start_with(&vars(ENTRY));
    until("the plugin has opened the netns", || opened.exists());
}

#[test]
fn self_test_reruns_only_when_binary_or_entry_changes() {
    let node = real_node();
    let mut agent = node.start_ready_with(&vars(ENTRY));
    let passes = |agent: &Agent| agent.metric("linkerd_cni_agent_reconcile_total");
    let before = passes(&agent);
    until("more passes", || passes(&agent) > before + 2.0);
    assert_eq!(self_tests(&agent, "passed"), 1.0);
    fs::remove_file(node.bin("linkerd-cni")).unwrap();
    until("a second self-test", || self_tests(&agent, "passed") == 2.0);
    agent.until_ready();
}

#[test]
fn self_test_is_skipped_if_the_agent_has_no_iptables_for_the_mode() {
    let node = real_node();
    // Hide iptables, because the agent's image does not contain it.
    let hide = r#"mount -t tmpfs none /usr/sbin && exec "$0" "$@""#;
    let by = ["unshare", "--mount", "sh", "-c", hide];
    let entry = ENTRY.replace(r#""auto""#, r#""legacy""#);
    let mut agent = node.start_under(&by, &[], &vars(&entry)[..2]);
    agent.until_ready();
    let note = "ready (self-test skipped: the agent cannot run the host's iptables: ADD failed: ";
    assert!(agent.ready().1.starts_with(note), "{:?}", agent.ready());
    assert_eq!((self_tests(&agent, "passed"), self_tests(&agent, "skipped")), (0.0, 1.0));
}

#[test]
fn self_test_uses_iptables_programs_that_the_agent_finds() {
    for (mode, program) in [
        ("nft", "iptables-nft-restore"),
        ("legacy", "iptables-legacy-restore"),
        ("plain", "iptables-restore"),
    ] {
        let node = real_node();
        // This script precedes the real iptables in PATH. It records the call and runs iptables.
        let dir = tempfile::tempdir().unwrap();
        let ran = dir.path().join("ran");
        let text = format!("echo x >>{}; exec /usr/sbin/{program} \"$@\"", ran.display());
        write_program(dir.path().join(program), script(&text));
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let entry = ENTRY.replace(r#""auto""#, &format!("\"{mode}\""));
        let vars = [&vars(&entry)[..2], &[("PATH", &*path)]].concat();
        // The agent gets all capabilities, because iptables-legacy needs NET_RAW.
        let mut agent = node.start_under(&[], &[], &vars);
        agent.until_ready();
        assert!(ran.exists(), "{mode}: {}", agent.log());
        assert_eq!(agent.ready().1, "ready\n", "{mode}");
        assert_eq!(self_tests(&agent, "passed"), 1.0, "{mode}");
    }
}

#[test]
fn node_is_not_ready_while_the_plugin_fails_the_self_test() {
    let result = script(r#"echo '{"cniVersion": "1.0.0", "ips": []}'"#);
    let fails = r#"{"code": 121, "msg": "no rule for you", "details": "try another"}"#;
    let refused = "self-test: outbound TCP to 192.0.2.2:80 does not reach the proxy's port 4140: \
                   Connection refused";
    let magic = ENTRY.replace(r#""iptables-mode": "auto""#, r#""iptables-mode": "magic""#);
    for (name, (plugin, entry, reason)) in table::named([
        (
            "a plugin that returns an error",
            (
                script(&format!("echo '{fails}'; exit 1")).into_bytes(),
                ENTRY,
                "self-test: ADD failed: no rule for you; try another (code 121)",
            ),
        ),
        (
            "a plugin that prints to stderr and exits",
            (script("echo oops >&2; exit 7").into_bytes(), ENTRY, "exit status: 7; oops"),
        ),
        ("a plugin that redirects nothing", (result.into_bytes(), ENTRY, refused)),
        (
            "an entry with an unknown mode",
            (
                fs::read(PLUGIN).unwrap(),
                &magic,
                "\"magic\" is not one of auto, native, nft, legacy and plain",
            ),
        ),
    ]) {
        let node = node_with(&plugin);
        let agent = start(&node, entry);
        until(reason, || agent.ready().1.contains(reason));
        assert_eq!(agent.ready().0, 500, "{name}");
        // The plugin is chained anyway. Meshed pods then fail instead of starting without redirect
        // rules.
        assert!(node.chained(LIST), "{name}");
        assert!(!agent.log().contains("is installed and verified"), "{name}");
    }
}

#[test]
fn failed_self_test_is_retried_until_it_passes() {
    let dir = tempfile::tempdir().unwrap();
    // The plugin fails until the file `works` exists.
    let [works, calls] = ["works", "calls"].map(|name| dir.path().join(name));
    let (works_path, calls_path) = (works.display(), calls.display());
    let text = format!("echo x >>{calls_path}; [ -e {works_path} ] && exec {PLUGIN}; exit 5");
    let node = node_with(script(&text));
    let mut agent = start(&node, ENTRY);
    let count = || fs::read_to_string(&calls).unwrap_or_default().lines().count();
    until("three attempts", || count() >= 3);
    assert_eq!(agent.ready().0, 500);
    // The agent backs off after each failure, and logs the failure once.
    assert!(count() <= 4, "{}", count());
    assert_eq!(agent.log().matches("exit status: 5").count(), 1);
    fs::write(&works, "").unwrap();
    agent.until_ready();
    until("the failure is resolved", || agent.log().contains("self-test: resolved"));
}
