//! Names, labels and containers that must be the same as in upstream's chart.

use serde_json::{Value, json};

use crate::cni::upstream_entry;
use crate::helm::{Render, chart, with};

#[test]
fn the_plugin_configuration_has_upstreams_keys_and_more() {
    let mut expected = upstream_entry();
    expected["capabilities"] = json!({"io.kubernetes.cri.pod-annotations": true});
    let linkerd = &mut expected["linkerd"];
    linkerd["iptables-mode"] = json!("auto");
    linkerd["api-retry-seconds"] = json!(10);
    linkerd["agent-namespace"] = json!("linkerd-cni");
    assert_eq!(with(json!({})).plugin(), expected);
}

#[test]
fn objects_have_the_names_that_linkerd_check_expects() {
    let objects = with(json!({}));
    let names: Vec<_> = objects
        .0
        .iter()
        .map(|o| (o["kind"].as_str().unwrap(), &o["metadata"]))
        .map(|(kind, meta)| (kind, meta["name"].as_str().unwrap(), &meta["namespace"]))
        .collect();
    let here = json!("linkerd-cni");
    assert_eq!(
        names,
        [
            ("ServiceAccount", "linkerd-cni-plugin", &here),
            ("ServiceAccount", "linkerd-cni", &here),
            ("ConfigMap", "linkerd-cni-config", &here),
            ("ClusterRole", "linkerd-cni-agent", &Value::Null),
            ("ClusterRole", "linkerd-cni-repair", &Value::Null),
            ("ClusterRole", "linkerd-cni", &Value::Null),
            ("ClusterRoleBinding", "linkerd-cni-agent", &Value::Null),
            ("ClusterRoleBinding", "linkerd-cni-repair", &Value::Null),
            ("ClusterRoleBinding", "linkerd-cni", &Value::Null),
            ("Role", "linkerd-cni-agent", &here),
            ("RoleBinding", "linkerd-cni-agent", &here),
            ("DaemonSet", "linkerd-cni", &here),
            ("ValidatingAdmissionPolicy", "linkerd-cni-token", &Value::Null),
            ("ValidatingAdmissionPolicyBinding", "linkerd-cni-token", &Value::Null),
            // Only `helm test` creates these pods.
            ("Pod", "test-linkerd-cni-nodes", &here),
            ("Pod", "test-linkerd-cni", &here),
        ]
    );
}

#[test]
fn every_object_can_be_pruned_by_linkerds_label() {
    let objects = Render::new()
        .file(&chart().join("ci/everything-values.yaml"))
        .values(&json!({"commonLabels": {"linkerd.io/cni-resource": "false"}}))
        .objects();
    for object in &objects.0 {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["linkerd.io/cni-resource"], "true", "{}", object["kind"]);
        assert!(labels.get("linkerd.io/control-plane-ns").is_none());
    }
    let pod = objects.pod();
    assert_eq!(pod["metadata"]["labels"]["linkerd.io/cni-resource"], "true");
}

#[test]
fn the_daemonset_selector_cannot_be_changed_by_values() {
    let labels = json!({"k8s-app": "other", "team": "network"});
    let objects = with(json!({"podLabels": labels, "commonLabels": labels}));
    let daemonset = objects.get("DaemonSet");
    assert_eq!(daemonset["spec"]["selector"], json!({"matchLabels": {"k8s-app": "linkerd-cni"}}));
    assert_eq!(objects.pod()["metadata"]["labels"]["k8s-app"], "linkerd-cni");
    assert_eq!(daemonset["metadata"]["labels"]["k8s-app"], "linkerd-cni");
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "linkerd-cni"});
    let binding = objects.named("ClusterRoleBinding", "linkerd-cni");
    assert_eq!(binding["roleRef"], role);
}

#[test]
fn common_labels_are_set_on_objects_and_pod_labels_on_pods() {
    let objects = with(json!({"commonLabels": {"common": 1}, "podLabels": {"pod": true}}));
    for object in &objects.0 {
        assert_eq!(object["metadata"]["labels"]["common"], "1");
        assert!(object["metadata"]["labels"].get("pod").is_none());
    }
    let labels = &objects.pod()["metadata"]["labels"];
    assert!(labels.get("common").is_none());
    assert_eq!(labels["pod"], "true");
}

#[test]
fn the_agent_has_upstreams_environment_and_mounts_and_its_own_directory() {
    let objects = with(json!({}));
    let agent = objects.container("install-cni");
    let env = agent["env"].as_array().unwrap();
    for (index, (name, key)) in [
        ("DEST_CNI_NET_DIR", "dest_cni_net_dir"),
        ("DEST_CNI_BIN_DIR", "dest_cni_bin_dir"),
        ("CNI_NETWORK_CONFIG", "cni_network_config"),
    ]
    .into_iter()
    .enumerate()
    {
        let source = json!({"configMapKeyRef": {"name": "linkerd-cni-config", "key": key}});
        assert_eq!(env[index], json!({"name": name, "valueFrom": source}));
        assert!(objects.get("ConfigMap")["data"][key].is_string());
    }
    assert_eq!(env[3], json!({"name": "SLEEP", "value": "true"}));
    assert_eq!(
        agent["volumeMounts"],
        json!([
            {"name": "cni-bin-dir", "mountPath": "/host/opt/cni/bin"},
            {"name": "cni-net-dir", "mountPath": "/host/etc/cni/net.d"},
            {"name": "cni-run-dir", "mountPath": "/run/linkerd-cni"},
            {"name": "linkerd-tmp-dir", "mountPath": "/tmp"},
        ])
    );
    // Upstream's image has no other command, and this project's image has no shell.
    assert!(agent.get("command").is_none() && agent.get("args").is_none());
    assert!(agent.get("lifecycle").is_none());
}

#[test]
fn the_oldest_kubernetes_version_accepts_vendor_suffixes() {
    let on = |version: &str| Render::new().kubernetes(version).text();
    let error = on("1.30.14").unwrap_err();
    assert!(error.contains("requires kubeVersion: >=1.31.0-0"), "{error}");
    for version in ["1.31.0", "v1.34.1-gke.1829001"] {
        on(version).unwrap();
    }
}
