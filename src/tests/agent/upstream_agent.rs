//! Tests this project's agent beside an upstream agent. Both run during a `helm upgrade` from
//! upstream's chart with `maxSurge`, and during a `helm rollback` to that chart.

use testkit::table;
use testkit::upstream_agent::UpstreamAgent;

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState, delete_pod};
use crate::node::{CONF, LIST, Node, TEMPLATE};
use crate::until::until;
use crate::upstream::{self, KUBECONFIG, is_replaced, templates, until_yielding};

/// Creates a node and an API server. Agents use this template, and check every second whether an
/// upstream agent still runs.
fn node(template: &str) -> (Api, Node) {
    let api = Api::start();
    let mut node = Node::with_api(&api);
    node.vars.push(("LINKERD_CNI_RESYNC_SECONDS", "1".into()));
    node.vars.push(("CNI_NETWORK_CONFIG", template.to_owned()));
    (api, node)
}

/// Starts both agents on one node, and waits until this project's agent is ready.
fn start_both(template: &str) -> (Api, Node, UpstreamAgent, Agent) {
    let (api, node) = node(template);
    let upstream = upstream::start(&node, KUBECONFIG);
    let agent = node.start_ready();
    (api, node, upstream, agent)
}

#[test]
fn entry_and_token_of_a_dead_upstream_agent_are_replaced() {
    for (template, dies_before) in templates().iter().flat_map(|text| [(text, true), (text, false)])
    {
        let (api, node) = node(template);
        let mut upstream = Some(upstream::start(&node, KUBECONFIG));
        if dies_before {
            upstream.take().unwrap().kill();
        }
        let mut agent = node.start_ready();
        // The agent never uses upstream's token, because that token may become invalid.
        assert!(api.state().tokens.contains(&node.token()));
        let log = || agent.log();
        if let Some(upstream) = upstream {
            upstream.kill();
            until("the log", || log().contains("this agent manages the plugin again"));
        }
        until("the agent's entry", || is_replaced(&node.text(LIST)));
        let lines = log().matches("an upstream agent runs").count();
        assert_eq!(lines, usize::from(!dies_before), "{}", log());
        agent.until_ready();
    }
}

#[test]
fn agent_that_stops_beside_an_upstream_agent_restores_its_kubeconfig() {
    let [different, same] = templates();
    for (_name, (set, template)) in table::named([
        ("the agent is replaced", (DaemonSetState::Exists, &different)),
        ("the chart is uninstalled", (DaemonSetState::BeingDeleted, &different)),
        ("the entry is upstream's", (DaemonSetState::Exists, &same)),
    ]) {
        let (api, node, _upstream, mut agent) = start_both(template);
        // An uninstall fails, because the upstream agent chains its plugin again.
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

/// Upstream's agent also merges its entry into network configs that the runtime does not load.
#[test]
fn entry_of_a_running_upstream_agent_is_kept_in_every_network_config() {
    let files = [LIST, "20-other.conflist", "30-single.conflist"];
    for is_killed in [false, true] {
        let (_api, node) = node(TEMPLATE);
        node.write(files[1], r#"{"name": "other", "plugins": [{"type": "ptp"}]}"#);
        node.write("30-single.conf", CONF);
        let upstream = upstream::start(&node, KUBECONFIG);
        let mut agent = node.start_ready();
        until_yielding(&agent);
        for file in files {
            // Wait for upstream's entry: now and then the agent writes its own entry, to detect
            // whether upstream's agent still runs.
            until(file, || node.chained(file) && !is_replaced(&node.text(file)));
        }
        if is_killed {
            upstream.kill();
        } else {
            drop(upstream);
        }
        for file in files {
            until(file, || is_replaced(&node.text(file)));
        }
        agent.until_ready();
    }
}
