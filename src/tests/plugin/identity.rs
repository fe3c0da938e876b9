//! Objects of another pod than the one whose sandbox is being set up.

use serde_json::{Value, json};

use super::{NAMESPACE_PATH, POD_PATH, Scene, UID};

const OTHER_UID: &str = "c0ffee00-0000-4000-8000-000000000002";

fn pod(metadata: &Value, has_proxy: bool) -> String {
    let name = if has_proxy { "linkerd-proxy" } else { "app" };
    json!({"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": name}]}})
        .to_string()
}

#[test]
fn another_pods_object_decides_neither_for_nor_against_rules() {
    let cases = [
        (json!({"name": "web-1", "namespace": "ns", "uid": UID}), 104, "pod \"ns\"/\"web-1\""),
        (json!({"name": "web", "namespace": "other", "uid": UID}), 104, "pod \"other\"/\"web\""),
        (json!({}), 104, "pod \"\"/\"\""),
        // A StatefulSet creates a pod of the same name while the runtime still works for its
        // predecessor.
        (json!({"name": "web", "namespace": "ns", "uid": OTHER_UID}), 103, "was replaced by"),
        (
            json!({"name": "web", "namespace": "ns", "uid": OTHER_UID,
                "annotations": {"kubernetes.io/config.mirror": OTHER_UID}}),
            103,
            "was replaced by",
        ),
        // Mirror pods have this annotation too, but any pod may have it.
        (
            json!({"name": "web", "namespace": "ns", "uid": OTHER_UID,
                "annotations": {"kubernetes.io/config.hash": UID}}),
            103,
            "was replaced by",
        ),
    ];
    let scene = Scene::meshed();
    for (metadata, code, problem) in cases {
        for has_proxy in [true, false] {
            scene.api.answer(POD_PATH, 200, &pod(&metadata, has_proxy));
            let (got, msg) = scene.call("ADD").run().error();
            assert_eq!(got, code, "{metadata}: {msg}");
            assert!(msg.starts_with("cannot read pod ns/web: "), "{metadata}: {msg}");
            assert!(msg.contains(problem), "{metadata}: {msg}");
            // It proves nothing about the rules of the pod.
            let stderr = scene.call("CHECK").run().succeeded().stderr;
            assert!(stderr.contains(&msg), "{metadata}: {stderr}");
        }
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn a_mirror_pod_and_a_pod_whose_uid_the_runtime_or_the_api_server_omits_are_redirected() {
    let mirror = json!({"name": "web", "namespace": "ns", "uid": OTHER_UID, "annotations": {
        "kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef",
        "kubernetes.io/config.mirror": "0123456789abcdef0123456789abcdef"}});
    let other = json!({"name": "web", "namespace": "ns", "uid": OTHER_UID});
    let without_uid = json!({"name": "web", "namespace": "ns"});
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web";
    let hash = format!("{args};K8S_POD_UID=0123456789abcdef0123456789abcdef");
    for (metadata, args) in [(&mirror, &*hash), (&other, args), (&without_uid, &*hash)] {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, &pod(metadata, true));
        scene.add().env("CNI_ARGS", args).run().succeeded();
        assert!(scene.rules().contains("PROXY_INIT_OUTPUT"), "{args}");
    }
}

#[test]
fn another_namespaces_annotations_do_not_apply() {
    let scene = Scene::meshed();
    let other = json!({"metadata": {"name": "other", "annotations": {
        "config.linkerd.io/skip-inbound-ports": "0-65535"}}});
    scene.api.answer(NAMESPACE_PATH, 200, &other.to_string());
    let (code, msg) = scene.add().run().error();
    assert!(code == 104, "{code} {msg}");
    assert_eq!(msg, "cannot read the namespace of pod ns/web: the object is namespace \"other\"");
    assert_eq!(scene.rules(), "");
}
