use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table;

use super::*;

/// A node named `node-1`, as the API server describes it.
fn node(labels: &Value, taints: &Value) -> Node {
    serde_json::from_value(json!({
        "kind": "Node",
        "metadata": {"name": "node-1", "labels": labels},
        "spec": {"taints": taints},
    }))
    .unwrap()
}

fn affinity(terms: &Value) -> Value {
    let required = json!({"nodeSelectorTerms": terms});
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
    }}})
}

fn is_in_scope(template: &Value, node: &Node) -> bool {
    let placement = Placement::deserialize(template).unwrap();
    exclusion(&placement, node).is_none()
}

/// A row of `templates.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeRow {
    #[serde(default)]
    labels: Value,
    #[serde(default)]
    taints: Value,
    /// Templates that run on the node. Each key says what its template shows.
    r#in: BTreeMap<String, Value>,
    /// Templates that do not run on the node. Each key says what its template shows.
    #[serde(default)]
    out: BTreeMap<String, Value>,
}

#[test]
fn node_name_selector_and_taints_decide_if_a_node_is_in_scope() {
    for (name, row) in table::rows::<NodeRow>(include_str!("tests/templates.yaml")) {
        let node = node(&row.labels, &row.taints);
        for (template_name, template) in row.r#in {
            assert!(is_in_scope(&template, &node), "{name}: {template_name}");
        }
        for (template_name, template) in row.out {
            assert!(!is_in_scope(&template, &node), "{name}: {template_name}");
        }
    }
}

#[test]
fn node_affinity_matches_as_in_kubernetes() {
    const TERMS: &str = include_str!("tests/affinity.yaml");
    let node = node(&json!({"zone": "a", "cores": "8", "empty": ""}), &json!([]));
    for (name, terms) in table::rows_of::<Value>(TERMS, "in") {
        assert!(is_in_scope(&affinity(&terms), &node), "{name}");
    }
    for (name, terms) in table::rows_of::<Value>(TERMS, "out") {
        assert!(!is_in_scope(&affinity(&terms), &node), "{name}");
    }
}

#[test]
fn exclusion_names_the_reason() {
    let node = node(&json!({}), &json!([{"key": "a", "value": "b", "effect": "NoExecute"}]));
    for (template, reason) in [
        (json!({"nodeName": "n"}), "the DaemonSet runs on node n only"),
        (json!({"nodeSelector": {"x": "y"}}), "the node lacks the label x=y"),
        (affinity(&json!([{}])), "the node does not match the required node affinity"),
        (json!({}), "taint a=b:NoExecute is not tolerated"),
    ] {
        let template: Placement = serde_json::from_value(template).unwrap();
        assert_eq!(exclusion(&template, &node).unwrap().to_string(), reason);
    }
}
