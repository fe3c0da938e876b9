use serde_json::{Value, json};

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

fn is_in_scope(template: &Value, node: &Node) -> bool {
    let template: Placement = serde_json::from_value(template.clone()).unwrap();
    exclusion(&template, node).is_none()
}

fn affinity(terms: &Value) -> Value {
    let required = json!({"nodeSelectorTerms": terms});
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
    }}})
}

#[test]
fn a_template_without_constraints_runs_on_every_node() {
    let node = node(&json!({"a": "b"}), &Value::Null);
    for template in [
        json!({}),
        json!({"nodeSelector": null, "affinity": null, "tolerations": null, "nodeName": null}),
        json!({"affinity": {"nodeAffinity": null, "podAntiAffinity": {}}}),
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}}),
    ] {
        assert!(is_in_scope(&template, &node), "{template}");
    }
}

#[test]
fn node_name_and_node_selector_have_to_match() {
    let node = node(&json!({"os": "linux", "zone": "a"}), &json!([]));
    for (template, is_in) in [
        (json!({"nodeName": "node-1"}), true),
        (json!({"nodeName": "node-2"}), false),
        (json!({"nodeSelector": {"os": "linux"}}), true),
        (json!({"nodeSelector": {"os": "linux", "zone": "a"}}), true),
        (json!({"nodeSelector": {"os": "linux", "zone": "b"}}), false),
        (json!({"nodeSelector": {"gpu": ""}}), false),
    ] {
        assert_eq!(is_in_scope(&template, &node), is_in, "{template}");
    }
}

#[test]
fn node_affinity_operators_match_as_in_kubernetes_and_invalid_values_match() {
    let node = node(&json!({"zone": "a", "cores": "8", "empty": ""}), &json!([]));
    for (key, operator, values, is_in) in [
        ("zone", "In", json!(["a", "b"]), true),
        ("zone", "In", json!(["b"]), false),
        ("gone", "In", json!(["a"]), false),
        ("zone", "In", json!([]), true),
        ("zone", "NotIn", json!(["a"]), false),
        ("zone", "NotIn", json!(["b"]), true),
        ("gone", "NotIn", json!(["a"]), true),
        ("empty", "Exists", Value::Null, true),
        ("gone", "Exists", Value::Null, false),
        ("empty", "DoesNotExist", Value::Null, false),
        ("gone", "DoesNotExist", Value::Null, true),
        ("cores", "Gt", json!(["7"]), true),
        ("cores", "Gt", json!(["8"]), false),
        ("cores", "Lt", json!(["9"]), true),
        ("cores", "Lt", json!(["8"]), false),
        ("gone", "Gt", json!(["1"]), false),
        ("gone", "Lt", json!(["1"]), false),
        // Invalid values count as a match.
        ("zone", "Gt", json!(["1"]), true),
        ("cores", "Gt", json!(["many"]), true),
        ("cores", "Lt", json!(["1", "2"]), true),
        ("cores", "Near", json!(["1"]), true),
        ("cores", "", Value::Null, true),
    ] {
        let wanted = json!({"key": key, "operator": operator, "values": values});
        let template = affinity(&json!([{"matchExpressions": [wanted]}]));
        assert_eq!(is_in_scope(&template, &node), is_in, "{wanted}");
    }
}

#[test]
fn requirements_of_a_term_are_anded_terms_are_ored_and_an_empty_term_matches_nothing() {
    let node = node(&json!({"a": "1", "b": "2"}), &json!([]));
    let has = |key: &str| json!({"key": key, "operator": "Exists"});
    let named = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
    let of = |keys: &[&str]| {
        let all: Vec<_> = keys.iter().map(|key| has(key)).collect();
        json!({"matchExpressions": all})
    };
    for (terms, is_in) in [
        (json!([of(&["a", "b"])]), true),
        (json!([of(&["a", "c"])]), false),
        (json!([of(&["c"]), of(&["b"])]), true),
        (json!([of(&["c"]), of(&["d"])]), false),
        (json!([{}]), false),
        (json!([{}, of(&["a"])]), true),
        (json!([{"matchFields": [named("node-1")]}]), true),
        (json!([{"matchFields": [named("node-2")]}]), false),
        (json!([{"matchFields": [named("node-1")], "matchExpressions": [has("c")]}]), false),
        (json!([{"matchFields": [{"key": "spec.x", "operator": "In", "values": ["y"]}]}]), true),
        (json!([]), true),
    ] {
        assert_eq!(is_in_scope(&affinity(&terms), &node), is_in, "{terms}");
    }
}

#[test]
fn a_taint_of_effect_no_schedule_or_no_execute_needs_a_toleration() {
    let no_execute = json!({"key": "k", "value": "v", "effect": "NoExecute"});
    let no_schedule = json!({"key": "k", "effect": "NoSchedule"});
    let five = json!({"key": "k", "value": "5", "effect": "NoSchedule"});
    for (taint, tolerations, is_in) in [
        (&no_execute, json!([]), false),
        (&no_schedule, Value::Null, false),
        (&no_execute, json!([{"operator": "Exists"}]), true),
        (&no_execute, json!([{"operator": "Exists", "effect": "NoExecute"}]), true),
        (&no_execute, json!([{"operator": "Exists", "effect": "NoSchedule"}]), false),
        (&no_execute, json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 1}]), true),
        (&no_execute, json!([{"key": "x", "operator": "Exists"}]), false),
        (&no_execute, json!([{"key": "k", "value": "v"}]), true),
        (&no_execute, json!([{"key": "k", "operator": "Equal", "value": "w"}]), false),
        (&no_schedule, json!([{"key": "k"}]), true),
        (&no_schedule, json!([{"key": "x"}, {"key": "k", "operator": "Exists"}]), true),
        (&five, json!([{"key": "k", "operator": "Gt", "value": "7"}]), true),
        (&five, json!([{"key": "k", "operator": "Resembles"}]), true),
        (&five, json!([{"key": "x", "operator": "Gt", "value": "1"}]), false),
    ] {
        let template = json!({"tolerations": tolerations});
        let node = node(&json!({}), &json!([taint]));
        assert_eq!(is_in_scope(&template, &node), is_in, "{taint} {template}");
    }
}

#[test]
fn condition_taints_and_prefer_no_schedule_taints_do_not_count() {
    for (key, effect, is_in) in [
        ("not-ready", "NoExecute", true),
        ("not-ready", "NoSchedule", true),
        ("unreachable", "NoExecute", true),
        ("disk-pressure", "NoSchedule", true),
        ("memory-pressure", "NoSchedule", true),
        ("pid-pressure", "NoSchedule", true),
        ("unschedulable", "NoSchedule", true),
        ("network-unavailable", "NoSchedule", true),
        ("out-of-service", "NoExecute", false),
        ("out-of-service", "PreferNoSchedule", true),
        ("out-of-service", "", true),
    ] {
        let key = format!("node.kubernetes.io/{key}");
        let node = node(&json!({}), &json!([{"key": key, "effect": effect}]));
        assert_eq!(is_in_scope(&json!({}), &node), is_in, "{key}:{effect}");
    }
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
