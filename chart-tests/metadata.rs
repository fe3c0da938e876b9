//! Labels and annotations.

use serde_json::json;

use crate::helm::with;

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
    assert_eq!(
        objects.named("Pod", "test-linkerd-cni")["metadata"]["annotations"]["helm.sh/hook"],
        "test"
    );
    assert!(objects.pod()["metadata"]["annotations"].get("team").is_none());
}

#[test]
fn recommended_labels_of_the_user_win_except_the_name() {
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
            let expected =
                if key.ends_with("/name") { json!("linkerd-cni") } else { value.clone() };
            assert_eq!(meta["labels"][key], expected, "{meta}");
        }
    }
}
