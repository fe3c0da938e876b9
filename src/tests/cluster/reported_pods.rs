//! Pods that the plugin reports, and refuses once the values are strict. `src/tests/plugin` has each rule in detail: here
//! the reasons reach the users, in Events of the agent and of the kubelet.

use serde_json::{Value, json};

use crate::kubectl;
use crate::pods::{self, Pods, container};
use crate::scene::Scene;
use crate::until::until;

const PORTS: &str = "config.linkerd.io/skip-outbound-ports";
/// A RuntimeClass whose name alone tells that its sandboxes ignore redirect rules. Its handler is the usual runtime.
const CLASS: &str = "gvisor-test";

#[test]
fn pods_with_bad_ports_the_proxys_uid_or_a_sandbox_are_reported_and_refused_where_strict() {
    let scene = Scene::installed(&["--set", "ignoreInboundPorts=http\\,9999"]);
    let Scene { node, helm, pods, .. } = &scene;
    kubectl::apply(&json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": CLASS},
        "handler": "runc",
    }));
    let mut redirected_inside = sandboxed(pods::meshed("inside"));
    redirected_inside["spec"]["initContainers"] =
        json!([container("linkerd-init", 1000, &["wait", "1s"])]);
    pods.start(&[
        pods::unmeshed("server"),
        with_ports("lenient"),
        with_app_user("shared", 2102),
        pods::meshed("own"),
        sandboxed(pods::unmeshed("unmeshed")),
        redirected_inside,
    ]);
    pods.create(&[sandboxed(pods::meshed("sandboxed"))]);

    for (pod, target, port, responder) in [
        ("lenient", "server", 5432, "refused"),
        ("lenient", "server", 3306, "proxy-outbound"),
        ("lenient", "server", 20, "proxy-outbound"),
        ("server", "lenient", 9999, "refused"),
        ("shared", "server", 8080, "app-of-server"),
        ("own", "server", 8080, "proxy-outbound"),
    ] {
        let response = pods.connect(pod, "app", &format!("{}:{port}", pods.ip(target)));
        assert!(response.starts_with(responder), "{pod} to {target}:{port}: {response}");
    }
    let ports = [PORTS, "\"http\", \"30-20\"", "0-65535", "lower-upper"];
    until_described("lenient", &[&["Warning", "LinkerdCNIPortsIgnored"][..], &ports].concat());
    until_described("shared", &["Warning", "LinkerdCNIProxyUserShared", "the proxy's user: app."]);
    let log = kubectl::kubectl("logs -n linkerd-cni daemonset/linkerd-cni");
    for text in [
        "ignored in config.linkerd.io/skip-outbound-ports: \"http\", \"30-20\"; ignored in \
         inbound-ports-to-ignore: \"http\"",
        "run as the proxy's user and bypass the proxy: app",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    assert_eq!(pods::events("own", "LinkerdCNIProxyUserShared"), "");
    let ignores_rules = "RuntimeClass gvisor-test ignore redirect rules";
    refused(pods, "sandboxed", &[ignores_rules, "linkerd-init", "(code 112)"]);
    kubectl::kubectl(&format!("delete runtimeclass {CLASS}"));

    // Strict annotations would reject the release's list too, so that list is corrected.
    let strict = "strictAnnotations=true,strictProxyUser=true,ignoreInboundPorts=9999";
    helm.run("upgrade", &["--set", strict]);
    for key in ["strict-annotations", "strict-proxy-user"] {
        assert_eq!(node.linkerd_entry()["linkerd"][key], true, "{key}");
    }
    pods.create(&[with_ports("strict"), with_app_user("refused", 2102)]);
    refused(pods, "strict", &[PORTS, "\"http\" is not a port"]);
    let shared_user = "containers run as the proxy's user (UID 2102), so their connections would \
                       bypass the proxy: app";
    refused(pods, "refused", &[shared_user, "(code 111)"]);
    pods.start(&[with_app_user("admitted", 1000)]);
    let correction = format!("{PORTS}=5432");
    kubectl::kubectl(&format!("annotate pod -n strict strict --overwrite {correction}"));
    pods.until_ready("strict");
    scene.remove();
}

/// Waits until a line of the pod's Events has all texts.
fn until_described(pod: &str, texts: &[&str]) {
    until(&format!("an Event with {texts:?}"), || {
        let description = kubectl::kubectl(&format!("describe pod -n {pod} {pod}"));
        description.lines().any(|line| texts.iter().all(|text| line.contains(text)))
    });
}

/// Waits until the pod's Events have the reasons, and asserts that the pod has not started.
fn refused(pods: &Pods, pod: &str, reasons: &[&str]) {
    until(&format!("Events with {reasons:?}"), || {
        let description = kubectl::kubectl(&format!("describe pod -n {pod} {pod}"));
        reasons.iter().all(|reason| description.contains(reason))
    });
    assert_eq!(pods.field(pod, ".status.phase"), "Pending");
}

fn with_ports(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["annotations"][PORTS] = json!("http,5432,30-20");
    pod
}

fn with_app_user(name: &str, uid: u32) -> Value {
    let mut pod = pods::meshed(name);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    let app = containers.iter_mut().find(|container| container["name"] == "app").unwrap();
    app["securityContext"]["runAsUser"] = json!(uid);
    pod
}

fn sandboxed(mut pod: Value) -> Value {
    pod["spec"]["runtimeClassName"] = json!(CLASS);
    pod
}
