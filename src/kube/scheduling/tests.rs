use serde_json::{Value, json};
use testkit::chart::yaml;

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

/// Checks that the templates `in` run on the node, and that those `out` do not.
fn assert_scope(node: &Node, templates: &Value, of: fn(&Value) -> Value) {
    for (key, is_in) in [("in", true), ("out", false)] {
        for template in templates[key].as_array().into_iter().flatten() {
            let parsed: Placement = serde_json::from_value(of(template)).unwrap();
            assert_eq!(exclusion(&parsed, node).is_none(), is_in, "{template}");
        }
    }
}

#[test]
fn node_name_selector_and_taints_decide_on_the_scope() {
    let nodes = yaml(include_str!("tests/templates.yaml"));
    for case in nodes.as_object().unwrap().values() {
        assert_scope(&node(&case["labels"], &case["taints"]), case, Value::clone);
    }
}

#[test]
fn node_affinity_matches_as_in_kubernetes() {
    let node = node(&json!({"zone": "a", "cores": "8", "empty": ""}), &json!([]));
    assert_scope(&node, &yaml(include_str!("tests/affinity.yaml")), affinity);
}

#[test]
fn the_exclusion_gives_the_reason() {
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
