use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::*;
use crate::extension::fake::{AGENTS, CONFIG, Cluster, DAEMONSET, entry};

const POD: &str = "/api/v1/namespaces/shop/pods/web";

/// A cluster with the pod shop/web on node-1.
fn cluster(pod: Value) -> Cluster {
    let mut cluster = Cluster::healthy();
    cluster.put(POD, pod);
    cluster.put("/api/v1/namespaces/shop", json!({"kind": "Namespace", "metadata": {}}));
    cluster
}

fn meshed() -> Value {
    testkit::chart::yaml(include_str!("tests/pod.yaml"))
}

fn explained(cluster: &Cluster) -> Explanation {
    explain(cluster, "linkerd-cni", "shop", "web").unwrap()
}

/// A row of `pods.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PodRow {
    /// Changes of the meshed pod, by JSON pointer.
    #[serde(default)]
    pod: Map<String, Value>,
    /// Members of the plugin entry's `linkerd`.
    #[serde(default)]
    entry: Map<String, Value>,
}

#[test]
fn explain_shows_the_rules_or_why_there_are_none() {
    let mut text = String::new();
    for (name, row) in testkit::table::rows::<PodRow>(include_str!("tests/pods.yaml")) {
        let mut cluster = cluster(meshed());
        for (pointer, value) in row.pod {
            cluster.set(POD, &pointer, value);
        }
        let mut entry = entry();
        for (key, value) in row.entry {
            entry["linkerd"][key] = value;
        }
        cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
        text += &format!("## {name}\n{}\n", super::text(&explained(&cluster)));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn error_about_a_missing_pod_or_chart_names_the_remedy() {
    let error = |cluster: &Cluster, cni_namespace, namespace| {
        explain(cluster, cni_namespace, namespace, "web").err().unwrap().text
    };
    let empty = Cluster::healthy();
    let found = error(&empty, "linkerd-cni", "shop");
    assert_eq!(found, "pod shop/web does not exist; name its namespace with --namespace");
    let found = error(&empty, "linkerd-cni", "shop/../x");
    assert_eq!(found, "\"shop/../x\" is not the name of a pod or namespace");
    let found = error(&cluster(meshed()), "elsewhere", "shop");
    assert!(found.contains("elsewhere/linkerd-cni-config does not exist"), "{found}");
}

/// With `chained: false` Multus calls the plugin only for pods whose annotation names the plugin.
#[test]
fn pod_without_the_multus_annotation_is_not_redirected() {
    let mut cluster = cluster(meshed());
    let env = json!([{"name": "LINKERD_CNI_CHAINED", "value": "false"}]);
    cluster.set(DAEMONSET, "/spec/template/spec/containers/0/env", env);
    let found = explained(&cluster);
    assert_eq!(found.outcome(), Outcome::Wrong);
    let text = super::text(&found);
    assert!(text.contains("not redirected: the plugin is not called\nWhy:       Multus"), "{text}");
    let attached = json!({"k8s.v1.cni.cncf.io/networks": "default/linkerd-cni"});
    cluster.set(POD, "/metadata/annotations", attached);
    let found = explained(&cluster);
    assert_eq!((found.outcome(), decision_of(&found)), (Outcome::Right, "redirected".into()));
}

/// The plugin has rights of its own. So an object that the user may not read makes the decision
/// unknown, and does not mean that the plugin fails.
#[test]
fn explanation_is_unknown_if_the_user_cannot_read_an_object() {
    let of_control_plane = json!({"linkerd.io/control-plane-component": "destination"});
    for (what, path, labels, decision) in [
        ("the namespace", "/api/v1/namespaces/shop", json!({}), "unknown"),
        ("the DaemonSet", DAEMONSET, json!({}), "unknown"),
        (
            "the API server's Service",
            "/api/v1/namespaces/default/services/kubernetes",
            of_control_plane,
            "unknown",
        ),
        ("the Events", "/api/v1/namespaces/shop/events", json!({}), "redirected"),
        ("the agents' pods", AGENTS, json!({}), "redirected"),
    ] {
        let mut cluster = cluster(meshed());
        // Remove the injector's mark, so that the namespace has to be read.
        cluster.set(POD, "/metadata/annotations", json!({}));
        cluster.set(POD, "/metadata/labels", labels);
        cluster.put(path, json!(403));
        let found = explained(&cluster);
        assert_eq!(found.outcome(), Outcome::Unknown, "{what}");
        assert_eq!(decision_of(&found), decision, "{what}");
        let text = super::text(&found);
        assert!(text.contains("cannot read") && text.contains("Forbidden"), "{what}: {text}");
    }
}

/// Returns the decision in the JSON of the explanation. Checks that the JSON has the same outcome.
fn decision_of(explanation: &Explanation) -> String {
    let json: Value = serde_json::from_str(&super::json(explanation)).unwrap();
    assert_eq!(json["outcome"], explanation.outcome().label());
    json["decision"].as_str().unwrap().to_owned()
}

/// A running pod without rules is not redirected, whatever the plugin would decide now.
#[test]
fn running_pod_is_right_only_if_its_rules_are_known() {
    let validator = json!([{
        "name": "linkerd-network-validator",
        "state": {"terminated": {"exitCode": 95}},
    }]);
    let event = |reason: &str| {
        json!({"items": [{
            "type": "Warning",
            "reason": reason,
            "reportingComponent": "linkerd-cni-repair-controller",
            "eventTime": "2027-01-15T08:00:00Z",
            "message": "why",
            "involvedObject": {"kind": "Pod", "namespace": "shop", "uid": "u"},
        }]})
    };
    let events = "/api/v1/namespaces/shop/events";
    for (what, path, pointer, value, outcome) in [
        ("nothing is reported", POD, "/metadata/labels", json!({}), Outcome::Right),
        ("stranded", POD, "/status/initContainerStatuses", validator, Outcome::Wrong),
        ("rules missing", events, "", event("LinkerdCNIRulesMissing"), Outcome::Wrong),
        ("rules unknown", events, "", event("LinkerdCNIRulesUnknown"), Outcome::Unknown),
        ("drift", events, "", event("LinkerdCNIRulesDrifted"), Outcome::Right),
        ("no agent on its node", POD, "/spec/nodeName", json!("node-9"), Outcome::Unknown),
    ] {
        let mut cluster = cluster(meshed());
        if pointer.is_empty() {
            cluster.put(path, value);
        } else {
            cluster.set(path, pointer, value);
        }
        assert_eq!(explained(&cluster).outcome(), outcome, "{what}");
    }
}

#[test]
fn pending_pod_is_right_only_if_an_agent_is_ready() {
    let mut cluster = cluster(meshed());
    cluster.set(POD, "/status", json!({"phase": "Pending"}));
    assert_eq!(explained(&cluster).outcome(), Outcome::Right);
    cluster.set(AGENTS, "/items/0/status", json!({}));
    let found = explained(&cluster);
    assert_eq!(found.outcome(), Outcome::Unknown);
    let text = super::text(&found);
    assert!(text.contains("Unknown:   no agent is ready on node node-1"), "{text}");
}

/// Without the node's copy of its pods, the plugin skips pods without an annotation of a proxy.
#[test]
fn a_pod_that_the_plugin_may_skip_is_unknown_before_and_after_its_start() {
    let unwatched = json!([{"name": "LINKERD_CNI_WATCH_PODS", "value": "false"}]);
    for (name, phase, line) in [
        ("not started", "Pending", "Unknown:   on node node-1, the plugin may skip this pod"),
        ("running", "Running", "Rules now: unknown: on node node-1, the plugin may skip this pod"),
    ] {
        let mut cluster = cluster(meshed());
        cluster.set(POD, "/status/phase", json!(phase));
        cluster.set(AGENTS, "/items/0/spec/containers/0/env", unwatched.clone());
        assert_eq!(explained(&cluster).outcome(), Outcome::Right, "{name}, with an annotation");
        cluster.set(POD, "/metadata/annotations", json!({}));
        let found = explained(&cluster);
        assert_eq!(found.outcome(), Outcome::Unknown, "{name}");
        let text = super::text(&found);
        assert!(text.contains(line), "{name}: {text}");
    }
}
