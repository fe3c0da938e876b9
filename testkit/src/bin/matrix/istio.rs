//! Checks of nodes on which Istio's istio-cni is chained, too. Istio's agent restores its own
//! plugin entry, as this project's agent does.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::cluster::active;
use testkit::cluster::events;
use testkit::cluster::families::any;
use testkit::cluster::node::{Files, Node, netns_of};
use testkit::cluster::pods::{self, Pods};
use testkit::until::until_within;

use crate::{agents, network};

const PRIMARY: [&str; 2] = ["bridge", "portmap"];
const LINKERD: &str = "linkerd-cni";
const ISTIO: &str = "istio-cni";
const CONFLIST: &str = "/etc/cni/net.d/10-bridge.conflist";
const BINARY: &str = "/opt/cni/bin/istio-cni";
const AGENT_LOG: &str = "/var/lib/linkerd2-cni-cluster/log/istio-install-cni";
const PLUGIN_LOG: &str = "/run/linkerd2-cni-cluster/istio-cni/istio-cni.log";
/// Texts in the redirect rules of linkerd-cni and of istio-cni.
const RULES: [&str; 2] = ["redirect-all-outgoing-to-proxy-port", "ISTIO_OUTPUT"];

/// How often the primary CNI writes its network config in [`assert_both_restore_their_entries`].
const REWRITES: usize = 6;
/// Time between two such writes.
const PERIOD: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(30);
const REACTION: Duration = Duration::from_secs(30);

/// Asserts that linkerd-cni is chained after Istio's plugin, which was installed first.
pub fn assert_chained_after_istio() -> String {
    until_chained(&[ISTIO, LINKERD])
}

/// Installs Istio's plugin while linkerd-cni is chained. linkerd-cni keeps its place in the
/// conflist.
pub fn install_istio_second() -> String {
    network::cluster("start-second-plugin");
    until_chained(&[LINKERD, ISTIO])
}

pub fn is_chained() -> bool {
    has_chained(&[ISTIO, LINKERD]) || has_chained(&[LINKERD, ISTIO])
}

fn has_chained(chained: &[&str]) -> bool {
    types() == [&PRIMARY, chained].concat()
}

fn until_chained(chained: &[&str]) -> String {
    until_within(REACTION, &format!("chained: {chained:?}"), || has_chained(chained));
    types().join(", ")
}

fn types() -> Vec<String> {
    let plugins = active::plugins().into_iter();
    plugins.map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Asserts that Istio's plugin redirects only pods with Istio's sidecar, and that linkerd-cni
/// redirects meshed pods as without Istio's plugin.
pub fn assert_both_plugins_are_called(pods: &Pods) -> String {
    let sidecar = "istio-sidecar";
    pods.start(&[with_istio_proxy(pods::unmeshed(sidecar))]);
    for (name, is_skipped, expected) in [
        ("meshed", true, [true, false]),
        ("unmeshed", true, [false, false]),
        (sidecar, false, [false, true]),
    ] {
        assert_eq!(was_skipped(name), is_skipped, "whether Istio's plugin skipped {name}");
        let rules = netns_of(&pods.ip(name)).rules();
        assert_eq!(RULES.map(|text| rules.contains(text)), expected, "{name}: {rules}");
    }
    for (from, to, responder) in [
        ("unmeshed", sidecar, "istio-inbound"),
        (sidecar, "unmeshed", "istio-outbound"),
        (sidecar, "meshed", "istio-outbound"),
        ("meshed", sidecar, "proxy-outbound"),
    ] {
        pods.assert_answers(from, to, responder);
    }
    "skipped the meshed and the unmeshed pod, and redirected a pod with istio-proxy".to_owned()
}

fn with_istio_proxy(mut pod: Value) -> Value {
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!("{}");
    let words = [
        vec!["serve".to_owned(), "istio-inbound".to_owned()],
        any(15006),
        vec!["istio-outbound".to_owned()],
        any(15001),
    ];
    let proxy = pods::container("istio-proxy", 1337, &words.concat());
    pod["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    pod
}

fn was_skipped(name: &str) -> bool {
    let log = fs::read_to_string(PLUGIN_LOG).unwrap();
    let mut lines = log.lines().filter(|line| line.contains(&format!(r#""{name}/{name}""#)));
    lines.any(|line| line.contains("does not have istio-proxy container"))
}

/// Asserts that both agents restore their plugin entries whenever the primary CNI writes its file,
/// and that the agents then leave the file unchanged.
pub fn assert_both_restore_their_entries(pods: &Pods) -> String {
    let before = writes();
    let mut slowest = Duration::ZERO;
    for _ in 0..REWRITES {
        let begin = Instant::now();
        network::rewrite_config();
        until_within(REACTION, "both plugin entries are back", is_chained);
        slowest = slowest.max(begin.elapsed());
        thread::sleep(PERIOD.saturating_sub(begin.elapsed()));
    }
    let after = writes();
    thread::sleep(QUIET);
    assert_eq!(writes(), after, "writes in {QUIET:?} in which the primary CNI wrote nothing");
    assert!(is_chained(), "{:?}", types());
    let linkerd = after[0] - before[0];
    let istio = after[1] - before[1];
    // Each agent writes once or twice for each rewrite. The second write is needed if Istio's agent
    // writes what it has read before a write of linkerd-cni's agent, and so undoes that write.
    let bound = REWRITES..=2 * REWRITES;
    let is_bounded = bound.contains(&linkerd) && bound.contains(&istio);
    assert!(is_bounded, "writes of linkerd-cni {linkerd}, of Istio {istio}, not {bound:?}");
    assert_eq!(events::messages("default", "LinkerdCNIContention"), "");
    assert_redirected(pods, "both-restored");
    format!(
        "{REWRITES} rewrites in 60 s: {linkerd} writes by the agent, {istio} by Istio's, both \
         entries back after at most {:.1} s; then no write in {QUIET:?}",
        slowest.as_secs_f64()
    )
}

/// Returns how often the agent and Istio's agent have written the network config.
fn writes() -> [usize; 2] {
    let log = fs::read_to_string(AGENT_LOG).unwrap();
    [agents::logged_writes(), log.matches("Wrote CNI config to").count()]
}

/// Removes Istio's plugin while linkerd-cni is chained, and installs it again.
pub fn remove_and_install_istio(pods: &Pods) -> String {
    network::cluster("stop-second-plugin");
    let without = until_chained(&[LINKERD]);
    assert_redirected(pods, "without-istio");
    network::cluster("start-second-plugin");
    let with = until_chained(&[LINKERD, ISTIO]);
    assert_redirected(pods, "with-istio");
    format!("{without}; then {with}; meshed pods redirected with both")
}

fn assert_redirected(pods: &Pods, name: &str) {
    pods.start(&[pods::meshed(name)]);
    pods.assert_answers("unmeshed", name, "proxy-inbound");
}

/// Waits until the node's files are as before. The time of Istio's plugin binary is not compared,
/// because Istio's agent copies the binary again at each event in the directory.
pub fn until_as_before(node: &Node, before: &Files) {
    let before = network::unchanging(before);
    until_within(REACTION, "the node's files are as before", || {
        network::unchanging(&node.files()) == before
    });
}

/// Waits until the node has only Istio's plugin, and otherwise the files as before.
pub fn until_only_istio_is_left(node: &Node, before: &Files) {
    until_chained(&[ISTIO]);
    let expected = without_istio(before.clone());
    until_within(REACTION, "only Istio's plugin is left", || {
        without_istio(node.files()) == expected
    });
}

fn without_istio(mut files: Files) -> Files {
    files.remove(Path::new(BINARY));
    files.remove(Path::new(CONFLIST));
    files
}

/// Removes Istio's plugin, too. Its agent leaves the conflist that the primary CNI wrote, apart
/// from the format of the JSON.
pub fn remove_istio_last(node: &Node, before: &Files) -> String {
    network::cluster("stop-second-plugin");
    let left = until_chained(&[]);
    let restored = conflist();
    network::rewrite_config();
    assert_eq!(restored, conflist(), "what Istio's agent left, and what the primary CNI writes");
    let files = node.files();
    assert!(!files.contains_key(Path::new(BINARY)), "Istio's plugin binary is left");
    assert_eq!(without_istio(files), without_istio(before.clone()));
    left
}

fn conflist() -> Value {
    serde_json::from_str(&fs::read_to_string(CONFLIST).unwrap()).unwrap()
}
