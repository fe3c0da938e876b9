//! An upstream agent that runs beside this project's agent, as during `helm upgrade` from upstream's chart with
//! a surge, and during `helm rollback` to it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::agent_with_api;
use crate::api::{Api, DaemonSetState};
use crate::node::{CALICO, Node, PLUGIN};
use crate::rechained::{LIST, PUT_BACK, Worker};
use crate::rewrites::counter;
use crate::until::until;
use crate::upstream::{self, Upstream};

/// Reads the node every 2 ms. Returns the longest time for which a new pod would not have been
/// redirected: no plugin entry, no plugin binary or no kubeconfig.
fn watch_gaps(node: &Arc<Node>) -> Worker<Duration> {
    let node = Arc::clone(node);
    Worker::start(move |stop| {
        let (mut longest, mut since) = (Duration::ZERO, None::<Instant>);
        while !stop.load(Ordering::Relaxed) {
            let length = |path| fs::metadata(path).map_or(0, |file| file.len());
            let is_installed = node.text(LIST).contains("linkerd-cni")
                && length(node.bin("linkerd-cni")) > 0
                && length(node.net("kubeconfig.json")) > 0;
            match is_installed {
                true => since = None,
                false => {
                    let since = since.get_or_insert_with(Instant::now);
                    longest = longest.max(since.elapsed());
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
        longest
    })
}

fn node(api: &Api) -> Arc<Node> {
    Arc::new(agent_with_api::node(api))
}

/// Starts an agent that looks for a dead upstream agent every second.
fn start(node: &Node, api: &Api) -> Agent {
    let mut vars = api.vars().to_vec();
    vars.push(("LINKERD_CNI_RESYNC_SECONDS", "1".into()));
    node.start_owned(&vars)
}

/// Both agents on one node. This project's agent is ready.
fn both(api: &Api) -> (Arc<Node>, Upstream, Agent) {
    let node = node(api);
    let upstream = Upstream::start(&node);
    until("the upstream entry", || node.chained(LIST));
    let agent = node.start_owned_ready(&api.vars());
    (node, upstream, agent)
}

fn is_own(text: &str) -> bool {
    text.contains("linkerd-cni") && text.contains("agent-namespace")
}

#[test]
fn an_agent_beside_an_upstream_agent_is_ready_and_chains_its_entry_once_that_agent_ends() {
    let api = Api::start();
    let (node, upstream, mut agent) = both(&api);
    until("the upstream entry", || node.text(LIST) == upstream::list());
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN, "the agent's own binary");
    assert_ne!(node.token(), "", "the agent's own kubeconfig");
    until("ready beside the upstream agent", || {
        let (status, note) = agent.ready();
        status == 200 && note.contains("an upstream agent runs")
    });
    let writes = counter(&agent, "linkerd_cni_agent_conflist_writes_total ");
    assert!(writes <= 3, "{writes}: {}", agent.log());

    let reader = watch_gaps(&node);
    upstream.stop(&node);
    until("the agent's entry", || is_own(&node.text(LIST)));
    agent.until_ready();
    let longest = reader.finish();
    assert!(longest < PUT_BACK, "{longest:?}");
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN);
    assert!(agent.log().contains("this agent manages the plugin again"), "{}", agent.log());
    assert!(!agent.log().contains("overwritten"), "{}", agent.log());
    api.state().daemon_set = DaemonSetState::BeingDeleted;
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text(LIST), CALICO);
}

#[test]
fn the_entry_and_the_token_of_a_dead_upstream_agent_are_replaced_at_once() {
    let api = Api::start();
    let node = node(&api);
    let upstream = Upstream::start(&node);
    until("the upstream entry", || node.chained(LIST));
    upstream.kill();
    let agent = node.start_owned_ready(&api.vars());
    assert!(is_own(&node.text(LIST)), "{}", node.text(LIST));
    assert!(api.state().tokens.contains(&node.token()));
    assert!(!agent.log().contains("an upstream agent runs"), "{}", agent.log());
}

#[test]
fn the_entry_of_an_upstream_agent_that_dies_beside_this_agent_is_replaced() {
    let api = Api::start();
    let node = node(&api);
    let upstream = Upstream::start(&node);
    until("the upstream entry", || node.chained(LIST));
    let mut agent = start(&node, &api);
    agent.until_ready();
    // Its token is never in use, so that token's end does no harm.
    assert!(api.state().tokens.contains(&node.token()));
    upstream.kill();
    until("the agent's entry", || is_own(&node.text(LIST)));
    agent.until_ready();
    until("the log", || agent.log().contains("this agent manages the plugin again"));
    let said = agent.log().matches("an upstream agent runs").count();
    assert_eq!(said, 1, "{}", agent.log());
}

#[test]
fn an_upstream_entry_with_another_kubeconfig_or_invalid_settings_is_never_accepted() {
    for (from, to) in [
        ("etc/kubeconfig.json", "etc/other.json"),
        ("\"iptables-mode\": \"nft\"", "\"iptables-mode\": 5"),
    ] {
        let api = Api::start();
        let node = node(&api);
        let mut agent = start(&node, &api);
        agent.until_ready();
        let list = upstream::list().replace(from, to);
        assert_ne!(list, upstream::list());
        node.replace(&node.net(LIST), list.as_bytes());
        until("the agent's entry", || is_own(&node.text(LIST)));
        assert!(!agent.log().contains("an upstream agent runs"), "{}", agent.log());
    }
}

#[test]
fn an_agent_that_ends_beside_an_upstream_one_restores_its_kubeconfig_and_keeps_the_plugin() {
    for set in [DaemonSetState::Exists, DaemonSetState::BeingDeleted] {
        let api = Api::start();
        let (node, upstream, mut agent) = both(&api);
        api.state().daemon_set = set;
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        let log = agent.log();
        assert!(log.contains("restored the kubeconfig"), "{log}");
        until("the upstream entry", || node.text(LIST) == upstream::list());
        assert_eq!(node.text("kubeconfig.json"), upstream::KUBECONFIG, "{log}");
        assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN);
        upstream.stop(&node);
    }
}

#[test]
fn an_upstream_agent_that_starts_beside_this_agent_gets_the_node_without_a_gap() {
    let api = Api::start();
    let node = node(&api);
    let mut agent = node.start_owned_ready(&api.vars());
    let reader = watch_gaps(&node);
    let upstream = Upstream::start(&node);
    until("the agent yields", || agent.log().contains("an upstream agent runs"));
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    until("the upstream entry", || node.text(LIST) == upstream::list());
    assert_eq!(node.text("kubeconfig.json"), upstream::KUBECONFIG);
    let longest = reader.finish();
    assert!(longest < PUT_BACK, "{longest:?}");
    upstream.kill();
}
