//! An API server that hangs, cuts, drips, refuses or is another one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::api::Fault;
use super::namespaces::Namespaces;
use super::{Api, Call, meshed_api};

#[test]
fn faults_that_pass_are_waited_out_and_the_pod_is_redirected() {
    let cases = [
        ("closed", vec![Fault::Close, Fault::Close]),
        ("cut short", vec![Fault::Cut]),
        ("busy", vec![Fault::Status(429, 0), Fault::Status(503, 1)]),
        ("an hour's wait", vec![Fault::Status(429, 3600)]),
        (
            "server errors",
            vec![Fault::Status(500, 0), Fault::Status(502, 0)],
        ),
        ("slow", vec![Fault::Slow(3000)]),
        ("silent once", vec![Fault::Hang]),
    ];
    for (name, faults) in cases {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        api.faults(&faults);
        let started = Instant::now();
        Call::new("ADD", &namespaces.path(), &api)
            .linkerd("api-retry-seconds", json!(8))
            .run()
            .succeeded();
        assert!(started.elapsed() < Duration::from_secs(9), "{name}");
        assert!(
            namespaces.nat("iptables-nft").contains("PROXY_INIT_OUTPUT"),
            "{name}"
        );
    }
}

#[test]
fn faults_that_stay_fail_the_pod_within_the_budget() {
    let cases = [
        ("silent", Fault::Hang, 101),
        ("closed", Fault::Close, 101),
        ("cut short", Fault::Cut, 101),
        ("dripping", Fault::Drip, 101),
        ("server error", Fault::Status(500, 0), 104),
        ("busy for an hour", Fault::Status(429, 3600), 104),
    ];
    for (name, fault, code) in cases {
        let (api, namespaces) = (meshed_api(), Namespaces::new());
        api.faults(&[fault; 50]);
        let started = Instant::now();
        let (got, msg) = Call::new("ADD", &namespaces.path(), &api).run().error();
        assert_eq!(got, code, "{name}: {msg}");
        assert!(started.elapsed() < Duration::from_millis(2500), "{name}");
        assert_eq!(namespaces.nat("iptables-nft"), "", "{name}");
    }
}

#[test]
fn what_stays_as_it_is_fails_at_once() {
    let (api, other) = (meshed_api(), Api::start());
    let call = || {
        Call::new("ADD", Path::new("/no/such/netns"), &api).linkerd("api-retry-seconds", json!(30))
    };
    let started = Instant::now();
    for (status, code) in [(403, 102), (404, 103), (302, 104)] {
        api.answer(super::POD_PATH, status, "{}");
        assert_eq!(call().run().error().0, code, "{status}");
    }
    // Another server's CA.
    let call = call();
    let wrong = other
        .kubeconfig()
        .replace(&other.address.to_string(), &api.address.to_string());
    fs::write(call.kubeconfig(), wrong).unwrap();
    let (code, msg) = call.run().error();
    assert_eq!(code, 101, "{msg}");
    assert!(msg.contains("certificate"), "{msg}");
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_refused_token_is_looked_up_once_more() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let call = Call::new("ADD", &namespaces.path(), &api);
    api.accept("renewed");
    let (code, msg) = call.run().error();
    assert_eq!(code, 102, "{msg}");
    assert_eq!(api.requests().len(), 1, "the same token is not tried twice");

    // The first answer is slow, and meanwhile the agent writes the new token.
    api.faults(&[Fault::Slow(500)]);
    let renewed = api.kubeconfig().replace(super::api::TOKEN, "renewed");
    let path = call.kubeconfig();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        fs::write(path, renewed).unwrap();
    });
    let call = call.linkerd("api-retry-seconds", json!(5));
    call.run().succeeded();
    writer.join().unwrap();
}

#[test]
fn a_pod_that_may_be_meshed_never_starts_bare_while_the_api_server_is_away() {
    let (api, namespaces) = (meshed_api(), Namespaces::new());
    let call = Call::new("ADD", &namespaces.path(), &api);
    let away = api
        .kubeconfig()
        .replace(&api.address.port().to_string(), "1");
    fs::write(call.kubeconfig(), away).unwrap();
    let meshed = call.annotated(json!({"linkerd.io/proxy-version": "edge-26.8.3"}));
    let (code, msg) = meshed.run().error();
    assert_eq!(code, 101, "{msg}");
    assert!(msg.contains("Connection refused"), "{msg}");
    let unmeshed = meshed.annotated(json!({"kubernetes.io/config.source": "file"}));
    let started = Instant::now();
    unmeshed.run().succeeded();
    assert!(started.elapsed() < Duration::from_millis(500));
}
