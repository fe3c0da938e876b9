//! Tests pods that started before the chart values changed. Such a pod keeps its rules, and a
//! repair restores the same rules if one is missing. Needs root.

use std::fs;
use std::time::Duration;

use linkerd2_cni::redirect::backend_order::Backend;
use linkerd2_cni::redirect::rules::{install_script, rules};
use linkerd2_cni::redirect::{Family, RuleSpec};
use linkerd2_cni::{firewall, netns};
use serde_json::{Value, json};

use crate::api::Answer;
use crate::controller::Controller;
use crate::node::{Node, add, entry, meshed, redirect, running, waiting};
use crate::until::until;

/// Returns the plugin entry after an upgrade with different values.
fn upgraded_entry() -> Value {
    let mut entry = entry("auto");
    entry["linkerd"]["inbound-ports-to-ignore"] = json!(["7777"]);
    entry["linkerd"]["ipv6"] = json!(true);
    entry
}

/// Returns the Events on the node.
pub fn node_events(node: &Node) -> Vec<Value> {
    let mut events = node.events();
    events.retain(|event| event["regarding"]["kind"] == "Node");
    events
}

/// Waits for several audits. Asserts that they find drift in one pod and change nothing.
fn assert_drifted(node: &Node, controller: &Controller, before: &str, what: &str) {
    controller.until_metric_reaches("audits_total", 3);
    assert_eq!(node.ruleset(), before, "{what}");
    assert!(node.changes().is_empty(), "{what}: {:?}", node.changes());
    assert_eq!(controller.metric("audit_pods_incomplete_total"), 0, "{what}");
    assert_eq!(controller.metric("audit_pods_drifted"), 1, "{what}");
    until("the Event on the node", || !node_events(node).is_empty());
    let events = node.events();
    assert_eq!(events.len(), 1, "{what}: {events:#?}");
    assert_eq!(events[0]["reason"], "LinkerdCNIRulesDrifted", "{what}");
    assert_eq!(events[0]["regarding"]["name"], "node-1", "{what}");
}

#[test]
fn running_pod_keeps_its_rules_after_an_upgrade_with_different_values() {
    for mode in ["native", "nft"] {
        for repair in ["--mode=delete", "--mode=in-place"] {
            let node = meshed(mode);
            node.api.state().evict = Answer::Status(201);
            node.chain(&upgraded_entry());
            let before = node.ruleset();
            let controller = node.controller(&["--audit-seconds=1", repair]);
            assert_drifted(&node, &controller, &before, &format!("{mode} {repair}"));
        }
    }
}

/// Creates a node with this pod. Its rules have the hook priority of an earlier version of the
/// plugin.
fn with_earlier_priority(pod: &Value) -> Node {
    let node = Node::with(pod);
    add(&node, "native", "9999");
    let listed =
        node.namespaces.sh("rules=$(nft list ruleset | sed 's/priority -199;/priority -99;/'); \
         nft flush ruleset; echo \"$rules\" | nft -f -; nft -y list ruleset");
    assert_eq!(listed.matches("priority -99;").count(), 2, "{listed}");
    node
}

#[test]
fn rules_with_the_hook_priority_of_an_earlier_version_are_drift() {
    for repair in ["--mode=delete", "--mode=in-place"] {
        let node = with_earlier_priority(&running());
        node.api.state().evict = Answer::Status(201);
        let before = node.ruleset();
        let controller = node.controller(&["--audit-seconds=1", repair]);
        assert_drifted(&node, &controller, &before, repair);
    }
}

#[test]
fn repair_updates_the_hook_priority_of_rules_of_an_earlier_version() {
    let node = with_earlier_priority(&waiting());
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert_eq!(node.namespaces.sh("nft -y list ruleset").matches("priority -199;").count(), 2);
    drop(controller);

    let node = with_earlier_priority(&running());
    node.namespaces.run("nft", &["flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_OUTPUT"]);
    let _controller = node.repaired();
    assert_eq!(node.namespaces.sh("nft -y list ruleset").matches("priority -199;").count(), 2);
}

#[test]
fn drift_is_reported_once_in_an_event_on_the_node() {
    let node = meshed("native");
    node.chain(&upgraded_entry());
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audits_total", 3);
    assert_eq!(node_events(&node).len(), 1);
    assert_eq!(controller.metric("events_publish_errors_total"), 0);
}

#[test]
fn repair_restores_the_rules_with_which_the_pod_started() {
    for jump in ["PREROUTING", "OUTPUT"] {
        let node = meshed("native");
        node.chain(&upgraded_entry());
        let before = node.ruleset();
        node.namespaces.run("nft", &["flush", "chain", "ip", "linkerd-cni", jump]);
        node.namespaces.run("nft", &["flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_OUTPUT"]);
        let _controller = node.repaired();
        assert_eq!(node.ruleset(), before);
    }
    let node = meshed("nft");
    node.chain(&upgraded_entry());
    node.namespaces.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "1"]);
    let _controller = node.repaired();
    let ruleset = node.ruleset();
    assert!(ruleset.contains("ignore-port-9999") && !ruleset.contains("7777"), "{ruleset}");
    assert!(!ruleset.contains("table ip6 linkerd-cni"), "{ruleset}");
}

#[test]
fn pod_without_any_rules_gets_those_of_the_current_values() {
    let node = meshed("native");
    node.chain(&upgraded_entry());
    node.namespaces.run("nft", &["flush", "ruleset"]);
    let _controller = node.repaired();
    let ruleset = node.ruleset();
    assert!(ruleset.contains("ignore-port-7777"), "{ruleset}");
    assert!(ruleset.contains("table ip6 linkerd-cni"), "{ruleset}");
}

#[test]
fn pod_with_drift_whose_validator_fails_gets_the_rules_of_the_current_values() {
    let node = Node::with(&waiting());
    add(&node, "native", "9999");
    node.chain(&upgraded_entry());
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert!(node.ruleset().contains("ignore-port-7777"), "{}", node.ruleset());
}

/// The comments of iptables rules do not contain the proxy's UID.
#[test]
fn repair_removes_iptables_rules_with_an_earlier_proxy_uid() {
    let node = Node::with(&waiting());
    add(&node, "nft", "9999");
    let mut entry = entry("auto");
    entry["linkerd"]["proxy-uid"] = json!(3000);
    node.chain(&entry);
    let controller = node.controller(&[]);
    controller.until_metric_is("pods_repaired_total", 1);
    let ruleset = node.ruleset();
    assert!(ruleset.contains("skuid 3000") && !ruleset.contains("skuid 2102"), "{ruleset}");
}

/// Adds ` guessed` to the markers of a pod's rules, as ADD does in an outage of the API server.
fn mark_guessed(node: &Node, mode: &str) {
    let (list, restore) = match mode {
        "native" => ("nft list ruleset", "nft flush ruleset; nft -f -"),
        _ => ("iptables-nft-save -t nat", "iptables-nft-restore"),
    };
    let rewrite = format!(
        "rules=$({list} | sed 's/ skip-out=9999\"/ skip-out=9999 guessed\"/'); \
         echo \"$rules\" | ({restore}); {list}"
    );
    let listed = node.namespaces.sh(&rewrite);
    assert!(listed.contains(" guessed\""), "{listed}");
}

/// During an API outage ADD has to guess the rules, because it cannot read the proxy container.
#[test]
fn guessed_rules_are_repaired_only_if_the_pod_needs_different_ones() {
    for mode in ["native", "nft"] {
        let node = meshed(mode);
        mark_guessed(&node, mode);
        let before = node.ruleset();
        let controller = node.auditing(&[]);
        controller.until_metric_reaches("audit_pods_complete_total", 3);
        assert_eq!(controller.metric("audit_pods_drifted"), 0, "{mode}");
        assert_eq!(node.ruleset(), before, "{mode}");

        let mut pod = running();
        pod["spec"]["containers"][1]["securityContext"] = json!({"runAsUser": 3000});
        node.knows(&pod);
        controller.until_metric_is("pods_repaired_total", 1);
        let ruleset = node.ruleset();
        assert!(ruleset.contains("skuid 3000") && !ruleset.contains("skuid 2102"), "{ruleset}");
        let complete = controller.metric("audit_pods_complete_total");
        controller.until_metric_reaches("audit_pods_complete_total", complete + 2);
        assert_eq!(controller.metric("audit_pods_drifted"), 0, "{mode}");
    }
}

/// A proxy that listens on IPv4 only has no IPv6 rules.
#[test]
fn repair_of_an_ipv4_pod_removes_guessed_ipv6_rules() {
    for (mode, name) in [(Backend::Native, "native"), (Backend::Nft, "nft")] {
        let node = meshed(name);
        let spec = RuleSpec { redirect: redirect(name, "9999"), families: Family::ALL };
        let apply = move || firewall::apply(&spec, &[mode]);
        netns::run(&node.namespaces.path(), Duration::from_secs(20), apply).unwrap().unwrap();
        mark_guessed(&node, name);
        let ruleset = |family| node.namespaces.run("nft", &["list", "ruleset", family]);
        assert!(ruleset("ip6").contains("redirect to"), "{name}");
        let _controller = node.repaired();
        assert!(ruleset("ip").contains("redirect to :4140"), "{name}");
        assert!(!ruleset("ip6").contains("redirect to"), "{name}: {}", ruleset("ip6"));
    }
}

/// The annotation of the namespace has invalid elements, which the value `strictAnnotations` now
/// rejects.
#[test]
fn pod_with_invalid_annotations_is_compared_with_the_rules_it_started_with() {
    let node = meshed("native");
    let mut strict = entry("auto");
    strict["linkerd"]["strict-annotations"] = json!(true);
    node.chain(&strict);
    let before = node.ruleset();
    let controller = node.auditing(&[]);
    controller.until_metric_reaches("audits_total", 3);
    assert_eq!(controller.metric("audit_errors_total"), 0);
    assert!(controller.metric("audit_pods_complete_total") >= 3);
    node.namespaces.run("nft", &["flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_OUTPUT"]);
    controller.until_metric_is("pods_repaired_total", 1);
    assert_eq!(node.ruleset(), before);

    node.namespaces.run("nft", &["flush", "ruleset"]);
    controller.until_metric_reaches("audit_errors_total", 1);
    assert_eq!(node.ruleset(), "");
}

/// Upstream's plugin and older versions of this plugin write no marker.
#[test]
fn rules_without_a_marker_are_repaired_only_if_they_no_longer_redirect() {
    let node = Node::with(&running());
    node.chain(&upgraded_entry());
    let script = node.dir("script").join("nat");
    let unmarked = install_script(&rules(&redirect("nft", "9999"), Family::Ipv4), true, &[]);
    fs::write(&script, unmarked).unwrap();
    let restore = format!("iptables-nft-restore --noflush <{}", script.display());
    node.namespaces.sh(&restore);
    let before = node.ruleset();
    let controller = node.auditing(&[]);
    assert_drifted(&node, &controller, &before, "unmarked");
    drop(controller);

    node.namespaces.run("iptables-nft", &["-t", "nat", "-F", "OUTPUT"]);
    let _controller = node.repaired();
    assert!(node.ruleset().contains("ignore-port-7777"), "{}", node.ruleset());
}

/// The port list does not fit into the marker, which contains only a digest.
#[test]
fn pod_with_a_long_port_list_is_repaired_only_while_its_values_are_unchanged() {
    let ports: Vec<String> = (0..80).map(|index| (10_000 + 2 * index).to_string()).collect();
    let long = ports.join(",");
    let mut pod = running();
    pod["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] = json!(long);
    let node = Node::with(&pod);
    add(&node, "native", &long);
    let before = node.ruleset();
    node.namespaces
        .sh("nft -a list table ip linkerd-cni | sed -n 's/.*ignore-loopback.*handle //p' | \
         xargs nft delete rule ip linkerd-cni PROXY_INIT_OUTPUT handle");
    let controller = node.repaired();
    assert_eq!(node.ruleset(), before);
    drop(controller);

    node.chain(&upgraded_entry());
    node.api.state().requests.clear();
    let controller = node.auditing(&[]);
    assert_drifted(&node, &controller, &before, "a digest");
}
