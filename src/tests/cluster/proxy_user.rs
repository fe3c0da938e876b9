//! Pods whose app runs as the user of the proxy, so that its connections bypass the proxy.

use serde_json::{Value, json};

use crate::pods::{self, kubectl};
use crate::scene::Scene;
use crate::until::until;

#[test]
fn an_app_with_the_proxys_uid_is_reported_on_the_pod_and_refused_with_strict_proxy_user() {
    let scene = Scene::installed(&[]);
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("server"), with_app_user("shared", 2102), pods::meshed("own")]);
    let server = format!("{}:8080", pods.ip("server"));
    for (pod, responder) in [("shared", "app-of-server"), ("own", "proxy-outbound")] {
        let response = pods.connect(pod, "app", &server);
        assert!(response.starts_with(responder), "{pod}: {response}");
    }
    until("the Event", || {
        let text = kubectl("describe pod -n shared shared");
        let line = text.lines().find(|line| line.contains("LinkerdCNIProxyUserShared"));
        line.is_some_and(|line| line.contains("Warning") && line.contains("the proxy's user: app."))
    });
    let log = kubectl("logs -n linkerd-cni daemonset/linkerd-cni");
    let line = log.lines().find(|line| line.contains("shared/shared")).unwrap_or_default();
    assert!(line.contains("run as the proxy's user and bypass the proxy: app"), "{log}");
    let events = kubectl("get events -n own");
    assert!(!events.contains("LinkerdCNIProxyUserShared"), "{events}");

    helm.run("upgrade", &["--set", "strictProxyUser=true"]);
    assert_eq!(node.linkerd_entry()["linkerd"]["strict-proxy-user"], true);
    pods.create(&[with_app_user("refused", 2102)]);
    until("the Events with the reason", || {
        let text = kubectl("describe pod -n refused refused");
        let cause = "containers run as the proxy's user (UID 2102), so their connections would \
                     bypass the proxy: app";
        text.contains(cause) && text.contains("(code 111)")
    });
    assert_eq!(pods.field("refused", ".status.phase"), "Pending");
    pods.start(&[with_app_user("admitted", 1000)]);
    scene.remove();
}

fn with_app_user(name: &str, uid: u32) -> Value {
    let mut pod = pods::meshed(name);
    let containers = pod["spec"]["containers"].as_array_mut().unwrap();
    let app = containers.iter_mut().find(|container| container["name"] == "app").unwrap();
    app["securityContext"]["runAsUser"] = json!(uid);
    pod
}
