//! Invalid elements of port lists: ignored as in upstream, and reported.

use serde_json::{Value, json};

use super::api::Api;
use super::namespaces::Namespaces;
use super::record_socket::{listen, record};
use super::{Call, UID, api_of, call_in_mode, meshed_spec};

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
        let namespaces = Namespaces::new();
        let call = |command| call_in_mode(mode, command, &namespaces, &api);
        let add = call("ADD");
        let socket = listen(&add);
        let outcome = add.run().succeeded();
        let rules = match mode {
            "native" => namespaces.run("nft", &["list", "ruleset"]),
            _ => namespaces.nat("iptables-nft"),
        };
        assert!(rules.contains("proxy-init/ignore-port-5432"), "{rules}");
        assert!(rules.contains("proxy-init/ignore-port-4191,4190,8080"), "{rules}");

        let record = record(&socket);
        assert_eq!(record["decision"], "redirected");
        assert_eq!(record["pod_uid"], UID);
        let ignored = json!([
            {"source": OUT, "elements": ["http", "30-20"], "more": 0},
            {"source": IN, "elements": ["65536-65539"], "more": 0},
        ]);
        assert_eq!(record["ignored"], ignored);
        let line = format!("WARN linkerd-cni: pod ns/web: ignored in {OUT}: \"http\", \"30-20\"; ");
        assert!(outcome.stderr.contains(&line), "{}", outcome.stderr);

        let check = call("CHECK");
        let socket = listen(&check);
        check.run().succeeded();
        let record = self::record(&socket);
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
        let (api, namespaces) = (api(json!({key: value}), json!({})), Namespaces::new());
        let call =
            Call::new("ADD", &namespaces.path(), &api).linkerd("strict-annotations", json!(strict));
        let socket = listen(&call);
        let outcome = call.run();
        let (code, msg) = outcome.error();
        assert_eq!(code, 110, "{msg}");
        assert!(msg.contains(key) && msg.contains(problem), "{msg}");
        let details = outcome.json()["details"].clone();
        assert!(details.as_str().unwrap().contains("correct the annotation"), "{details}");
        assert_eq!(namespaces.nat("iptables-nft"), "", "{key}: {value}");
        let record = record(&socket);
        assert_eq!(record["error"]["code"], 110);
        assert_eq!(record["ignored"], json!([]), "{record}");
    }
}

#[test]
fn invalid_elements_of_the_plugin_entry_are_ignored_unless_no_valid_element_is_left() {
    let (api, namespaces) = (api(json!({}), json!({})), Namespaces::new());
    let call = |list: Value| {
        Call::new("ADD", &namespaces.path(), &api).linkerd("outbound-ports-to-ignore", list)
    };
    let add = call(json!(["443", " 1000", ""]));
    let socket = listen(&add);
    add.run().succeeded();
    let rules = namespaces.nat("iptables-nft");
    assert!(rules.contains("--dports 443 "), "{rules}");
    let ignored = json!([{
        "source": "outbound-ports-to-ignore", "elements": [" 1000", ""], "more": 0,
    }]);
    assert_eq!(record(&socket)["ignored"], ignored);

    for (list, strict) in [(json!(["http"]), false), (json!(["443", "http"]), true)] {
        let (code, msg) = call(list).linkerd("strict-annotations", json!(strict)).run().error();
        assert_eq!(code, 7, "{msg}");
        let key = "\"outbound-ports-to-ignore\": \"http\" is not a port";
        assert!(msg.contains(key), "{msg}");
    }
}

#[test]
fn quoted_annotations_are_short_and_on_one_line() {
    let worst = "\u{1b}[31m\n\u{202e}é".repeat(20_000);
    let (api, namespaces) = (
        api(json!({OUT: format!("25,{worst}"), IN: format!("{worst},").repeat(3)}), json!({})),
        Namespaces::new(),
    );
    let add = Call::new("ADD", &namespaces.path(), &api).set("log_level", json!("warn"));
    let socket = listen(&add);
    let outcome = add.run().succeeded();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.len() < 3000 && !outcome.stderr.contains('\u{202e}'));
    let record = record(&socket);
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
    let (api, namespaces) = (api_of_long_lists(), Namespaces::new());
    for mode in ["native", "nft"] {
        let check = Call::new("CHECK", &namespaces.path(), &api);
        let (code, msg) = check.linkerd("iptables-mode", json!(mode)).run().error();
        assert_eq!(code, 122, "{mode}: {msg}");
        assert!(msg.len() < 4000, "{mode}: {} bytes", msg.len());
        assert!(msg.ends_with("; and 2664 more"), "{mode}: {msg}");
    }
}

/// The plugin times out after 20 s, which is too short to parse the whole list once per rule.
#[test]
fn check_finds_thousands_of_iptables_rules_in_time() {
    let (api, namespaces) = (api_of_long_lists(), Namespaces::new());
    let call = |command| Call::new(command, &namespaces.path(), &api).linkerd("ipv6", json!(true));
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
    let (api, namespaces) = (api_of(json!({}), &spec, &json!({})), Namespaces::new());
    let add = Call::new("ADD", &namespaces.path(), &api);
    let socket = listen(&add);
    add.run().succeeded();
    let record = record(&socket);
    assert_eq!(record["decision"], "redirected");
    assert_eq!(record["blocked_init_containers"], json!(["migrate"]));
    assert_eq!(record["retries"], 0, "{record}");
}
