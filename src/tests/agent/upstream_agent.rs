//! An upstream agent that runs beside this project's agent, as during `helm upgrade` from
//! upstream's chart with a surge, and during `helm rollback` to it.

use testkit::table;
use testkit::upstream_agent::UpstreamAgent;

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState, delete_pod};
use crate::node::{CONF, LIST, Node, TEMPLATE};
use crate::until::until;
use crate::upstream::{self, KUBECONFIG, is_replaced, templates, until_yielding};

/// An API server and a node. Agents have this template, and look for a dead upstream agent every
/// second.
fn node(template: &str) -> (Api, Node) {
    let api = Api::start();
    let mut node = Node::with_api(&api);
    node.vars.push(("LINKERD_CNI_RESYNC_SECONDS", "1".into()));
    node.vars.push(("CNI_NETWORK_CONFIG", template.to_owned()));
    (api, node)
}

/// Both agents on one node. This project's agent is ready.
fn both(template: &str) -> (Api, Node, UpstreamAgent, Agent) {
    let (api, node) = node(template);
    let upstream = upstream::start(&node, KUBECONFIG);
    let agent = node.start_ready();
    (api, node, upstream, agent)
}

#[test]
fn a_dead_upstream_agents_entry_and_token_are_replaced() {
    for (template, dies_before) in templates().iter().flat_map(|one| [(one, true), (one, false)]) {
        let (api, node) = node(template);
        let mut upstream = Some(upstream::start(&node, KUBECONFIG));
        if dies_before {
            upstream.take().unwrap().kill();
        }
        let mut agent = node.start_ready();
        // Upstream's token is never in use, so that token's end does no harm.
        assert!(api.state().tokens.contains(&node.token()));
        let log = || agent.log();
        if let Some(upstream) = upstream {
            upstream.kill();
            until("the log", || log().contains("this agent manages the plugin again"));
        }
        until("the agent's entry", || is_replaced(&node.text(LIST)));
        let said = log().matches("an upstream agent runs").count();
        assert_eq!(said, usize::from(!dies_before), "{}", log());
        agent.until_ready();
    }
}

#[test]
fn an_agent_that_stops_beside_upstreams_restores_upstreams_kubeconfig() {
    let [other, same] = templates();
    for (_name, (set, template)) in table::named([
        ("the agent is replaced", (DaemonSetState::Exists, &other)),
        ("the chart is uninstalled", (DaemonSetState::BeingDeleted, &other)),
        ("the entry is upstream's", (DaemonSetState::Exists, &same)),
    ]) {
        let (api, node, _upstream, mut agent) = both(template);
        // The upstream agent prevents an uninstall.
        let status = i32::from(set == DaemonSetState::BeingDeleted);
        api.state().daemon_set = set;
        delete_pod(&api);
        assert_eq!(agent.stop(), Some(status), "{}", agent.log());
        let log = agent.log();
        assert!(log.contains("restored the kubeconfig"), "{log}");
        until("the upstream entry", || node.text(LIST) == upstream::list());
        assert_eq!(node.text("kubeconfig.json"), KUBECONFIG, "{log}");
        assert!(node.has_own_binary());
    }
}

/// Upstream's agent merges its entry also into network configs that the runtime does not load.
#[test]
fn a_running_upstream_agents_entry_stays_in_every_network_config() {
    let files = [LIST, "20-other.conflist", "30-single.conflist"];
    for is_killed in [false, true] {
        let (_api, node) = node(TEMPLATE);
        node.write(files[1], r#"{"name": "other", "plugins": [{"type": "ptp"}]}"#);
        node.write("30-single.conf", CONF);
        let upstream = upstream::start(&node, KUBECONFIG);
        let mut agent = node.start_ready();
        until_yielding(&agent);
        for file in files {
            // From time to time the agent looks whether upstream's agent still runs.
            until(file, || node.chained(file) && !is_replaced(&node.text(file)));
        }
        match is_killed {
            true => upstream.kill(),
            false => drop(upstream),
        }
        for file in files {
            until(file, || is_replaced(&node.text(file)));
        }
        agent.until_ready();
    }
}
