//! What must be the same as in upstream's chart.

use serde_json::json;

use crate::cni::upstream_entry;
use crate::helm::{Render, render, yaml};

#[test]
fn plugin_entry_has_upstreams_keys_and_three_more() {
    let mut expected = upstream_entry();
    expected["capabilities"] = json!({"io.kubernetes.cri.pod-annotations": true});
    let linkerd = &mut expected["linkerd"];
    linkerd["iptables-mode"] = json!("auto");
    linkerd["agent-namespace"] = json!("linkerd-cni");
    assert_eq!(render(json!({})).plugin(), expected);
}

#[test]
fn agent_has_upstreams_variables_and_mounts() {
    let objects = render(json!({}));
    let agent = objects.container("install-cni");
    let upstream = yaml(include_str!("cases.yaml"))["agent"].take();
    assert_eq!(agent["env"].as_array().unwrap()[..4], upstream["env"].as_array().unwrap()[..]);
    for variable in &agent["env"].as_array().unwrap()[..3] {
        let key = variable["valueFrom"]["configMapKeyRef"]["key"].as_str().unwrap();
        assert!(objects.get("ConfigMap")["data"][key].is_string(), "{key}");
    }
    let mounts = agent["volumeMounts"].as_array().unwrap().iter();
    let mounts: Vec<_> = mounts.map(|mount| mount["mountPath"].clone()).collect();
    assert_eq!(json!(mounts), upstream["mounts"]);
    // Upstream's image has no other command, and this project's image has no shell.
    for field in ["command", "args", "lifecycle"] {
        assert_eq!(agent.get(field), None, "{field}");
    }
}

#[test]
fn chart_requires_kubernetes_1_31_and_accepts_vendor_suffixes() {
    for new_render in [Render::new, || Render::new().helm_3()] {
        let render_for = |version: &str| new_render().kubernetes(version).text();
        let error = render_for("1.30.14").unwrap_err();
        assert!(error.contains("requires kubeVersion: >=1.31.0-0"), "{error}");
        for version in ["1.31.0", "v1.34.1-gke.1829001"] {
            render_for(version).unwrap();
        }
    }
}
