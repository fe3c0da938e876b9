//! A stand-in for upstream's chart, with upstream's values, objects, variables, rights and pod.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cni::upstream_entry;

/// What runs in the DaemonSet's pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// This project's image, which takes upstream's variables.
    OurAgent,
    /// Nothing that touches the node, for a stand-in of upstream's agent outside the pod.
    Pause,
}

/// Writes the chart into a directory, which is created.
pub fn write_chart(chart: &Path, program: Program) {
    fs::create_dir_all(chart.join("templates")).unwrap();
    let metadata = json!({"apiVersion": "v2", "name": "linkerd2-cni", "version": "2026.8.3"});
    fs::write(chart.join("Chart.yaml"), metadata.to_string()).unwrap();
    let values =
        fs::read_to_string(crate::repository().join("chart-tests/values/upstream.yaml")).unwrap();
    // Helm adds this to a release whose chart has a subchart, as upstream's has.
    let values = values + "\npartials: {global: {}}\n";
    fs::write(chart.join("values.yaml"), values).unwrap();
    for (number, object) in objects(program).iter().enumerate() {
        // JSON is YAML. Pretty-printed, it has no `{{` that helm would take for a template.
        let text = serde_json::to_string_pretty(object).unwrap();
        fs::write(chart.join(format!("templates/{number}.yaml")), text).unwrap();
    }
}

/// Upstream's ServiceAccount, rights, ConfigMap and DaemonSet in the release's namespace.
fn objects(program: Program) -> Vec<Value> {
    let named = |version: &str, kind: &str, name: &str| {
        json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "labels": {"linkerd.io/cni-resource": "true"}},
        })
    };
    let rights = "rbac.authorization.k8s.io";
    let mut role = named(&format!("{rights}/v1"), "ClusterRole", "linkerd-cni");
    role["rules"] = json!([{
        "apiGroups": [""],
        "resources": ["pods", "nodes", "namespaces", "services"],
        "verbs": ["list", "get", "watch"],
    }]);
    let mut binding = named(&format!("{rights}/v1"), "ClusterRoleBinding", "linkerd-cni");
    binding["roleRef"] = json!({"apiGroup": rights, "kind": "ClusterRole", "name": "linkerd-cni"});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "linkerd-cni", "namespace": "{{ .Release.Namespace }}"}]);
    let mut config = named("v1", "ConfigMap", "linkerd-cni-config");
    config["data"] = json!({
        "dest_cni_net_dir": "/etc/cni/net.d",
        "dest_cni_bin_dir": "/opt/cni/bin",
        "cni_network_config": upstream_entry().to_string(),
    });
    let mut set = named("apps/v1", "DaemonSet", "linkerd-cni");
    set["metadata"]["labels"]["k8s-app"] = json!("linkerd-cni");
    let labels = &set["metadata"]["labels"];
    set["spec"] = json!({
        "selector": {"matchLabels": {"k8s-app": "linkerd-cni"}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": {
            "metadata": {"labels": labels, "annotations": {
                "linkerd.io/created-by": "linkerd/helm {{ .Values.image.version }}",
                "linkerd.io/inject": "disabled",
            }},
            "spec": pod(program),
        },
    });
    let account = named("v1", "ServiceAccount", "linkerd-cni");
    vec![account, role, binding, config, set]
}

fn pod(program: Program) -> Value {
    let from = |name: &str, key: &str| {
        let key = json!({"name": "linkerd-cni-config", "key": key});
        json!({"name": name, "valueFrom": {"configMapKeyRef": key}})
    };
    let host = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
    let mut pod = json!({
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "serviceAccountName": "linkerd-cni",
        "containers": [{
            "name": "install-cni",
            "image": "{{ .Values.image.name }}:{{ .Values.image.version }}",
            "imagePullPolicy": "{{ .Values.image.pullPolicy }}",
            "env": [
                from("DEST_CNI_NET_DIR", "dest_cni_net_dir"),
                from("DEST_CNI_BIN_DIR", "dest_cni_bin_dir"),
                from("CNI_NETWORK_CONFIG", "cni_network_config"),
                {"name": "SLEEP", "value": "true"},
            ],
            // The image has no shell, so the hook fails, which kubelet ignores.
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "kill -15 1; sleep 15s"]}}},
            "volumeMounts": [
                {"mountPath": "/host/opt/cni/bin", "name": "cni-bin-dir"},
                {"mountPath": "/host/etc/cni/net.d", "name": "cni-net-dir"},
                {"mountPath": "/tmp", "name": "linkerd-tmp-dir"},
            ],
            "securityContext": {"readOnlyRootFilesystem": true, "privileged": false},
        }],
        "volumes": [
            host("cni-bin-dir", "/opt/cni/bin"),
            host("cni-net-dir", "/etc/cni/net.d"),
            {"name": "linkerd-tmp-dir", "emptyDir": {}},
        ],
    });
    if program == Program::Pause {
        let agent = &mut pod["containers"][0];
        agent["image"] = json!("docker.io/library/linkerd2-cni-probe:test");
        agent["imagePullPolicy"] = json!("Never");
        agent["args"] = json!(["/probe", "pause"]);
    }
    pod
}
