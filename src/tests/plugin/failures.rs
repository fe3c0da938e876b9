//! Tests failed calls: the error object names the cause, and no rule is installed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;

use linkerd2_cni::netns;
use serde::Deserialize;
use serde_json::json;
use testkit::child::must;
use testkit::table;
use testkit::until::until;

use super::api::{ApiFault, TOKEN};
use super::faults::assert_fails_at_once;
use super::record_socket::run_and_record;
use super::{AT_ONCE, MESHED, NAMESPACE, NAMESPACE_PATH, POD_PATH, Scene, request_count};

/// A row of `failures.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseRow {
    object: Object,
    status: u16,
    body: String,
    code: u64,
    error: String,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Object {
    Pod,
    Namespace,
}

#[test]
fn responses_without_a_pod_or_namespace_fail_at_once_and_install_no_rule() {
    let scene = Scene::meshed();
    for (name, row) in table::rows::<ResponseRow>(include_str!("failures.yaml")) {
        scene.api.answer(POD_PATH, 200, MESHED).answer(NAMESPACE_PATH, 200, NAMESPACE);
        let path = if row.object == Object::Pod { POD_PATH } else { NAMESPACE_PATH };
        scene.api.answer(path, row.status, &row.body);
        let call = scene.add().linkerd("api-retry-seconds", 30);
        let requests = if row.object == Object::Pod && row.code != 110 { 1 } else { 2 };
        let outcome = assert_fails_at_once(&call, requests, row.code, &row.error);
        let (_, msg) = outcome.error();
        if row.code != 110 {
            let object = if row.object == Object::Pod { "" } else { "the namespace of " };
            assert!(msg.starts_with(&format!("cannot read {object}pod ns/web: ")), "{name}: {msg}");
        }
        if row.status == 404 {
            assert!(msg.ends_with(&format!("(API requests sent: {requests})")), "{name}: {msg}");
        }
        assert!(!format!("{}{}", outcome.stdout, outcome.stderr).contains(TOKEN), "{name}");
    }
    // A request with a truncated response is retried.
    scene.api.answer(POD_PATH, 200, r#"{"metadata":"#);
    let (outcome, record) = run_and_record(&scene.add().linkerd("api-retry-seconds", 1));
    outcome.failed(104, "EOF while parsing");
    assert!(request_count(&record) > 1, "{record}");
    // The last retry of a failed request takes longer than the budget allows.
    let error = || ApiFault::Status(500, 0);
    scene.api.faults(&[error(), error(), error(), ApiFault::Hang, ApiFault::Hang]);
    scene.add().linkerd("api-retry-seconds", 1).run().failed(104, "HTTP 500");
    assert_eq!(scene.rules(), "");
}

#[test]
fn invalid_calls_fail_and_install_no_rule() {
    let scene = Scene::meshed();
    let add = || scene.add();
    let in_netns = |path: &str| add().env("CNI_NETNS", path);
    let kubeconfig = |value| add().set("kubernetes", value);
    for (_name, (call, code, text)) in table::named([
        (
            "the kubeconfig does not exist",
            (kubeconfig(json!({"kubeconfig": "/no/such"})), 100, "cannot read /no/such"),
        ),
        ("no kubeconfig is set", (kubeconfig(json!({})), 100, "\"kubeconfig\" is not set")),
        (
            "the proxy's port is above 65535",
            (add().linkerd("incoming-proxy-port", 70000), 7, "70000 is not a port of the proxy"),
        ),
        ("the entry has no member", (add().set("linkerd", json!({})), 7, "proxy-uid")),
        (
            "an argument has no value",
            (add().env("CNI_ARGS", "a"), 4, "CNI_ARGS: invalid pair \"a\""),
        ),
        (
            "the netns does not exist",
            (
                in_netns("/no/such/netns"),
                8,
                "cannot open network namespace /no/such/netns: No such file",
            ),
        ),
        (
            "the netns is another file",
            (in_netns("/dev/null"), 8, "cannot enter network namespace /dev/null: EINVAL: Invalid"),
        ),
        (
            "the netns is the plugin's own",
            (in_netns("/proc/self/ns/net"), 8, "should not be the same"),
        ),
        ("prevResult is a text", (add().set("prevResult", "x"), 6, "could not parse prevResult")),
    ]) {
        call.run().failed(code, text);
    }
    assert_eq!(scene.rules(), "");
}

/// The plugin runs in the neighbour's netns. When it opens the path, the path leads to this netns.
#[test]
fn netns_path_that_changes_to_the_plugins_own_netns_during_the_call_is_rejected() {
    let scene = Scene::meshed();
    let own_netns = scene.neighbour_path();
    let address = scene.api.address;
    let listener =
        netns::run(&own_netns, AT_ONCE, move || TcpListener::bind(address)).unwrap().unwrap();
    scene.api.serve(listener);
    // The plugin retries the request for about a second. The path changes meanwhile.
    scene.api.faults(&[500, 503, 500, 503].map(|code| ApiFault::Status(code, 0)));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("netns");
    let next_path = dir.path().join("next");
    symlink(scene.path(), &path).unwrap();
    symlink(&own_netns, &next_path).unwrap();
    let call = scene.add().env("CNI_NETNS", &path);
    let enter = format!("--net={}", own_netns.display());
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| call.run_under(&["/usr/bin/nsenter", &enter]));
        until("the first request", || !scene.api.requests().is_empty());
        fs::rename(&next_path, &path).unwrap();
        running.join().unwrap()
    });
    outcome.failed(8, "plugin's netns and netns from CNI_NETNS should not be the same");
    let list = || must(Command::new("nft").args(["list", "ruleset"]));
    let ruleset = netns::run(&own_netns, AT_ONCE, list).unwrap();
    assert!(!ruleset.contains("PROXY_INIT"), "{ruleset}");
    assert_eq!(scene.rules(), "");
}

#[test]
fn proxy_variables_in_the_runtimes_environment_are_ignored() {
    let scene = Scene::meshed();
    let proxy = "http://127.0.0.1:1";
    scene.add().env("HTTPS_PROXY", proxy).env("ALL_PROXY", proxy).run().succeeded();
    assert_eq!(scene.api.requests().len(), 2);
}
