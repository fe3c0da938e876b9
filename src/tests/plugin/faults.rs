//! Tests with API servers that hang, truncate responses, respond slowly, reject requests, or are
//! not the server in the kubeconfig.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, date_time_ymd};
use serde_json::{Value, json};
use testkit::chart::yaml;
use testkit::table;

use super::api::{ApiFault, TOKEN};
use super::record_socket::run_and_record;
use super::until::until;
use super::{
    AT_ONCE, Api, Call, NAMESPACE_PATH, Outcome, POD_PATH, Scene, UNMESHED, measure_fastest,
    request_count, run_in_parallel, start_meshed_api,
};

#[test]
fn temporary_faults_are_retried_until_the_pod_is_redirected() {
    let cases = [
        ("closed", vec![ApiFault::Close, ApiFault::Close]),
        ("cut short", vec![ApiFault::Cut]),
        ("overloaded", vec![ApiFault::Status(429, 0), ApiFault::Status(503, 1)]),
        ("asks for 3 s", vec![ApiFault::Status(429, 3)]),
        ("asks for an hour", vec![ApiFault::Status(429, 3600)]),
        ("server errors", vec![ApiFault::Status(500, 0), ApiFault::Status(502, 0)]),
        ("slow", vec![ApiFault::Slow(3000)]),
        ("silent once", vec![ApiFault::Hang]),
    ];
    run_in_parallel(cases, |(name, faults)| {
        let scene = Scene::meshed();
        scene.api.faults(&faults);
        let started = Instant::now();
        let call = scene.add().linkerd("api-retry-seconds", 8);
        let (outcome, record) = run_and_record(&call);
        outcome.succeeded();
        // A response after 3 s is in time, so the request is not retried.
        let retries = record["retries"].as_u64().unwrap_or_default();
        assert_eq!(retries > 0, name != "slow", "{name}: {record}");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(80), "{name}: {took:?}");
        assert!(took >= Duration::from_secs(3) || name != "asks for 3 s", "{took:?}");
        assert!(scene.has_rules(), "{name}");
    });
}

#[test]
fn endless_response_is_rejected_at_the_size_limit() {
    let scene = Scene::meshed();
    scene.api.faults(&[ApiFault::Endless; 50]);
    // A busy machine takes long to read a body up to the limit.
    scene.add().linkerd("api-retry-seconds", 20).run().failed(104, "cannot read pod ns/web");
    assert_eq!(scene.rules(), "");
}

/// Asserts that the call fails without a pause, and after at most `max_requests` requests.
pub fn assert_fails_at_once(call: &Call, max_requests: u64, code: u64, text: &str) -> Outcome {
    let (outcome, took) = measure_fastest(|| {
        let (outcome, record) = run_and_record(call);
        outcome.failed(code, text);
        assert!(request_count(&record) <= max_requests, "{record}");
        outcome
    });
    assert!(took < AT_ONCE, "{took:?}");
    outcome
}

/// Starts a server whose certificate is a CA for `name` that expires at the start of `expiry_year`.
fn api_with_ca(name: &str, expiry_year: i32) -> Api {
    let mut params = CertificateParams::new([name.into()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = date_time_ymd(expiry_year, 1, 1);
    let api = Api::with_certificate(&params);
    api.answer(POD_PATH, 200, UNMESHED);
    api
}

#[test]
fn server_certificate_that_is_a_ca_is_trusted_only_for_its_name_and_lifetime() {
    let call = |api: &Api| Call::new("ADD", Path::new("/no/such/netns"), api);
    call(&api_with_ca("127.0.0.1", 4000)).run().succeeded();
    for (name, year, problem) in
        [("127.0.0.1", 2001, "certificate expired"), ("127.0.0.2", 4000, "not valid for name")]
    {
        call(&api_with_ca(name, year)).run().failed(101, problem);
    }
}

#[test]
fn server_certificate_from_another_ca_fails_at_once_with_a_remedy() {
    let with_ca = || api_with_ca("127.0.0.1", 4000);
    for (_name, (api, other)) in table::named([
        ("a certificate of its own", (start_meshed_api(), Api::start())),
        ("a certificate of a CA", (with_ca(), with_ca())),
    ]) {
        let call = Call::new("ADD", Path::new("/no/such/netns"), &api);
        let wrong =
            other.kubeconfig().replace(&other.address.to_string(), &api.address.to_string());
        fs::write(call.kubeconfig(), wrong).unwrap();
        let call = call.linkerd("api-retry-seconds", 30);
        let outcome = assert_fails_at_once(&call, 1, 101, "certificate");
        outcome.advises("does not match the certificate");
    }
}

#[test]
fn kubeconfig_with_an_invalid_server_or_token_fails_at_once() {
    let api = start_meshed_api();
    let address = api.address.to_string();
    for (_name, (good, bad)) in table::named([
        ("a token that is not ASCII", (TOKEN, "t\u{f6}ken")),
        ("a token with a line feed", (TOKEN, "\"a\\nb\"")),
        ("an address with two ports", (&address, "127.0.0.1:1:2")),
        ("an address with a blank", (&address, "a b")),
    ]) {
        let call =
            Call::new("ADD", Path::new("/no/such/netns"), &api).linkerd("api-retry-seconds", 30);
        fs::write(call.kubeconfig(), api.kubeconfig().replace(good, bad)).unwrap();
        assert_fails_at_once(&call, 1, 100, "");
    }
    assert_eq!(api.requests(), Vec::<String>::new());
}

#[test]
fn errors_do_not_repeat_tokens_or_variables_from_a_response() {
    let api = start_meshed_api();
    let call = Call::new("ADD", Path::new("/no/such/netns"), &api).linkerd("api-retry-seconds", 1);
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
        api.answer(POD_PATH, status, &body);
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
    let objects = yaml(include_str!("null_fields.yaml"));
    scene.api.answer(POD_PATH, 200, &objects["pod"].to_string());
    scene.api.answer(NAMESPACE_PATH, 200, &objects["namespace"].to_string());
    scene.add().run().succeeded();
    assert!(scene.has_rules());
}

#[test]
fn kubeconfig_is_read_again_after_a_rejected_token() {
    let scene = Scene::meshed();
    let call = scene.add();
    scene.api.accept("renewed");
    call.run().failed(102, "");
    assert_eq!(scene.api.requests().len(), 1, "the same token is not tried twice");

    // The first response is slow. The agent writes the new token meanwhile.
    scene.api.faults(&[ApiFault::Slow(500)]);
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
