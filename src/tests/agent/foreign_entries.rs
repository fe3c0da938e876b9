//! Tests `cniConfFileName`. The agent chains the plugin to one network config. From the others, it
//! removes only plugin entries that an agent of this project wrote.

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

/// Returns the template as this project's chart renders it.
fn chart_template() -> String {
    TEMPLATE.replace("4143", "4143, \"agent-namespace\": \"linkerd-cni\"")
}

/// Creates a node with the network configs [`LIST`], which is active, and [`NAMED`]. Its agents
/// uninstall when they are stopped.
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

/// Asserts that the agent does not write the network config `name` during several reconcile passes.
fn assert_untouched(node: &Node, agent: &Agent, name: &str) {
    let passes = || agent.metric("linkerd_cni_agent_reconcile_total");
    let (text, inode, first) = (node.text(name), node.inode(name), passes());
    until("some passes", || passes() > first + 2.0);
    let log = agent.log();
    assert_eq!((node.text(name), node.inode(name)), (text, inode), "{log}");
    assert!(!log.contains("overwritten") && !log.contains("removed the plugin entry"), "{log}");
}

/// Starts an upstream agent, which writes its entry to both configs. Then starts an agent with
/// `cniConfFileName` set to [`NAMED`], and waits until it is ready.
fn start_beside_upstream(node: &Node) -> (UpstreamAgent, Agent) {
    let upstream = upstream::start(node, KUBECONFIG);
    let agent = start_with_named(node, NAMED);
    until_yielding(&agent);
    for name in [LIST, NAMED] {
        until("upstream's entry", || node.text(name) == upstream::list());
    }
    (upstream, agent)
}

#[test]
fn upstream_agents_entry_in_an_unnamed_config_is_not_contention() {
    let node = node();
    let (upstream, mut agent) = start_beside_upstream(&node);
    assert_untouched(&node, &agent, LIST);
    assert_eq!(agent.ready().0, 200, "{}", agent.log());
    // Upstream's agent uninstalls, and removes its entries itself.
    drop(upstream);
    until("the agent's entry", || node.text(NAMED).contains("agent-namespace"));
    agent.until_ready();
    assert!(!node.text(LIST).contains("linkerd-cni"), "{}", agent.log());
}

#[test]
fn entry_of_a_killed_upstream_agent_is_replaced_only_in_the_named_config() {
    let api = Api::start();
    let node = prepared(Node::with_api(&api));
    let (upstream, mut agent) = start_beside_upstream(&node);
    upstream.kill();
    until("the agent's entry", || node.text(NAMED).contains("agent-namespace"));
    agent.until_ready();
    until("no upstream agent is reported", || !agent.ready().1.contains("an upstream agent runs"));
    assert_untouched(&node, &agent, LIST);
    assert_eq!(node.text(LIST), upstream::list());
    assert!(node.text(NAMED).contains("agent-namespace"));
    // The runtime uses the entry that upstream's agent left in the active config.
    let log = agent.log();
    assert!(log.contains("with the plugin entry in 10-calico.conflist, which another"), "{log}");
    // The DaemonSet exists, so the agent leaves its kubeconfig in place, and does not restore that
    // of upstream's agent.
    let kubeconfig = node.text("kubeconfig.json");
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text("kubeconfig.json"), kubeconfig, "{}", agent.log());
    assert_ne!(kubeconfig, KUBECONFIG);
}

#[test]
fn entries_in_other_configs_are_kept_while_the_named_config_is_missing() {
    let node = node();
    upstream::start(&node, KUBECONFIG).kill();
    let agent = start_with_named(&node, "30-net.conf");
    until("the reason", || agent.ready().1.contains("30-net.conf, which cniConfFileName names"));
    assert_untouched(&node, &agent, LIST);
    assert!(!agent.log().contains("an upstream agent runs"), "{}", agent.log());
}

#[test]
fn entries_in_other_configs_are_removed_when_a_config_is_named_on_upgrade() {
    let node = node();
    node.write("30-net.conf", CONF);
    let before = node.tree();
    node.install();
    // An entry with different values was written by an earlier agent, and is removed, too.
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
fn manual_entry_in_an_unnamed_config_is_removed_only_by_uninstall() {
    let node = node();
    let before = node.tree();
    let mut agent = start_with_named(&node, NAMED);
    agent.until_ready();
    let edited = CALICO.replace("true\n    }", "true\n    }, {\"type\": \"linkerd-cni\"}");
    assert_ne!(edited, CALICO);
    node.write(LIST, &edited);
    assert_untouched(&node, &agent, LIST);
    assert_eq!((node.text(LIST), agent.ready().0), (edited, 200), "{}", agent.log());
    // Uninstall removes plugin binary and kubeconfig, so no network config may name the plugin.
    node.assert_restored(&mut agent, &before);
}

#[test]
fn program_that_restores_the_entry_of_an_earlier_agent_is_contention() {
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
