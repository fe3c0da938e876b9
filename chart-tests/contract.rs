//! What the chart must have in common with linkerd2's: names, labels, containers.

use serde_json::{Value, json};

use crate::helm::{Render, chart, with};

#[test]
fn objects_have_the_names_that_linkerd_check_looks_for() {
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
            ("ClusterRole", "linkerd-cni", &Value::Null),
            ("ClusterRoleBinding", "linkerd-cni-agent", &Value::Null),
            ("ClusterRoleBinding", "linkerd-cni", &Value::Null),
            ("Role", "linkerd-cni-agent", &here),
            ("RoleBinding", "linkerd-cni-agent", &here),
            ("DaemonSet", "linkerd-cni", &here),
            // Only `helm test` makes it.
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
fn the_selector_is_frozen() {
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
fn common_labels_are_on_objects_and_pod_labels_on_pods() {
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
fn the_agent_gets_upstreams_environment_and_mounts() {
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
            {"name": "linkerd-tmp-dir", "mountPath": "/tmp"},
        ])
    );
    // An image of linkerd2 knows no other command, and ours has no shell.
    assert!(agent.get("command").is_none() && agent.get("args").is_none());
    assert!(agent.get("lifecycle").is_none());
}

#[test]
fn one_directory_for_both_is_mounted_once() {
    let objects = with(json!({"destCNINetDir": "/etc/cni", "destCNIBinDir": "/etc/cni/"}));
    let mounts = &objects.container("install-cni")["volumeMounts"];
    assert_eq!(mounts[0], json!({"name": "cni-net-dir", "mountPath": "/host/etc/cni"}));
    assert_eq!(mounts[1]["name"], "linkerd-tmp-dir");
    assert_eq!(objects.pod()["spec"]["volumes"].as_array().unwrap().len(), 2);
}

#[test]
fn the_agent_is_ready_only_when_its_port_says_so() {
    let objects = with(json!({"adminPort": 8081}));
    let agent = objects.container("install-cni");
    assert_eq!(agent["ports"], json!([{"name": "install-admin", "containerPort": 8081}]));
    assert_eq!(
        agent["readinessProbe"]["httpGet"],
        json!({"path": "/ready", "port": "install-admin"})
    );
    assert_eq!(
        agent["livenessProbe"]["httpGet"],
        json!({"path": "/live", "port": "install-admin"})
    );
    assert_eq!(agent["startupProbe"]["httpGet"], agent["livenessProbe"]["httpGet"]);
    let address = |values: Value| with(values).variable("install-cni", "LINKERD_CNI_ADMIN_ADDR");
    assert_eq!(address(json!({"adminPort": 8081})), "0.0.0.0:8081");
    assert_eq!(address(json!({"disableIPv6": false})), "[::]:9991");
    assert_eq!(address(json!({"ipv6": true})), "[::]:9991");
    assert_eq!(address(json!({"ipv6": "auto"})), "0.0.0.0:9991");
    assert_eq!(address(json!({"ipv6": "auto", "disableIPv6": false})), "[::]:9991");

    let objects = with(json!({"adminPort": null}));
    let agent = objects.container("install-cni");
    for key in ["ports", "startupProbe", "readinessProbe", "livenessProbe"] {
        assert!(agent.get(key).is_none(), "{key}");
    }
}

/// linkerd2's chart dropped command, arguments, probes and ports as well.
#[test]
fn without_its_security_context_the_repair_controller_is_whole() {
    let repair = |secure: bool| {
        let values =
            json!({"repairController": {"enabled": true, "enableSecurityContext": secure}});
        with(values).container("repair-controller").clone()
    };
    let mut with_context = repair(true);
    let context = with_context.as_object_mut().unwrap().remove("securityContext");
    assert_eq!(context.unwrap()["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(with_context, repair(false));
}

#[test]
fn created_by_names_the_image_or_the_cli() {
    let cases = [
        (json!({}), concat!("linkerd/helm v", env!("CARGO_PKG_VERSION"))),
        (json!({"image": {"version": "v1.4.0"}}), "linkerd/helm v1.4.0"),
        (json!({"image": {"version": 20_261_121}}), "linkerd/helm 20261121"),
        (json!({"cliVersion": "linkerd/cli edge-26.8.3"}), "linkerd/cli edge-26.8.3"),
    ];
    for (values, expected) in cases {
        let objects = with(values.clone());
        for meta in [&objects.pod()["metadata"], &objects.get("DaemonSet")["metadata"]] {
            assert_eq!(meta["annotations"]["linkerd.io/created-by"], expected, "{values}");
        }
    }
}

#[test]
fn the_kubernetes_floor_admits_vendors_suffixes() {
    let on = |version: &str| Render::new().kubernetes(version).text();
    let complaint = on("1.30.14").unwrap_err();
    assert!(complaint.contains("requires kubeVersion: >=1.31.0-0"), "{complaint}");
    for version in ["1.31.0", "v1.34.1-gke.1829001"] {
        on(version).unwrap();
    }
}
