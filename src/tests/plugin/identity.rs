//! Objects of another pod than the one whose sandbox is being set up.

use serde_json::{Value, json};

use super::{POD_PATH, Scene, UID};

const OTHER_UID: &str = "c0ffee00-0000-4000-8000-000000000002";

fn pod(metadata: &Value, has_proxy: bool) -> String {
    let name = if has_proxy { "linkerd-proxy" } else { "app" };
    json!({"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": name}]}})
        .to_string()
}

#[test]
fn another_pods_object_decides_neither_for_nor_against_rules() {
    let named = |name: &str, namespace: &str, uid: &str| json!({"name": name, "namespace": namespace, "uid": uid});
    let annotated = |key: &str, value: &str| {
        let mut metadata = named("web", "ns", OTHER_UID);
        metadata["annotations"] = json!({key: value});
        metadata
    };
    let scene = Scene::meshed();
    for (metadata, code, problem) in [
        (named("web-1", "ns", UID), 104, "pod \"ns\"/\"web-1\""),
        (named("web", "other", UID), 104, "pod \"other\"/\"web\""),
        (json!({}), 104, "pod \"\"/\"\""),
        // A StatefulSet creates a pod of the same name while the runtime still works for its predecessor.
        (named("web", "ns", OTHER_UID), 103, "was replaced by"),
        (annotated("kubernetes.io/config.mirror", OTHER_UID), 103, "was replaced by"),
        // Mirror pods have this annotation too, but any pod may have it.
        (annotated("kubernetes.io/config.hash", UID), 103, "was replaced by"),
    ] {
        for has_proxy in [true, false] {
            scene.api.answer(POD_PATH, 200, &pod(&metadata, has_proxy));
            let outcome = scene.add().run();
            let (_, msg) = outcome.failed(code, problem).error();
            assert!(msg.starts_with("cannot read pod ns/web: "), "{metadata}: {msg}");
            // It proves nothing about the rules of the pod.
            scene.call("CHECK").run().succeeded().logs(&msg);
        }
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn a_mirror_pod_and_a_pod_whose_uid_the_runtime_or_the_api_server_omits_are_redirected() {
    const HASH: &str = "0123456789abcdef0123456789abcdef";
    let annotations =
        json!({"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH});
    let mirror =
        json!({"name": "web", "namespace": "ns", "uid": OTHER_UID, "annotations": annotations});
    let other = json!({"name": "web", "namespace": "ns", "uid": OTHER_UID});
    let without_uid = json!({"name": "web", "namespace": "ns"});
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web";
    let hash = format!("{args};K8S_POD_UID={HASH}");
    for (metadata, args) in [(&mirror, &*hash), (&other, args), (&without_uid, &*hash)] {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, &pod(metadata, true));
        scene.add().env("CNI_ARGS", args).run().succeeded();
        assert!(scene.has_rules(), "{args}");
    }
}
