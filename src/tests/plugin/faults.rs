//! API servers that hang, truncate, send slowly, reject, or are not the one in the kubeconfig.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, date_time_ymd};
use serde_json::{Value, json};

use super::api::{Fault, TOKEN};
use super::record_socket::recorded;
use super::until::until;
use super::{
    AT_ONCE, Api, Call, Outcome, REQUESTS_IN_2_S, Scene, UID, fastest, meshed_api, requests,
};

#[test]
fn temporary_faults_are_retried_until_the_pod_is_redirected() {
    let cases = [
        ("closed", vec![Fault::Close, Fault::Close]),
        ("cut short", vec![Fault::Cut]),
        ("overloaded", vec![Fault::Status(429, 0), Fault::Status(503, 1)]),
        ("asks for an hour", vec![Fault::Status(429, 3600)]),
        ("server errors", vec![Fault::Status(500, 0), Fault::Status(502, 0)]),
        ("slow", vec![Fault::Slow(3000)]),
        ("silent once", vec![Fault::Hang]),
    ];
    for (name, faults) in cases {
        let scene = Scene::meshed();
        scene.api.faults(&faults);
        let started = Instant::now();
        let call = scene.add().linkerd("api-retry-seconds", 8);
        let (outcome, record) = recorded(&call);
        outcome.succeeded();
        // A response after 3 s is in time.
        let retries = record["retries"].as_u64().unwrap_or_default();
        assert_eq!(retries > 0, name != "slow", "{name}: {record}");
        assert!(started.elapsed() < Duration::from_secs(80), "{name}");
        assert!(scene.rules().contains("PROXY_INIT_OUTPUT"), "{name}");
    }
}

#[test]
fn permanent_faults_fail_the_pod_within_the_retry_budget() {
    let cases = [
        ("silent", Fault::Hang, 101),
        ("closed", Fault::Close, 101),
        ("cut short", Fault::Cut, 101),
        ("one byte at a time", Fault::Drip, 101),
        ("endless body", Fault::Endless, 104),
        ("not HTTP", Fault::Garbage, 104),
        ("server error", Fault::Status(500, 0), 104),
        ("overloaded for an hour", Fault::Status(429, 3600), 104),
    ];
    for (name, fault, code) in cases {
        let scene = Scene::meshed();
        scene.api.faults(&[fault; 50]);
        // A busy machine takes long to read a body up to its limit. The others wait.
        let budget = if fault == Fault::Endless { 20 } else { 2 };
        let call = scene.add().linkerd("api-retry-seconds", budget);
        let started = Instant::now();
        let (outcome, record) = recorded(&call);
        let (got, msg) = outcome.error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(msg.starts_with("cannot read pod ns/web"), "{name}: {msg}");
        assert!(started.elapsed() < Duration::from_secs(budget + 6), "{name}");
        assert!((1..=REQUESTS_IN_2_S).contains(&requests(&record)), "{name}: {record}");
        assert_eq!(scene.rules(), "", "{name}");
    }
}

#[test]
fn errors_that_no_retry_corrects_fail_at_once() {
    let (api, other) = (meshed_api(), Api::start());
    let call =
        || Call::new("ADD", Path::new("/no/such/netns"), &api).linkerd("api-retry-seconds", 30);
    for (status, code) in [(403, 102), (404, 103), (302, 104)] {
        api.answer(super::POD_PATH, status, "{}");
        assert_fails_at_once(&call(), code);
    }
    // Another server's CA.
    let call = call();
    let wrong = other.kubeconfig().replace(&other.address.to_string(), &api.address.to_string());
    fs::write(call.kubeconfig(), wrong).unwrap();
    let outcome = assert_fails_at_once(&call, 101);
    let (_, msg) = outcome.error();
    assert!(msg.contains("certificate"), "{msg}");
    let remedy = &outcome.json()["details"];
    assert!(remedy.as_str().unwrap().contains("does not match the certificate"), "{remedy}");
}

/// Asserts that the call fails after at most one request and without a wait.
fn assert_fails_at_once(call: &Call, code: u64) -> Outcome {
    let (outcome, took) = fastest(|| {
        let (outcome, record) = recorded(call);
        let (got, msg) = outcome.error();
        assert_eq!(got, code, "{msg}");
        assert!(requests(&record) <= 1, "{record}");
        outcome
    });
    assert!(took < AT_ONCE, "{took:?}");
    outcome
}

#[test]
fn an_error_names_the_object_that_cannot_be_read() {
    let api = meshed_api();
    let call = Call::new("ADD", Path::new("/no/such/netns"), &api);
    for (path, start, requests) in [
        (super::NAMESPACE_PATH, "cannot read the namespace of pod ns/web: ", 2),
        (super::POD_PATH, "cannot read pod ns/web: ", 1),
    ] {
        api.answer(path, 404, "{}");
        let (code, msg) = call.run().error();
        assert_eq!(code, 103, "{msg}");
        assert!(msg.starts_with(start), "{msg}");
        assert!(msg.ends_with(&format!("(API requests sent: {requests})")), "{msg}");
    }
}

#[test]
fn a_retry_after_within_the_budget_is_obeyed() {
    let scene = Scene::meshed();
    scene.api.faults(&[Fault::Status(429, 3)]);
    let started = Instant::now();
    scene.add().linkerd("api-retry-seconds", 8).run().succeeded();
    assert!(started.elapsed() >= Duration::from_secs(3));
}

#[test]
fn a_server_certificate_that_is_the_ca_itself_is_trusted_for_its_name_and_lifetime_only() {
    let ca = |name: &str, last_year: i32| {
        let mut params = CertificateParams::new([name.into()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let api = Api::with(&params);
        api.answer(super::POD_PATH, 200, super::UNMESHED);
        api
    };
    let call = |api: &Api| Call::new("ADD", Path::new("/no/such/netns"), api);
    let api = ca("127.0.0.1", 4000);
    call(&api).run().succeeded();

    for (name, year, problem) in
        [("127.0.0.1", 2001, "certificate expired"), ("127.0.0.2", 4000, "not valid for name")]
    {
        let (code, msg) = call(&ca(name, year)).run().error();
        assert!(code == 101 && msg.contains(problem), "{code} {msg}");
    }
    let call = call(&api);
    let another = ca("127.0.0.1", 4000);
    let wrong =
        another.kubeconfig().replace(&another.address.to_string(), &api.address.to_string());
    fs::write(call.kubeconfig(), wrong).unwrap();
    let (code, msg) = call.run().error();
    assert!(code == 101 && msg.contains("certificate"), "{code} {msg}");
}

#[test]
fn a_kubeconfig_with_an_invalid_server_or_token_fails_at_once() {
    let api = meshed_api();
    let address = api.address.to_string();
    for (good, bad) in [
        (TOKEN, "t\u{f6}ken"),
        (TOKEN, "\"a\\nb\""),
        (&address, "127.0.0.1:1:2"),
        (&address, "a b"),
    ] {
        let call =
            Call::new("ADD", Path::new("/no/such/netns"), &api).linkerd("api-retry-seconds", 30);
        fs::write(call.kubeconfig(), api.kubeconfig().replace(good, bad)).unwrap();
        assert_fails_at_once(&call, 100);
    }
    assert_eq!(api.requests(), Vec::<String>::new());
}

#[test]
fn errors_omit_tokens_and_variables_that_a_response_quotes() {
    let api = meshed_api();
    let call = Call::new("ADD", Path::new("/no/such/netns"), &api);
    let quoted = format!("GET /\r\nauthorization: Bearer {TOKEN}\r\n");
    let status = json!({"kind": "Status", "message": quoted}).to_string();
    let env = |env: Value| {
        json!({"metadata": {}, "spec": {"containers": [{"name": "a", "env": env}]}}).to_string()
    };
    let responses = [
        (400, quoted.clone()),
        (401, status.clone()),
        (403, status.clone()),
        (500, status),
        (200, json!({"metadata": quoted}).to_string()),
        (200, env(json!(TOKEN))),
        (200, env(json!([TOKEN]))),
    ];
    for (status, body) in responses {
        api.answer(super::POD_PATH, status, &body);
        let outcome = call.run();
        let (code, msg) = outcome.error();
        assert!(matches!(code, 102 | 104), "{msg}");
        let output = outcome.stdout + &outcome.stderr;
        assert!(!output.contains(TOKEN), "{output}");
    }
}

#[test]
fn null_fields_are_read_as_missing_as_in_go() {
    let scene = Scene::meshed();
    let mut metadata = json!({"name": "web", "namespace": "ns", "uid": UID,
        "creationTimestamp": null, "annotations": null, "labels": null,
        "ownerReferences": null, "deletionTimestamp": null});
    let pod = json!({"kind": "Pod", "metadata": metadata.clone(), "spec": {
        "hostNetwork": null, "initContainers": null, "securityContext": null,
        "containers": [{"name": "linkerd-proxy", "securityContext": null,
            "env": [{"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": null}]}],
    }, "status": null});
    scene.api.answer(super::POD_PATH, 200, &pod.to_string());
    metadata["name"] = json!("ns");
    let namespace = json!({"kind": "Namespace", "metadata": metadata});
    scene.api.answer(super::NAMESPACE_PATH, 200, &namespace.to_string());
    let call = scene.add();
    call.run().succeeded();
    assert!(scene.rules().contains("PROXY_INIT_OUTPUT"));
}

#[test]
fn an_object_of_an_unexpected_kind_is_rejected() {
    let scene = Scene::meshed();
    let status = r#"{"kind":"Status","metadata":{},"status":"Failure"}"#;
    let unmeshed = r#"{"kind":"PodTemplate","metadata":{},"spec":{"containers":[{"name":"a"}]}}"#;
    for (path, answer) in
        [(super::NAMESPACE_PATH, status), (super::POD_PATH, status), (super::POD_PATH, unmeshed)]
    {
        scene.api.answer(path, 200, answer);
        scene.add().run().failed(104, "unexpected kind of object");
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn after_a_rejected_token_the_kubeconfig_is_read_once_more() {
    let scene = Scene::meshed();
    let call = scene.add();
    scene.api.accept("renewed");
    let (code, msg) = call.run().error();
    assert_eq!(code, 102, "{msg}");
    assert_eq!(scene.api.requests().len(), 1, "the same token is not tried twice");

    // The first response is slow. Meanwhile the agent writes the new token.
    scene.api.faults(&[Fault::Slow(500)]);
    let renewed = scene.api.kubeconfig().replace(TOKEN, "renewed");
    let path = call.kubeconfig();
    let call = call.linkerd("api-retry-seconds", 5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("the second request with the old token", || scene.api.requests().len() == 2);
            fs::write(path, renewed).unwrap();
        });
        call.run().succeeded();
    });
}

#[test]
fn a_pod_that_may_be_meshed_never_starts_without_rules_while_the_api_server_is_unreachable() {
    let scene = Scene::meshed();
    let call = scene.add();
    let away = scene.api.kubeconfig().replace(&scene.api.address.port().to_string(), "1");
    fs::write(call.kubeconfig(), away).unwrap();
    let meshed = call.annotated(json!({"linkerd.io/proxy-version": "edge-26.8.3"}));
    let (code, msg) = meshed.run().error();
    assert_eq!(code, 101, "{msg}");
    assert!(msg.contains("Connection refused"), "{msg}");
    assert!(msg.contains("https://127.0.0.1:1/api/v1/namespaces/ns/pods/web"), "{msg}");
    let unmeshed = meshed.annotated(json!({"kubernetes.io/config.source": "file"}));
    let (_, took) = fastest(|| unmeshed.run().succeeded());
    assert!(took < AT_ONCE, "{took:?}");
}
