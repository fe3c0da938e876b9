//! Invalid elements of port lists: ignored as in upstream, and reported.

use serde_json::{Value, json};

use super::record_socket::recorded;
use super::{Scene, UID, meshed_spec};

const IN: &str = "config.linkerd.io/skip-inbound-ports";
const OUT: &str = "config.linkerd.io/skip-outbound-ports";

/// A scene with a meshed pod and its namespace, with these annotations.
fn annotated(pod: Value, namespace: &Value) -> Scene {
    Scene::with(pod, &meshed_spec(), namespace)
}

#[test]
fn a_pod_with_invalid_elements_gets_upstreams_rules_and_a_record() {
    for mode in ["native", "nft"] {
        let of_namespace = json!({IN: "8080,65536-65539", OUT: "1"});
        let scene = annotated(json!({OUT: "http,5432,30-20"}), &of_namespace);
        let (outcome, record) = recorded(&scene.in_mode(mode, "ADD"));
        let line = format!("WARN linkerd-cni: pod ns/web: ignored in {OUT}: \"http\", \"30-20\"; ");
        outcome.succeeded().logs(&line);
        let rules = match mode {
            "native" => scene.sh("nft list ruleset"),
            _ => scene.rules(),
        };
        assert!(rules.contains("proxy-init/ignore-port-5432"), "{rules}");
        assert!(rules.contains("proxy-init/ignore-port-4191,4190,8080"), "{rules}");

        assert_eq!(record["decision"], "redirected");
        assert_eq!(record["pod_uid"], UID);
        let ignored = json!([
            {"source": OUT, "elements": ["http", "30-20"], "more": 0},
            {"source": IN, "elements": ["65536-65539"], "more": 0},
        ]);
        assert_eq!(record["ignored"], ignored);

        let (outcome, record) = recorded(&scene.in_mode(mode, "CHECK"));
        outcome.succeeded();
        assert_eq!(record["decision"], "checked");
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn strict_annotations_and_entirely_invalid_lists_fail_the_pod() {
    for (strict, value) in [(true, "http,5432"), (false, "http")] {
        let scene = annotated(json!({OUT: value}), &json!({}));
        let (outcome, record) = recorded(&scene.add().linkerd("strict-annotations", strict));
        let outcome = outcome.failed(110, &format!("{OUT}: \"{value}\": \"http\" is not a port"));
        outcome.advises("correct the annotation");
        assert_eq!(scene.rules(), "");
        assert_eq!(record["error"]["code"], 110);
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn an_error_about_thousands_of_missing_rules_stays_short() {
    let list: Vec<String> = (1..40_000).step_by(2).map(|port| format!("{port},x")).collect();
    let list = list.join(",");
    let scene = annotated(json!({OUT: list, IN: list}), &json!({}));
    let outcome = scene.call("CHECK").run();
    let (_, msg) = outcome.failed(122, "; and 2664 more").error();
    assert!(msg.len() < 4000, "{} bytes", msg.len());
}
