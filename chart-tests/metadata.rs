//! Labels, annotations and ServiceAccounts.

use serde_json::{Value, json};

use crate::helm::{Objects, with};

#[test]
fn common_annotations_are_set_on_every_object_and_never_replace_the_charts() {
    let objects = with(json!({
        "commonAnnotations": {"team": 1, "linkerd.io/created-by": "x", "helm.sh/hook": "post-delete"},
        "repairController": {"enabled": true}, "startupTaint": "example.com/wait",
        "podMonitor": {"enabled": true}, "networkPolicy": {"enabled": true},
        "resourceQuota": {"enabled": true}, "networkAttachmentDefinition": {"enabled": true},
        "serviceAccount": {"annotations": {"account": true}},
    }));
    for object in &objects.0 {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["team"], "1", "{object}");
        assert_eq!(annotations.get("account").is_some(), object["kind"] == "ServiceAccount");
    }
    let daemonset = &objects.get("DaemonSet")["metadata"]["annotations"];
    assert!(daemonset["linkerd.io/created-by"].as_str().unwrap().starts_with("linkerd/helm "));
    assert_eq!(objects.get("Pod")["metadata"]["annotations"]["helm.sh/hook"], "test");
    assert!(objects.pod()["metadata"]["annotations"].get("team").is_none());
}

#[test]
fn recommended_labels_of_the_user_win() {
    let own = json!({
        "app.kubernetes.io/name": "cni", "app.kubernetes.io/instance": "blue",
        "app.kubernetes.io/part-of": "mesh",
    });
    let defaults = with(json!({}));
    let labels = &defaults.pod()["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "linkerd-cni");
    assert_eq!(labels["app.kubernetes.io/name"], "linkerd-cni");
    let objects = with(json!({"podLabels": own, "commonLabels": own}));
    let metas = objects.0.iter().map(|object| &object["metadata"]);
    for meta in metas.chain([&objects.pod()["metadata"]]) {
        for (key, value) in own.as_object().unwrap() {
            assert_eq!(meta["labels"][key], *value, "{meta}");
        }
    }
}

/// Subjects of the bindings that are neither `account` nor the plugin's ServiceAccount.
fn other_subjects(objects: &Objects, account: &str) -> Vec<Value> {
    let subjects = objects.0.iter().filter_map(|object| object["subjects"].as_array()).flatten();
    let known = |name: &Value| name == account || name == "linkerd-cni-plugin";
    subjects.filter(|subject| !known(&subject["name"])).cloned().collect()
}

#[test]
fn the_name_of_the_service_account_reaches_pods_and_bindings() {
    for create in [true, false] {
        let objects = with(json!({
            "serviceAccount": {"name": "123", "create": create}, "startupTaint": "example.com/wait",
            "repairController": {"enabled": true}, "openshift": {"enabled": true},
        }));
        for spec in [&objects.pod()["spec"], &objects.get("Pod")["spec"]] {
            assert_eq!(spec["serviceAccountName"], "123");
        }
        assert_eq!(other_subjects(&objects, "123"), Vec::<Value>::new());
        assert_eq!(objects.have("ServiceAccount"), create);
        if create {
            objects.named("ServiceAccount", "123");
            objects.named("ServiceAccount", "linkerd-cni-plugin");
        }
    }
}

/// Helm deletes the Role of the agent, but not the user's ServiceAccount. The API server would
/// refuse to tell the agent that its DaemonSet is gone, so the plugin would stay on the nodes.
#[test]
fn helm_keeps_the_right_to_see_the_daemonset_with_a_service_account_of_the_user() {
    let kept = |values: Value| -> Vec<Value> {
        let keep = |object: &&Value| {
            object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        };
        with(values).0.iter().filter(keep).cloned().collect()
    };
    let create = json!({"create": false, "name": "mine"});
    let objects = kept(json!({"serviceAccount": create, "commonAnnotations": {"team": "a"}}));
    let [role, binding] = &objects[..] else { panic!("{objects:?}") };
    assert_eq!(
        role["rules"],
        json!([{
            "apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": ["linkerd-cni"],
            "verbs": ["get"],
        }])
    );
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let subject = json!({"kind": "ServiceAccount", "name": "mine", "namespace": "linkerd-cni"});
    assert_eq!(binding["subjects"], json!([subject]));
    for values in [json!({}), json!({"serviceAccount": create, "rbac": {"create": false}})] {
        assert_eq!(kept(values.clone()), Vec::<Value>::new(), "{values}");
    }
}
