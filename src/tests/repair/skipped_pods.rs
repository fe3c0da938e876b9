//! Pods that the plugin skips, and hand-made meshed pods: which of them are audited and repaired.
//! Needs root.

use serde_json::{Value, json};

use crate::api::Answer;
use crate::node::{Node, entry, running, waiting};
use crate::until::until;

/// Plugin entries with which the plugin installs no rules in the pod `web-1`.
fn entries_without_rules() -> [Value; 3] {
    let mut excluded = entry("auto");
    excluded["linkerd"]["exclude-namespaces"] = json!(["emojivoto"]);
    let mut agent = entry("auto");
    agent["linkerd"]["agent-namespace"] = json!("emojivoto");
    agent["linkerd"]["agent-daemonset"] = json!("web");
    let mut simulate = entry("auto");
    simulate["linkerd"]["simulate"] = json!(true);
    [excluded, agent, simulate]
}

#[test]
fn pods_that_the_plugin_skips_are_not_audited() {
    for entry in entries_without_rules() {
        let node = Node::new();
        node.chain(&entry);
        node.cache_cni_result("uid-of-web-1");
        node.knows(&running());
        node.api.state().evict = Answer::Status(201);
        let controller = node.controller(&["--audit-seconds=1", "--mode=delete"]);
        controller.reaches("audits_total", 2);
        for metric in ["audit_pods_incomplete_total", "audit_errors_total"] {
            assert_eq!(controller.metric(metric), 0, "{metric} {entry}");
        }
        assert_eq!(controller.metric("pods_deleted_total"), 0, "{entry}");
    }
}

#[test]
fn a_running_pod_without_an_annotation_of_a_proxy_is_not_audited() {
    let node = Node::new();
    node.cache_cni_result("uid-of-web-1");
    let mut pod = running();
    pod["metadata"]["annotations"] = json!({"config.linkerd.io/opaque-ports": "3306"});
    node.knows(&pod);
    let controller = node.controller(&["--audit-seconds=1"]);
    controller.reaches("audits_total", 2);
    assert_eq!(controller.metric("audit_pods_incomplete_total"), 0);
    assert_eq!(node.ruleset(), "");
}

/// The pod as its author wrote it, with a proxy but without the injector's label.
fn hand_made(mut pod: Value, annotations: Value) -> Value {
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = annotations;
    pod
}

/// The plugin entry with `podDetection` set to `detection`.
fn detecting(detection: &str) -> Value {
    let mut entry = entry("auto");
    entry["linkerd"]["pod-detection"] = json!(detection);
    entry
}

#[test]
fn a_hand_made_meshed_pod_is_audited_and_repaired_like_an_injected_one() {
    let annotated = json!({"linkerd.io/proxy-version": "edge-1"});
    for (detection, annotations) in [("annotations", annotated), ("api", json!({}))] {
        for pod in [running(), waiting()] {
            let node = Node::new();
            node.chain(&detecting(detection));
            node.cache_cni_result("uid-of-web-1");
            node.knows(&hand_made(pod, annotations.clone()));
            let controller = node.controller(&["--audit-seconds=1"]);
            controller.counts("pods_repaired_total", 1);
            assert!(node.ruleset().contains("redirect to :4140"), "{detection}");
        }
    }
}

#[test]
fn a_stranded_hand_made_pod_without_linkerd_annotation_is_reported_with_a_remedy() {
    for mode in ["delete", "in-place", "label", "report"] {
        let node = Node::new();
        node.chain(&detecting("annotations"));
        node.cache_cni_result("uid-of-web-1");
        node.knows(&hand_made(waiting(), json!({})));
        let controller = node.controller(&[&format!("--mode={mode}")]);
        controller.counts("pods_skipped_total", 1);
        controller.logs("set the chart's podDetection to api");
        assert!(node.changes().is_empty(), "{mode}: {:?}", node.changes());
    }
}

#[test]
fn a_stranded_pod_that_the_plugin_skips_is_reported_and_not_repaired_in_any_mode() {
    for mode in ["delete", "in-place", "label", "report"] {
        for entry in entries_without_rules() {
            let node = Node::new();
            node.chain(&entry);
            node.cache_cni_result("uid-of-web-1");
            node.knows(&waiting());
            let controller = node.controller(&[&format!("--mode={mode}")]);
            controller.counts("pods_skipped_total", 1);
            controller.logs("the plugin installs no redirect rules in this pod (");
            until("an event", || node.events().len() == 1);
            assert_eq!(node.events()[0]["action"], "Skipping", "{mode} {entry}");
            assert!(node.changes().is_empty(), "{mode} {entry}: {:?}", node.changes());
            assert_eq!(node.ruleset(), "", "{mode} {entry}");
        }
    }
}

#[test]
fn a_stranded_pod_without_proxy_or_with_linkerd_init_is_reported_and_not_repaired_in_any_mode() {
    let mut proxy_init = waiting();
    let validator = json!({"name": "linkerd-network-validator"});
    proxy_init["spec"]["initContainers"] = json!([{"name": "linkerd-init"}, validator]);
    let mut no_proxy = waiting();
    no_proxy["spec"]["containers"] = json!([{"name": "app"}]);
    for mode in ["delete", "in-place", "label", "report"] {
        for pod in [&proxy_init, &no_proxy] {
            let node = Node::new();
            node.cache_cni_result("uid-of-web-1");
            node.knows(pod);
            let controller = node.controller(&[&format!("--mode={mode}")]);
            until("an event", || node.events().len() == 1);
            let note = node.events()[0]["note"].as_str().unwrap().to_owned();
            let reason = "Pod skipped: the plugin installs no redirect rules";
            assert!(note.starts_with(reason), "{mode}: {note}");
            assert!(note.contains("linkerd-network-validator"), "{mode}: {note}");
            controller.logs(&note);
            controller.counts("pods_skipped_total", 1);
            assert!(node.changes().is_empty(), "{mode}: {:?}", node.changes());
            assert_eq!(node.ruleset(), "", "{mode}");
        }
    }
}
