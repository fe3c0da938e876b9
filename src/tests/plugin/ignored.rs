//! Invalid elements of port lists: ignored as in upstream, and reported.

use serde_json::{Value, json};

use super::api::Api;
use super::record_socket::recorded;
use super::{Scene, UID, api_of, meshed_spec};

const IN: &str = "config.linkerd.io/skip-inbound-ports";
const OUT: &str = "config.linkerd.io/skip-outbound-ports";

/// API server with a meshed pod and its namespace, with these annotations.
fn api(pod: Value, namespace: Value) -> Api {
    api_of(json!({"annotations": pod}), &meshed_spec(), &namespace)
}

#[test]
fn a_pod_with_invalid_elements_gets_upstreams_rules_and_the_agent_gets_a_record() {
    for mode in ["native", "nft"] {
        let api = api(json!({OUT: "http,5432,30-20"}), json!({IN: "8080,65536-65539", OUT: "1"}));
        let scene = Scene::of(api);
        let (outcome, record) = recorded(&scene.in_mode(mode, "ADD"));
        let outcome = outcome.succeeded();
        let rules = match mode {
            "native" => scene.run("nft", &["list", "ruleset"]),
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
        let line = format!("WARN linkerd-cni: pod ns/web: ignored in {OUT}: \"http\", \"30-20\"; ");
        assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);

        let (outcome, record) = recorded(&scene.in_mode(mode, "CHECK"));
        outcome.succeeded();
        assert_eq!(record["decision"], "checked");
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn strict_annotations_and_lists_without_a_valid_element_fail_the_pod_without_a_rule() {
    let cases = [
        (true, OUT, "http,5432", "\"http\" is not a port"),
        (true, IN, "80, 81", "\" 81\" contains blanks"),
        (true, "config.linkerd.io/inbound-port", "x", "expected a port from 1 to 65535"),
        (false, OUT, "http", "\"http\" is not a port"),
        (false, OUT, " ", "\" \" contains blanks"),
    ];
    for (strict, key, value, problem) in cases {
        let scene = Scene::of(api(json!({key: value}), json!({})));
        let call = scene.add().linkerd("strict-annotations", strict);
        let (outcome, record) = recorded(&call);
        let (code, msg) = outcome.error();
        assert_eq!(code, 110, "{msg}");
        assert!(msg.contains(key) && msg.contains(problem), "{msg}");
        let details = outcome.json()["details"].clone();
        assert!(details.as_str().unwrap().contains("correct the annotation"), "{details}");
        assert_eq!(scene.rules(), "", "{key}: {value}");
        assert_eq!(record["error"]["code"], 110);
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn invalid_elements_of_the_plugin_entry_are_ignored_unless_no_valid_element_is_left() {
    let scene = Scene::of(api(json!({}), json!({})));
    let call = |list: Value| scene.add().linkerd("outbound-ports-to-ignore", list);
    let (outcome, record) = recorded(&call(json!(["443", " 1000", ""])));
    outcome.succeeded();
    let rules = scene.rules();
    assert!(rules.contains("--dports 443 "), "{rules}");
    let ignored = json!([{
        "source": "outbound-ports-to-ignore", "elements": [" 1000", ""], "more": 0,
    }]);
    assert_eq!(record["ignored"], ignored);

    for (list, strict) in [(json!(["http"]), false), (json!(["443", "http"]), true)] {
        let (code, msg) = call(list).linkerd("strict-annotations", strict).run().error();
        assert_eq!(code, 7, "{msg}");
        let key = "\"outbound-ports-to-ignore\": \"http\" is not a port";
        assert!(msg.contains(key), "{msg}");
    }
}

#[test]
fn quoted_annotations_are_short_and_on_one_line() {
    let worst = "\u{1b}[31m\n\u{202e}é".repeat(20_000);
    let pod = json!({OUT: format!("25,{worst}"), IN: format!("{worst},").repeat(3)});
    let scene = Scene::of(api(pod, json!({})));
    let (outcome, record) = recorded(&scene.add().set("log_level", "warn"));
    let outcome = outcome.succeeded();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.len() < 3000 && !outcome.stderr.contains('\u{202e}'));
    let element = record["ignored"][0]["elements"][0].as_str().unwrap();
    assert!(element.chars().count() == 101 && element.ends_with('…'), "{element}");
}

/// API server with a meshed pod whose lists are nearly as long as an API server accepts. Half of
/// their elements are invalid.
fn api_of_long_lists() -> Api {
    let list: Vec<String> = (1..40_000).step_by(2).map(|port| format!("{port},x")).collect();
    let list = list.join(",");
    api(json!({OUT: list, IN: list}), json!({}))
}

#[test]
fn an_error_about_thousands_of_missing_rules_stays_short() {
    let scene = Scene::of(api_of_long_lists());
    for mode in ["native", "nft"] {
        let check = scene.call("CHECK");
        let (code, msg) = check.linkerd("iptables-mode", mode).run().error();
        assert_eq!(code, 122, "{mode}: {msg}");
        assert!(msg.len() < 4000, "{mode}: {} bytes", msg.len());
        assert!(msg.ends_with("; and 2664 more"), "{mode}: {msg}");
    }
}

/// The plugin times out after 20 s, which is too short to parse the whole list once per rule.
#[test]
fn check_finds_thousands_of_iptables_rules_in_time() {
    let scene = Scene::of(api_of_long_lists());
    let call = |command| scene.call(command).linkerd("ipv6", true);
    call("ADD").run().succeeded();
    call("CHECK").run().succeeded();
}

#[test]
fn the_record_names_init_containers_that_start_before_the_proxy() {
    let spec = json!({
        "containers": [{"name": "app"}, {"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}}],
        "initContainers": [
            {"name": "linkerd-network-validator"},
            {"name": "migrate"},
            {"name": "as-proxy", "securityContext": {"runAsUser": 2102}},
        ],
    });
    let scene = Scene::of(api_of(json!({}), &spec, &json!({})));
    let (outcome, record) = recorded(&scene.add());
    outcome.succeeded();
    assert_eq!(record["decision"], "redirected");
    assert_eq!(record["blocked_init_containers"], json!(["migrate"]));
    assert_eq!(record["retries"], 0, "{record}");
}
