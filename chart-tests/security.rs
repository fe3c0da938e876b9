//! What the chart may do in a cluster and on a node, and no more.

use serde_json::{Value, json};

use crate::helm::{Objects, with};

#[test]
fn the_role_allows_no_more_than_is_used() {
    let read = |resource: &str| (format!("/{resource}"), vec!["get"]);
    let agent = vec![
        read("pods"),
        read("namespaces"),
        (String::from("/services=kubernetes"), vec!["get"]),
    ];
    assert_eq!(rights(&with(json!({}))), owned(&agent));

    let mut repair = agent;
    repair.push((String::from("/pods"), vec!["list", "watch", "delete"]));
    repair.push((String::from("events.k8s.io/events"), vec!["create"]));
    let objects = with(json!({"repairController": {"enabled": true}}));
    assert_eq!(rights(&objects), owned(&repair));
}

fn owned(rights: &[(String, Vec<&str>)]) -> Vec<(String, Value)> {
    rights
        .iter()
        .map(|(what, verbs)| (what.clone(), json!(verbs)))
        .collect()
}

/// Each rule as "group/resource=name" and its verbs.
fn rights(objects: &Objects) -> Vec<(String, Value)> {
    let rules = objects.get("ClusterRole")["rules"].as_array().unwrap();
    let rule = |rule: &Value| {
        let only = |key: &str| {
            let list = rule[key].as_array().unwrap();
            assert_eq!(list.len(), 1, "{rule}");
            list[0].as_str().unwrap().to_string()
        };
        let name = rule
            .get("resourceNames")
            .map(|_| format!("={}", only("resourceNames")));
        let what = format!(
            "{}/{}{}",
            only("apiGroups"),
            only("resources"),
            name.unwrap_or_default()
        );
        (what, rule["verbs"].clone())
    };
    rules.iter().map(rule).collect()
}

#[test]
fn the_agent_has_one_capability_unless_it_is_privileged() {
    let context = |values: Value| with(values).container("install-cni")["securityContext"].clone();
    assert_eq!(
        context(json!({})),
        json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
            "readOnlyRootFilesystem": true,
        })
    );
    assert_eq!(
        context(json!({"privileged": true})),
        json!({"privileged": true, "readOnlyRootFilesystem": true})
    );
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(with(json!({})).pod()["spec"].get(key).is_none(), "{key}");
    }
}
