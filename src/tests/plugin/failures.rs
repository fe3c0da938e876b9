//! Failed and skipped calls: requests, error objects, and an unreachable API server.

use serde_json::json;

use super::api::Api;
use super::{MESHED, NAMESPACE, NAMESPACE_PATH, POD_PATH, Scene, UID, UNMESHED};

#[test]
fn a_meshed_pod_takes_two_requests_and_an_unmeshed_pod_takes_one() {
    let init = r#"{"metadata":{"name":"web","namespace":"ns","uid":"c0ffee00-0000-4000-8000-000000000001"},"spec":{"containers":[{"name":"linkerd-proxy"}],"initContainers":[{"name":"linkerd-init"}]}}"#;
    let pod = format!("GET {POD_PATH}");
    let namespace = format!("GET {NAMESPACE_PATH}");
    let cases = [
        ("meshed", MESHED, vec![pod.clone(), namespace], true),
        ("unmeshed", UNMESHED, vec![pod.clone()], false),
        ("linkerd-init", init, vec![pod], false),
    ];
    for (name, body, requests, redirected) in cases {
        let scene = Scene::of(Api::start());
        scene.api.answer(POD_PATH, 200, body).answer(NAMESPACE_PATH, 200, NAMESPACE);
        let outcome = scene.add().run().succeeded();
        assert_eq!(scene.api.requests(), requests, "{name}");
        assert_eq!(!scene.rules().is_empty(), redirected, "{name}");
        assert_eq!(outcome.json()["ips"][0]["address"], "10.99.0.1/24", "{name}");
    }
}

#[test]
fn a_container_that_is_not_a_pod_is_skipped_without_a_request() {
    let scene = Scene::meshed();
    for args in ["", "IgnoreUnknown=1", "K8S_POD_NAME=web"] {
        scene.add().env("CNI_ARGS", args).run().succeeded();
    }
    assert!(scene.api.requests().is_empty());
    assert_eq!(scene.rules(), "");
}

#[test]
fn failures_are_error_objects_and_leave_no_rule() {
    let scene = Scene::meshed();
    let bad = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": UID,
            "annotations": {"config.linkerd.io/proxy-uid": "abc"}},
        "spec": {"containers": [{"name": "linkerd-proxy"}]},
    });
    let bad = bad.to_string();
    let responses = [
        (
            "not found",
            404,
            r#"{"message":"pods \"web\" not found"}"#,
            103,
            "HTTP 404: pods \"web\" not found",
        ),
        ("forbidden", 403, r#"{"message":"no"}"#, 102, "HTTP 403: no"),
        ("unauthorized", 401, r#"{"message":"Unauthorized"}"#, 102, "HTTP 401: Unauthorized"),
        ("server error", 500, "oops", 104, "HTTP 500: oops"),
        ("redirect", 302, "", 104, "HTTP 302"),
        ("empty object", 200, "{}", 104, "missing field `metadata`"),
        ("null", 200, "null", 104, "invalid type: null"),
        ("list", 200, "[]", 104, "unexpected list, expected an object"),
        (
            "pod list",
            200,
            r#"{"kind":"PodList","metadata":{},"items":[]}"#,
            104,
            "unexpected kind of object, expected Pod",
        ),
        ("truncated response", 200, r#"{"metadata":"#, 104, "EOF while parsing"),
        ("invalid annotation", 200, &bad, 110, "config.linkerd.io/proxy-uid: \"abc\""),
    ];
    for (name, status, body, code, text) in responses {
        scene.api.answer(POD_PATH, status, body);
        let outcome = scene.add().run();
        let (got, msg) = outcome.error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(msg.contains(text), "{name}: {msg}");
        assert!(
            !format!("{}{}", outcome.stdout, outcome.stderr).contains(super::api::TOKEN),
            "{name}"
        );
    }
    scene.api.answer(POD_PATH, 200, MESHED);
    let calls = [
        (
            "no kubeconfig file",
            scene.add().set("kubernetes", json!({"kubeconfig": "/no/such"})),
            100,
            "cannot read /no/such",
        ),
        (
            "no kubeconfig",
            scene.add().set("kubernetes", json!({})),
            100,
            "\"kubeconfig\" is not set",
        ),
        (
            "invalid port",
            scene.add().linkerd("incoming-proxy-port", 70000),
            7,
            "70000 is not a port of the proxy",
        ),
        ("no linkerd object", scene.add().set("linkerd", json!({})), 7, "proxy-uid"),
        ("invalid args", scene.add().env("CNI_ARGS", "a"), 4, "CNI_ARGS: invalid pair \"a\""),
        (
            "no such netns",
            scene.add().env("CNI_NETNS", "/no/such/netns"),
            8,
            "cannot open network namespace /no/such/netns",
        ),
        (
            "own netns",
            scene.add().env("CNI_NETNS", "/proc/self/ns/net"),
            8,
            "should not be the same",
        ),
        (
            "foreign prevResult",
            scene.add().set("prevResult", json!({"cniVersion": "9.9.9"})),
            6,
            "unsupported CNI result version \"9.9.9\"",
        ),
        (
            "prevResult of a wrong type",
            scene.add().set("prevResult", "x"),
            6,
            "could not parse prevResult",
        ),
    ];
    for (name, call, code, text) in calls {
        let (got, msg) = call.run().error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(msg.contains(text), "{name}: {msg}");
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn proxy_variables_of_the_runtimes_environment_are_ignored() {
    let scene = Scene::meshed();
    scene
        .add()
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1")
        .run()
        .succeeded();
    assert_eq!(scene.api.requests().len(), 2);
}
