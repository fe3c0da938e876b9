//! Checks which process responds to the connections of meshed and unmeshed pods.

use super::agent::DAEMONSET;
use super::api;
use super::families::Family;
use super::pods::{self, Pods};

/// Asserts that the objects exist that `linkerd check --pre --linkerd-cni-enabled` looks up.
pub fn assert_linkerd_check_passes() {
    for path in [
        "/api/v1/namespaces/linkerd-cni/configmaps/linkerd-cni-config",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/linkerd-cni",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/linkerd-cni",
        "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni",
    ] {
        api::get(path);
    }
    let status = &api::get(DAEMONSET)["status"];
    let [desired, ready] = ["desiredNumberScheduled", "numberReady"].map(|name| &status[name]);
    assert!(*desired == 1 && *ready == 1, "scheduled and ready: {status}");
}

/// Starts a meshed and two unmeshed pods. Asserts which process responds to each connection.
pub fn assert_connections_are_redirected(pods: &Pods) {
    pods.start(&[pods::unmeshed("unmeshed"), pods::unmeshed("other"), pods::meshed("meshed")]);
    for family in Family::all() {
        assert_connections_in(family, pods);
    }
}

fn assert_connections_in(family: Family, pods: &Pods) {
    let meshed = pods.ip_of("meshed", family);
    let unmeshed = pods.ip_of("unmeshed", family);
    let other = pods.ip_of("other", family);
    let to = |ip: &str, port: u16| family.to(ip, port);
    let original = |ip: &str| format!("original={}", family.to(ip, 8080));
    // (pod, container, target, container that responds, other text in the response)
    for (pod, container, target, responder, text) in [
        ("meshed", "app", to(&unmeshed, 8080), "proxy-outbound", original(&unmeshed)),
        ("meshed", "linkerd-proxy", to(&unmeshed, 8080), "app-of-unmeshed", String::new()),
        ("meshed", "app", family.local(8080), "app-of-meshed", String::new()),
        ("unmeshed", "app", to(&meshed, 8080), "proxy-inbound", original(&meshed)),
        ("unmeshed", "app", to(&meshed, 4191), "proxy-admin", String::new()),
        ("unmeshed", "app", to(&meshed, 9999), "proxy-inbound", String::new()),
        ("unmeshed", "app", to(&other, 8080), "app-of-other", String::new()),
        ("unmeshed", "app", to(&other, 9999), "refused", String::new()),
    ] {
        pods.assert_connects([pod, container, &target], responder, &text);
    }
}

/// Starts a pod with a native sidecar. Asserts that its validator passes, and that its connections
/// are redirected. The validator is an init container that runs before the proxy, so the rules must
/// exist by then.
pub fn assert_native_sidecar_is_redirected(pods: &Pods) {
    pods.start(&[pods::native_sidecar("sidecar")]);
    let validator = pods::log("sidecar", "sidecar", "linkerd-network-validator").unwrap();
    assert_eq!(validator.trim(), "Validated");
    pods.assert_answers("unmeshed", "sidecar", "proxy-inbound");
}

/// Asserts that a new pod skips port 9999, which an upgrade has added to the ignored ports.
pub fn assert_new_pods_skip_port_9999(pods: &Pods) {
    pods.start(&[pods::meshed("upgraded")]);
    pods.assert_answers("unmeshed", "upgraded", "proxy-inbound");
    let skipped = Family::all()[0].to(&pods.ip("upgraded"), 9999);
    assert_eq!(pods.connect("unmeshed", "app", &skipped), "refused", "port 9999");
}
