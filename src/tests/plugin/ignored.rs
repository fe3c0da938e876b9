//! Tests invalid elements of port lists, which are ignored as in upstream, and reported.

use serde_json::{Value, json};

use super::record_socket::run_and_record;
use super::{Scene, UID, meshed_spec};

const SKIP_INBOUND: &str = "config.linkerd.io/skip-inbound-ports";
const SKIP_OUTBOUND: &str = "config.linkerd.io/skip-outbound-ports";

/// Creates a scene with a meshed pod. The pod and its namespace have these annotations.
fn annotated_scene(pod: Value, namespace: &Value) -> Scene {
    Scene::with_pod(pod, &meshed_spec(), namespace)
}

#[test]
fn pod_with_invalid_ports_gets_upstreams_rules_and_a_record() {
    for mode in ["native", "nft"] {
        let namespace_annotations = json!({SKIP_INBOUND: "8080,65536-65539", SKIP_OUTBOUND: "1"});
        let scene =
            annotated_scene(json!({SKIP_OUTBOUND: "http,5432,30-20"}), &namespace_annotations);
        let (outcome, record) = run_and_record(&scene.in_mode(mode, "ADD"));
        let ignored = format!("ignored in {SKIP_OUTBOUND}: \"http\", \"30-20\"; ");
        outcome.succeeded().logs(&format!("WARN linkerd-cni: pod ns/web: {ignored}"));
        let rules = match mode {
            "native" => scene.sh("nft list ruleset"),
            _ => scene.rules(),
        };
        assert!(rules.contains("proxy-init/ignore-port-5432"), "{rules}");
        assert!(rules.contains("proxy-init/ignore-port-4191,4190,8080"), "{rules}");

        assert_eq!(record["decision"], "redirected");
        assert_eq!(record["pod_uid"], UID);
        let ignored = json!([
            {"source": SKIP_OUTBOUND, "elements": ["http", "30-20"], "more": 0},
            {"source": SKIP_INBOUND, "elements": ["65536-65539"], "more": 0},
        ]);
        assert_eq!(record["ignored"], ignored);

        let (outcome, record) = run_and_record(&scene.in_mode(mode, "CHECK"));
        outcome.succeeded();
        assert_eq!(record["decision"], "checked");
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn strict_annotations_and_entirely_invalid_lists_fail_the_pod() {
    for (strict, value) in [(true, "http,5432"), (false, "http")] {
        let scene = annotated_scene(json!({SKIP_OUTBOUND: value}), &json!({}));
        let (outcome, record) = run_and_record(&scene.add().linkerd("strict-annotations", strict));
        let problem = format!("{SKIP_OUTBOUND}: \"{value}\": \"http\" is not a port");
        let outcome = outcome.failed(110, &problem);
        outcome.advises("correct the annotation");
        assert_eq!(scene.rules(), "");
        assert_eq!(record["error"]["code"], 110);
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn error_about_thousands_of_missing_rules_is_short() {
    let list: Vec<String> = (1..40_000).step_by(2).map(|port| format!("{port},x")).collect();
    let list = list.join(",");
    let scene = annotated_scene(json!({SKIP_OUTBOUND: list, SKIP_INBOUND: list}), &json!({}));
    let outcome = scene.call("CHECK").run();
    let (_, msg) = outcome.failed(122, "; and 2664 more").error();
    assert!(msg.len() < 4000, "{} bytes", msg.len());
}
