//! Pods whose author added the proxy, without the injector's label and without any annotation of Linkerd.

use std::time::Duration;

use serde_json::{Value, json};

use crate::helm::Helm;
use crate::node::Node;
use crate::pods::{self, Pods};
use crate::until::until_within;

#[test]
fn a_hand_made_pod_without_annotations_starts_bare_and_is_redirected_with_pod_detection_api() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    helm.run("install", &[]);
    pods.start(&[pods::unmeshed("client"), hand_made("bare")]);
    let response = |pod: &str| pods.connect("client", "app", &format!("{}:8080", pods.ip(pod)));
    assert!(response("bare").starts_with("app-of-bare"), "{}", response("bare"));

    let repair = "repairController.enabled=true,repairController.mode=in-place,\
                  repairController.auditIntervalSeconds=3";
    helm.run("upgrade", &[&format!("--set=podDetection=api,{repair}")]);
    assert_eq!(node.linkerd_entry()["linkerd"]["pod-detection"], "api");
    pods.start(&[hand_made("redirected")]);
    pods.until_proxied("client", &format!("{}:8080", pods.ip("redirected")));
    until_within(Duration::from_secs(60), "the audit repairs the bare pod", || {
        response("bare").starts_with("proxy-inbound")
    });

    drop(pods);
    helm.remove();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

fn hand_made(name: &str) -> Value {
    let mut pod = pods::meshed(name);
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = json!({});
    pod
}
