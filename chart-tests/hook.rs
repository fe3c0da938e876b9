//! The pod of `helm test`.

use serde_json::{Value, json};

use crate::helm::{Objects, with};

/// Returns the stand-in for the proxy and the container that connects.
fn both(objects: &Objects) -> [&Value; 2] {
    let spec = &objects.get("Pod")["spec"];
    [&spec["initContainers"][0], &spec["containers"][0]]
}

#[test]
fn the_test_pod_is_meshed_and_unprivileged() {
    let objects = with(json!({"proxyUID": 12102}));
    let pod = objects.get("Pod");
    let meta = &pod["metadata"];
    assert_eq!(meta["annotations"]["helm.sh/hook"], "test");
    assert_eq!(
        meta["annotations"]["helm.sh/hook-delete-policy"],
        "before-hook-creation,hook-succeeded"
    );
    assert_eq!(meta["annotations"]["linkerd.io/proxy-version"], "test");
    // The plugin skips pods that are named like the agent's.
    assert!(!meta["name"].as_str().unwrap().starts_with("linkerd-cni-"));
    // With this label the DaemonSet would adopt and delete the pod.
    assert!(meta["labels"].get("k8s-app").is_none());
    assert_eq!(pod["spec"]["automountServiceAccountToken"], false);
    assert!(pod["spec"].get("volumes").is_none());
    let [proxy, outbound] = both(&objects);
    assert_eq!(proxy["name"], "linkerd-proxy");
    for (container, uid) in [(proxy, 12102), (outbound, 65534)] {
        assert_eq!(container["image"], objects.container("install-cni")["image"]);
        assert_eq!(
            container["securityContext"],
            json!({
                "runAsUser": uid, "runAsNonRoot": true, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            })
        );
    }
    let same = with(json!({"proxyUID": 65534}));
    let [proxy, outbound] = both(&same).map(|one| &one["securityContext"]["runAsUser"]);
    assert_ne!(proxy, outbound);
}

#[test]
fn the_test_connects_to_ports_that_are_redirected() {
    let none = Value::Null;
    for (values, inbound, outbound) in [
        (json!({}), json!(20001), "20001"),
        (
            json!({"ignoreInboundPorts": "20000-20002", "ignoreOutboundPorts": "1404,20001"}),
            json!(1404),
            "80",
        ),
        (json!({"portsToRedirect": "8080,9090"}), json!(8080), "20001"),
        (json!({"portsToRedirect": 8080, "ignoreInboundPorts": 8080}), none.clone(), "20001"),
        (json!({"ignoreInboundPorts": "1-65535"}), none, "20001"),
        // A connection to the proxy's own port succeeds without redirection.
        (json!({"inboundProxyPort": 20001, "outboundProxyPort": 1404}), json!(80), "80"),
    ] {
        let objects = with(values.clone());
        let [proxy, checker] = both(&objects);
        let probe = &proxy["startupProbe"]["tcpSocket"]["port"];
        assert_eq!(probe, &inbound, "{values}");
        assert_eq!(checker["args"][2], outbound, "{values}");
        // Both containers get the proxy's outbound port, which the response names.
        assert_eq!(checker["args"][3], proxy["args"][1], "{values}");
    }
    let args = |values: Value| both(&with(values))[1]["args"].as_array().unwrap().clone();
    assert!(args(json!({})).contains(&json!("--no-ipv6")));
    for values in [json!({"ipv6": "auto"}), json!({"disableIPv6": false})] {
        assert!(!args(values).contains(&json!("--no-ipv6")));
    }
}

#[test]
fn there_is_no_test_pod_if_the_test_would_be_meaningless() {
    for values in [
        json!({"excludeNamespaces": ["linkerd-cni"]}),
        json!({"ignoreOutboundPorts": "1-65535"}),
        json!({"chained": false}),
    ] {
        assert!(!with(values.clone()).have("Pod"), "{values}");
    }
    let multus = with(json!({"chained": false, "networkAttachmentDefinition": {"enabled": true}}));
    let annotations = &multus.get("Pod")["metadata"]["annotations"];
    assert_eq!(annotations["k8s.v1.cni.cncf.io/networks"], "default/linkerd-cni");
}
