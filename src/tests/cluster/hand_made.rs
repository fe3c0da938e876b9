//! Pods whose author added the proxy, without the injector's label and without any annotation of Linkerd.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pods;
use crate::repair::set;
use crate::scene::Scene;
use crate::until::until_within;

#[test]
fn a_pod_without_annotations_is_redirected_only_with_pod_detection_api() {
    let scene = Scene::installed(&[]);
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client"), hand_made("bare")]);
    pods.assert_answers("client", "bare", "app-of-bare");

    helm.run("upgrade", &["--set=podDetection=api", &set("in-place", 3)]);
    assert_eq!(node.linkerd_entry()["linkerd"]["pod-detection"], "api");
    pods.start(&[hand_made("redirected")]);
    pods.until_proxied("client", &format!("{}:8080", pods.ip("redirected")));
    until_within(Duration::from_secs(60), "the audit repairs the bare pod", || {
        pods.response("client", "bare").starts_with("proxy-inbound")
    });
    scene.remove();
}

fn hand_made(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = json!({});
    pod
}
