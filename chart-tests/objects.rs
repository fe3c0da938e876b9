//! Values that create objects, and values of the pods.

use serde_json::{Value, json};

use crate::helm::with;

#[test]
fn optional_objects_are_off_by_default() {
    let objects = with(json!({}));
    for kind in [
        "PodMonitor",
        "PrometheusRule",
        "NetworkPolicy",
        "ResourceQuota",
        "NetworkAttachmentDefinition",
    ] {
        assert!(!objects.have(kind), "{kind}");
    }
}

#[test]
fn the_pod_monitor_scrapes_the_existing_ports() {
    let ports = |values: Value| {
        let objects = with(values);
        let monitor = objects.get("PodMonitor");
        let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().unwrap();
        let ports: Vec<_> = endpoints.iter().map(|e| e["port"].clone()).collect();
        ports
    };
    assert_eq!(ports(json!({"podMonitor": {"enabled": true}})), ["install-admin"]);
    assert_eq!(
        ports(json!({"podMonitor": {"enabled": true}, "repairController": {"enabled": true}})),
        ["install-admin", "repair-admin"]
    );
    let labels = json!({
        "release": "prometheus", "linkerd.io/cni-resource": "no", "app.kubernetes.io/part-of": "x",
    });
    let objects = with(json!({"podMonitor": {"enabled": true, "labels": labels}}));
    let labels = &objects.get("PodMonitor")["metadata"]["labels"];
    assert_eq!(labels["release"], "prometheus");
    assert_eq!(labels["linkerd.io/cni-resource"], "true");
    assert_eq!(labels["app.kubernetes.io/part-of"], "x");
}

#[test]
fn the_pod_monitor_labels_metrics_with_their_node() {
    let node = json!({
        "action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node",
    });
    let monitor = |values: Value| {
        let mut all = json!({"enabled": true});
        all.as_object_mut().unwrap().extend(values.as_object().unwrap().clone());
        let repair = json!({"enabled": true});
        let objects = with(json!({"podMonitor": all, "repairController": repair}));
        objects.get("PodMonitor").clone()
    };
    for endpoint in monitor(json!({}))["spec"]["podMetricsEndpoints"].as_array().unwrap() {
        assert_eq!(endpoint["relabelings"], json!([node]));
        assert!(endpoint.get("metricRelabelings").is_none());
    }
    let cluster = json!({"targetLabel": "cluster", "replacement": "east"});
    let drop = json!({"action": "drop", "sourceLabels": ["__name__"], "regex": ".*_bucket"});
    let own = monitor(json!({"relabelings": [cluster], "metricRelabelings": [drop]}));
    for endpoint in own["spec"]["podMetricsEndpoints"].as_array().unwrap() {
        assert_eq!(endpoint["relabelings"], json!([node, cluster]));
        assert_eq!(endpoint["metricRelabelings"], json!([drop]));
    }
}

/// A PodMonitor selects pods of its own namespace only, unless it names others.
#[test]
fn the_pod_monitor_in_another_namespace_selects_the_release() {
    let monitor = |namespace: &str| {
        let values = json!({"enabled": true, "namespace": namespace, "annotations": {"a": 1}});
        with(json!({"podMonitor": values})).get("PodMonitor").clone()
    };
    for (namespace, expected) in [("", "linkerd-cni"), ("linkerd-cni", "linkerd-cni")] {
        let same = monitor(namespace);
        assert_eq!(same["metadata"]["namespace"], expected);
        assert!(same["spec"].get("namespaceSelector").is_none());
    }
    let other = monitor("monitoring");
    assert_eq!(other["metadata"]["namespace"], "monitoring");
    assert_eq!(other["metadata"]["annotations"], json!({"a": "1"}));
    assert_eq!(other["spec"]["namespaceSelector"], json!({"matchNames": ["linkerd-cni"]}));
}

#[test]
fn the_network_policy_admits_only_the_admin_port() {
    let objects = with(json!({"networkPolicy": {"enabled": true}, "adminPort": 8081}));
    assert_eq!(
        objects.get("NetworkPolicy")["spec"],
        json!({
            "podSelector": {"matchLabels": {"k8s-app": "linkerd-cni"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": "install-admin"}]}],
        })
    );
}

#[test]
fn the_quota_has_the_priority_class_of_the_pods() {
    let class = |values: Value| {
        let objects = with(values);
        objects.get("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0]["values"]
            .clone()
    };
    assert_eq!(class(json!({"resourceQuota": {"enabled": true}})), json!(["system-node-critical"]));
    let own =
        json!({"resourceQuota": {"enabled": true}, "priorityClassName": "system-cluster-critical"});
    assert_eq!(class(own), json!(["system-cluster-critical"]));
}

#[test]
fn pod_settings_are_merged_with_those_that_the_chart_requires() {
    let objects = with(json!({
        "nodeSelector": {"pool": "meshed", "kubernetes.io/os": "windows"},
        "podAnnotations": {"own": 1, "linkerd.io/inject": "enabled", "checksum/config": "x"},
        "affinity": {"nodeAffinity": {"a": 1}, "podAntiAffinity": {"b": 2}},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"c": 3}},
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": "60",
    }));
    let pod = objects.pod();
    assert_eq!(pod["spec"]["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "meshed"}));
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["own"], "1");
    assert_eq!(annotations["linkerd.io/inject"], "disabled");
    assert_eq!(annotations["checksum/config"].as_str().unwrap().len(), 64);
    assert_eq!(
        pod["spec"]["affinity"],
        json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"c": 3}},
            "podAntiAffinity": {"b": 2},
        })
    );
    assert_eq!(pod["spec"]["dnsPolicy"], "Default");
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 60);
}

#[test]
fn pods_have_image_pull_secrets_if_the_chart_creates_no_service_account() {
    let secrets = json!([{"name": "mirror"}]);
    let values =
        |create: bool| json!({"imagePullSecrets": secrets, "serviceAccount": {"create": create}});
    let objects = with(values(true));
    let account = objects.named("ServiceAccount", "linkerd-cni");
    assert_eq!(account["imagePullSecrets"], secrets);
    assert!(objects.pod()["spec"].get("imagePullSecrets").is_none());
    let objects = with(values(false));
    assert_eq!(objects.pod()["spec"]["imagePullSecrets"], secrets);
    assert_eq!(objects.get("Pod")["spec"]["imagePullSecrets"], secrets);
}

/// Otherwise the agent is never scheduled, and the taint stays.
#[test]
fn the_agent_tolerates_the_startup_taint() {
    let tolerations = |values: Value| with(values).pod()["spec"]["tolerations"].clone();
    let own = json!({"key": "example.com/wait", "operator": "Exists"});
    let narrow = json!({"operator": "Exists", "effect": "NoSchedule"});
    let wide = json!({"operator": "Exists"});
    let taint = "example.com/wait";
    for (given, expected) in [
        (json!([]), json!([own])),
        (Value::Null, json!([own])),
        (json!([narrow]), json!([narrow, own])),
        (json!([wide]), json!([wide])),
    ] {
        let values = json!({"startupTaint": taint, "tolerations": given});
        assert_eq!(tolerations(values), expected);
    }
    assert_eq!(tolerations(json!({"tolerations": []})), Value::Null);
}

#[test]
fn values_reach_agent_and_repair_controller_as_variables() {
    let repair = json!({
        "enabled": true, "mode": "report", "auditIntervalSeconds": 300, "ratePerMinute": "10",
    });
    let objects = with(json!({
        "logFormat": "json", "resyncSeconds": 60, "cniConfFileName": "10-a.conflist",
        "terminationGracePeriodSeconds": "60",
        "chained": false, "selfTest": false, "requireNetworkPlugins": false, "startupTaint": "example.com/wait", "adminPort": 8081,
        "repairController": repair,
    }));
    for (name, value) in [
        ("LOG_FORMAT", "json"),
        ("RESYNC_SECONDS", "60"),
        ("DAEMONSET", "linkerd-cni"),
        ("TERMINATION_GRACE_SECONDS", "60"),
        ("PLUGIN_SERVICE_ACCOUNT", "linkerd-cni-plugin"),
        ("CONF_NAME", "10-a.conflist"),
        ("CHAINED", "false"),
        ("OWN_CONFIG", "false"),
        ("REQUIRE_NETWORK_PLUGINS", "false"),
        ("SELF_TEST", "false"),
        ("STARTUP_TAINT", "example.com/wait"),
        ("REPAIR_CONTROLLER_MODE", "report"),
        ("REPAIR_CONTROLLER_AUDIT_SECONDS", "300"),
        ("REPAIR_CONTROLLER_RATE", "10"),
        ("REPAIR_CONTROLLER_AGENT_ADDR", "127.0.0.1:8081"),
    ] {
        let container = match name.starts_with("REPAIR") {
            true => "repair-controller",
            false => "install-cni",
        };
        let found = objects.variable(container, &format!("LINKERD_CNI_{name}"));
        assert_eq!(found, value, "{name}");
    }
    let default = with(json!({}));
    let agent = |name: &str| default.variable("install-cni", name);
    for (name, value) in [
        ("LINKERD_CNI_CHAINED", json!("true")),
        ("LINKERD_CNI_REQUIRE_NETWORK_PLUGINS", json!("true")),
        ("LINKERD_CNI_SELF_TEST", json!("true")),
        ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", json!("30")),
        ("LINKERD_CNI_CONF_NAME", Value::Null),
        ("LINKERD_CNI_STARTUP_TAINT", Value::Null),
    ] {
        assert_eq!(agent(name), value, "{name}");
    }
    let own = with(json!({"ownConfig": true}));
    assert_eq!(own.variable("install-cni", "LINKERD_CNI_OWN_CONFIG"), "true");
    for (name, path) in [
        ("LINKERD_CNI_NAMESPACE", "metadata.namespace"),
        ("LINKERD_CNI_POD_NAME", "metadata.name"),
        ("LINKERD_CNI_NODE_NAME", "spec.nodeName"),
    ] {
        let source = json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let env = default.container("install-cni")["env"].as_array().unwrap();
        assert!(env.contains(&source), "{name}");
    }
}
