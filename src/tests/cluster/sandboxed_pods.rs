//! Pods with a RuntimeClass whose sandboxes ignore redirect rules. Its handler is the usual runtime here: only the
//! name of the class tells the plugin.

use serde_json::{Value, json};

use crate::kubectl;
use crate::pods::{self, container};
use crate::scene::Scene;
use crate::until::until;

const CLASS: &str = "gvisor-test";

#[test]
fn a_meshed_pod_of_a_class_that_ignores_the_rules_is_refused_with_the_remedy() {
    let scene = Scene::installed(&[]);
    let pods = &scene.pods;
    kubectl::apply(&json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": CLASS},
        "handler": "runc",
    }));
    let mut inside = sandboxed(pods::meshed("inside"));
    inside["spec"]["initContainers"] = json!([container("linkerd-init", 1000, &["wait", "1s"])]);
    pods.start(&[sandboxed(pods::unmeshed("unmeshed")), inside]);
    pods.create(&[sandboxed(pods::meshed("refused"))]);
    until("the Events with the reason", || {
        let text = kubectl::kubectl("describe pod -n refused refused");
        text.contains("RuntimeClass gvisor-test ignore redirect rules")
            && text.contains("linkerd-init")
            && text.contains("(code 112)")
    });
    assert_eq!(pods.field("refused", ".status.phase"), "Pending");
    kubectl::kubectl(&format!("delete runtimeclass {CLASS}"));
    scene.remove();
}

fn sandboxed(mut pod: Value) -> Value {
    pod["spec"]["runtimeClassName"] = json!(CLASS);
    pod
}
