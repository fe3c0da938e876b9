//! Objects of another pod than the one whose sandbox is being set up.

use serde_json::{Value, json};
use testkit::chart::yaml;

use super::{POD_PATH, Scene};

fn pod(metadata: &Value, has_proxy: bool) -> String {
    let name = if has_proxy { "linkerd-proxy" } else { "app" };
    json!({"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": name}]}})
        .to_string()
}

#[test]
fn another_pods_object_decides_neither_for_nor_against_rules() {
    let scene = Scene::meshed();
    for case in yaml(include_str!("identity.yaml"))["others"].as_array().unwrap() {
        let (metadata, problem) = (&case[0], case[2].as_str().unwrap());
        let code = case[1].as_u64().unwrap();
        for has_proxy in [true, false] {
            scene.api.answer(POD_PATH, 200, &pod(metadata, has_proxy));
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
    for case in yaml(include_str!("identity.yaml"))["own"].as_array().unwrap() {
        let (metadata, more) = (&case[0], case[1].as_str().unwrap());
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web{more}");
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, &pod(metadata, true));
        scene.add().env("CNI_ARGS", &args).run().succeeded();
        assert!(scene.has_rules(), "{args}");
    }
}
