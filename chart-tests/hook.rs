//! The pod of `helm test`.

use serde_json::json;

use crate::helm::with;

#[test]
fn the_test_pod_is_meshed_and_unprivileged() {
    let objects = with(json!({"proxyUID": 12102}));
    let pod = objects.named("Pod", "test-linkerd-cni");
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
    // The stand-in for the proxy, and the container that connects. `changes` has what values make of both.
    let [proxy, outbound] = ["initContainers", "containers"].map(|list| &pod["spec"][list][0]);
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
    // Both containers get the proxy's outbound port, which the response names.
    assert_eq!(outbound["args"][3], proxy["args"][1]);
}
