//! Resources, probes, volumes, variables and metadata that values add or change.

use serde_json::{Value, json};

use crate::helm::{Objects, with};

fn resources(values: Value) -> Value {
    let objects = with(json!({"resources": values}));
    objects.container("install-cni")["resources"].clone()
}

/// The kubelet evicts BestEffort pods first.
#[test]
fn by_default_the_pods_are_burstable_and_without_limits() {
    let default = json!({"requests": {"cpu": "10m", "memory": "16Mi"}});
    let objects = with(json!({"repairController": {"enabled": true}}));
    for container in ["install-cni", "repair-controller"] {
        assert_eq!(objects.container(container)["resources"], default, "{container}");
    }
    let upstream = with(json!({"image": {"upstream": true}}));
    assert!(upstream.container("install-cni").get("resources").is_none());
}

#[test]
fn resources_have_upstreams_form_or_that_of_kubernetes() {
    for (values, expected) in [
        (
            json!({"cpu": {"request": "20m"}, "memory": {"request": "", "limit": null}}),
            json!({"requests": {"cpu": "20m", "memory": "16Mi"}}),
        ),
        (
            json!({"requests": {"cpu": "20m"}, "limits": {"memory": "64Mi"}}),
            json!({"requests": {"cpu": "20m"}, "limits": {"memory": "64Mi"}}),
        ),
        // Kubernetes' form wins.
        (
            json!({"cpu": {"request": "20m"}, "requests": {"cpu": 0.03, "memory": 16_777_216}}),
            json!({"requests": {"cpu": "0.03", "memory": "16777216"}}),
        ),
        (
            json!({"ephemeral-storage": {"limit": "1Mi"}, "limits": {"ephemeral-storage": "2Mi"}}),
            json!({
                "limits": {"ephemeral-storage": "2Mi"}, "requests": {"cpu": "10m", "memory": "16Mi"},
            }),
        ),
        // A default request above the limit would be rejected. Kubernetes requests the limit.
        (
            json!({"memory": {"limit": "8Mi"}, "limits": {"cpu": "5m"}}),
            json!({"limits": {"cpu": "5m", "memory": "8Mi"}}),
        ),
        (
            json!({"cpu": {"request": 0}, "requests": {"memory": "0"}}),
            json!({"requests": {"cpu": "0", "memory": "0"}}),
        ),
    ] {
        assert_eq!(resources(values.clone()), expected, "{values}");
        let repair = json!({"enabled": true, "resources": values});
        let objects = with(json!({"repairController": repair}));
        assert_eq!(objects.container("repair-controller")["resources"], expected, "{values}");
    }
}

#[test]
fn fields_of_probes_replace_those_of_the_chart() {
    let objects = with(json!({
        "startupProbe": {"failureThreshold": 120},
        "readinessProbe": {"periodSeconds": 5, "timeoutSeconds": null},
        "livenessProbe": {"initialDelaySeconds": 10},
        "repairController": {
            "enabled": true, "readinessProbe": {"failureThreshold": 3}, "livenessProbe": {"timeoutSeconds": 4},
        },
    }));
    let http = |path: &str, port: &str| json!({"path": path, "port": port});
    let agent = |path: &str| http(path, "install-admin");
    let repair = |path: &str| http(path, "repair-admin");
    for (container, probe, expected) in [
        (
            "install-cni",
            "startupProbe",
            json!({"httpGet": agent("/live"), "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 120}),
        ),
        (
            "install-cni",
            "readinessProbe",
            json!({"httpGet": agent("/ready"), "periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 2}),
        ),
        (
            "install-cni",
            "livenessProbe",
            json!({"httpGet": agent("/live"), "initialDelaySeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6}),
        ),
        (
            "repair-controller",
            "readinessProbe",
            json!({"httpGet": repair("/ready"), "periodSeconds": 2, "failureThreshold": 3}),
        ),
        (
            "repair-controller",
            "livenessProbe",
            json!({"httpGet": repair("/live"), "timeoutSeconds": 4}),
        ),
    ] {
        assert_eq!(objects.container(container)[probe], expected, "{container} {probe}");
    }
}

#[test]
fn extra_volumes_mounts_and_variables_follow_those_of_the_chart() {
    let variable = json!({"name": "RUST_BACKTRACE", "value": "1"});
    let volume = json!({"name": "scratch", "emptyDir": {}});
    let mount = json!({"name": "scratch", "mountPath": "/scratch", "readOnly": true});
    let last = |list: &Value| list.as_array().unwrap().last().unwrap().clone();
    let objects = with(json!({
        "extraEnv": [variable], "extraVolumes": [volume], "extraVolumeMounts": [mount],
        "repairController": {"enabled": true, "extraEnv": [variable]},
    }));
    assert_eq!(last(&objects.pod()["spec"]["volumes"]), volume);
    let agent = objects.container("install-cni");
    assert_eq!(last(&agent["volumeMounts"]), mount);
    assert_eq!(last(&agent["env"]), variable);
    let repair = objects.container("repair-controller");
    assert_eq!(last(&repair["env"]), variable);
    assert!(!repair["volumeMounts"].to_string().contains("scratch"));
}

#[test]
fn min_ready_seconds_is_omitted_unless_set() {
    let of = |values: Value| with(values).get("DaemonSet")["spec"]["minReadySeconds"].clone();
    assert_eq!(of(json!({})), Value::Null);
    assert_eq!(of(json!({"minReadySeconds": 0})), Value::Null);
    assert_eq!(of(json!({"minReadySeconds": 15})), 15);
}

#[test]
fn port_lists_are_text_or_arrays() {
    let arrays = with(json!({
        "portsToRedirect": [8080, "9090"], "ignoreInboundPorts": [22, "8000-8100"],
        "ignoreOutboundPorts": [25],
    }));
    let text = with(json!({
        "portsToRedirect": "8080,9090", "ignoreInboundPorts": "22,8000-8100",
        "ignoreOutboundPorts": "25",
    }));
    assert_eq!(arrays.plugin(), text.plugin());
    assert_eq!(arrays.plugin()["linkerd"]["ports-to-redirect"], json!([8080, 9090]));
    let empty =
        with(json!({"portsToRedirect": [], "ignoreInboundPorts": [], "ignoreOutboundPorts": []}));
    assert_eq!(empty.plugin(), with(json!({})).plugin());
}

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
    for values in [
        json!({}),
        json!({"serviceAccount": create, "rbac": {"create": false}}),
        json!({"serviceAccount": create, "image": {"upstream": true}}),
    ] {
        assert_eq!(kept(values.clone()), Vec::<Value>::new(), "{values}");
    }
}
