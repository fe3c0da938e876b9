//! Tests API responses with the object of a different pod than the one that starts.

use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table;

use super::{POD_PATH, Scene};

fn pod(metadata: &Value, has_proxy: bool) -> String {
    let name = if has_proxy { "linkerd-proxy" } else { "app" };
    json!({"kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": name}]}})
        .to_string()
}

/// A row of `others` in `identity.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherPodRow {
    metadata: Value,
    code: u64,
    error: String,
}

/// A row of `own` in `identity.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnPodRow {
    metadata: Value,
    args: String,
}

#[test]
fn object_of_another_pod_is_rejected() {
    let scene = Scene::meshed();
    for (name, row) in table::rows_of::<OtherPodRow>(include_str!("identity.yaml"), "others") {
        for has_proxy in [true, false] {
            scene.api.answer(POD_PATH, 200, &pod(&row.metadata, has_proxy));
            let outcome = scene.add().run();
            let (_, msg) = outcome.failed(row.code, &row.error).error();
            assert!(msg.starts_with("cannot read pod ns/web: "), "{name}: {msg}");
            // The object of another pod proves nothing about the rules of this pod.
            scene.call("CHECK").run().succeeded().logs(&msg);
        }
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn mirror_pods_and_pods_with_an_omitted_uid_are_redirected() {
    for (name, row) in table::rows_of::<OwnPodRow>(include_str!("identity.yaml"), "own") {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web{}", row.args);
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, &pod(&row.metadata, true));
        scene.add().env("CNI_ARGS", &args).run().succeeded();
        assert!(scene.has_rules(), "{name}");
    }
}
