//! `cniConfFileName`: the agent chains the plugin to one network config, and removes from the
//! others only the plugin entries that an agent of this project wrote.

use std::thread;
use std::time::{Duration, Instant};

use testkit::upstream_agent::UpstreamAgent;

use crate::agent::Agent;
use crate::api::Api;
use crate::node::{CALICO, CONF, LIST, Node, TEMPLATE};
use crate::until::until;
use crate::upstream::{self, KUBECONFIG, until_yielding};

const NAMED: &str = "20-calico.conflist";
const WRITES: &str = "linkerd_cni_agent_conflist_writes_total";

/// The template as this project's chart renders it.
fn chart_template() -> String {
    TEMPLATE.replace("4143", "4143, \"agent-namespace\": \"linkerd-cni\"")
}

/// A node with the configs [`LIST`], which is active, and [`NAMED`]. Its agents uninstall when they
/// are stopped.
fn node() -> Node {
    prepared(Node::uninstalling_with_calico())
}

fn prepared(mut node: Node) -> Node {
    node.write(NAMED, CALICO);
    node.vars.push(("LINKERD_CNI_RESYNC_SECONDS", "1".into()));
    node.vars.push(("CNI_NETWORK_CONFIG", chart_template()));
    node
}

fn start_with_named(node: &Node, name: &str) -> Agent {
    node.start_with(&[("LINKERD_CNI_CONF_NAME", name)])
}

/// Asserts that the agent reconciles some times, and does not write the network config `name`.
fn assert_untouched(node: &Node, agent: &Agent, name: &str) {
    let passes = || agent.metric("linkerd_cni_agent_reconcile_total");
    let (text, inode, first) = (node.text(name), node.inode(name), passes());
    until("some passes", || passes() > first + 2.0);
    let log = agent.log();
    assert_eq!((node.text(name), node.inode(name)), (text, inode), "{log}");
    assert!(!log.contains("overwritten") && !log.contains("removed the plugin entry"), "{log}");
}

/// An agent with [`NAMED`] that is ready beside an upstream agent, which has its entry in both
/// configs.
fn beside_upstream(node: &Node) -> (UpstreamAgent, Agent) {
    let upstream = upstream::start(node, KUBECONFIG);
    let agent = start_with_named(node, NAMED);
    until_yielding(&agent);
    for name in [LIST, NAMED] {
        until("upstream's entry", || node.text(name) == upstream::list());
    }
    (upstream, agent)
}

#[test]
fn an_upstream_agents_entry_in_an_unnamed_config_is_no_contention() {
    let node = node();
    let (upstream, mut agent) = beside_upstream(&node);
    assert_untouched(&node, &agent, LIST);
    assert_eq!(agent.ready().0, 200, "{}", agent.log());
    // Upstream's agent uninstalls, and removes its entries itself.
    drop(upstream);
    until("the agent's entry", || node.text(NAMED).contains("agent-namespace"));
    agent.until_ready();
    assert!(!node.text(LIST).contains("linkerd-cni"), "{}", agent.log());
}

#[test]
fn a_killed_upstream_agents_entry_is_replaced_only_in_the_named_config() {
    let api = Api::start();
    let node = prepared(Node::with_api(&api));
    let (upstream, mut agent) = beside_upstream(&node);
    upstream.kill();
    until("the agent's entry", || node.text(NAMED).contains("agent-namespace"));
    agent.until_ready();
    until("the end of yielding", || !agent.ready().1.contains("an upstream agent runs"));
    assert_untouched(&node, &agent, LIST);
    assert_eq!(node.text(LIST), upstream::list());
    assert!(node.text(NAMED).contains("agent-namespace"));
    // The runtime uses the entry that upstream's agent left in the active config.
    let log = agent.log();
    assert!(log.contains("with the plugin entry in 10-calico.conflist, which another"), "{log}");
    // The DaemonSet exists. The next agent finds this agent's kubeconfig, and not that of
    // upstream's agent.
    let kubeconfig = node.text("kubeconfig.json");
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("kubeconfig.json"), kubeconfig, "{}", agent.log());
    assert_ne!(kubeconfig, KUBECONFIG);
}

#[test]
fn entries_in_other_configs_stay_while_the_named_config_is_missing() {
    let node = node();
    upstream::start(&node, KUBECONFIG).kill();
    let agent = start_with_named(&node, "30-net.conf");
    until("the reason", || agent.ready().1.contains("30-net.conf, which cniConfFileName names"));
    assert_untouched(&node, &agent, LIST);
    assert!(!agent.log().contains("an upstream agent runs"), "{}", agent.log());
}

#[test]
fn an_upgrade_to_a_named_config_removes_entries_from_the_others() {
    let node = node();
    node.write("30-net.conf", CONF);
    let before = node.tree();
    node.install();
    // Entries of other values are of earlier agents, too.
    let template = chart_template().replace("4143", "5143");
    let vars = [("LINKERD_CNI_CONF_NAME", NAMED), ("CNI_NETWORK_CONFIG", &*template)];
    let mut agent = node.start_ready_with(&vars);
    until("the other configs are restored", || {
        node.text(LIST) == CALICO && node.text("30-net.conf") == CONF
    });
    agent.until_ready();
    assert!(node.text(NAMED).contains("5143") && !node.net("30-net.conflist").exists());
    node.assert_restored(&mut agent, &before);
}

#[test]
fn a_manual_entry_in_an_unnamed_config_stays_until_uninstall() {
    let node = node();
    let before = node.tree();
    let mut agent = start_with_named(&node, NAMED);
    agent.until_ready();
    let edited = CALICO.replace("true\n    }", "true\n    }, {\"type\": \"linkerd-cni\"}");
    assert_ne!(edited, CALICO);
    node.write(LIST, &edited);
    assert_untouched(&node, &agent, LIST);
    assert_eq!((node.text(LIST), agent.ready().0), (edited, 200), "{}", agent.log());
    // Plugin binary and kubeconfig are removed, so no network config may name the plugin.
    node.assert_restored(&mut agent, &before);
}

#[test]
fn a_writer_that_restores_an_earlier_agents_entry_is_contention() {
    let node = node();
    node.install();
    let chained = node.text(LIST);
    let mut agent = start_with_named(&node, NAMED);
    agent.until_ready();
    until("the entry is removed", || node.text(LIST) == CALICO);
    let restore = || {
        if node.text(LIST) == CALICO {
            node.replace(&node.net(LIST), chained.as_bytes());
        }
    };
    until("the contention is reported", || {
        restore();
        agent.log().contains("10-calico.conflist keeps being overwritten by another writer")
    });
    let (begin, writes) = (Instant::now(), agent.metric(WRITES));
    while begin.elapsed() < Duration::from_secs(2) {
        restore();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(agent.metric(WRITES) <= writes + 1.0, "{}", agent.log());
    assert!(node.text(NAMED).contains("agent-namespace"));
    agent.until_ready();
}
