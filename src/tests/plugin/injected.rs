//! Tests outages of the API server. Pods whose annotations name the proxy injector start with
//! redirect rules. Other meshed pods fail. The module `decisions` tests the number of requests.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::table;

use super::api::{Api, ApiFault, TOKEN};
use super::record_socket::run_and_record;
use super::{
    Call, MESHED, NAMESPACE_PATH, POD_PATH, REQUESTS_IN_2_S, Scene, UID, request_count,
    run_in_parallel,
};

const SKIP_OUTBOUND: &str = "config.linkerd.io/skip-outbound-ports";

/// Returns the annotations that the proxy injector sets, and `more`.
pub fn injector_annotations(more: &Value) -> Value {
    let mut annotations = json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    });
    let more = more.as_object().unwrap().clone();
    annotations.as_object_mut().unwrap().extend(more);
    annotations
}

/// Returns the annotations that `linkerd inject --manual` sets, which do not name the proxy
/// injector.
pub fn manual_annotations() -> Value {
    json!({
        "linkerd.io/created-by": "linkerd/cli edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    })
}

/// What fails in an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    RevokedToken,
    Forbidden,
    ServerDown,
    NoKubeconfig,
    AnotherCa,
    Fault(ApiFault),
}

/// Outages, each with the code and text of its error.
const OUTAGES: [(Outage, u64, &str); 12] = [
    (Outage::RevokedToken, 102, "HTTP 401"),
    (Outage::Forbidden, 102, "HTTP 403"),
    (Outage::ServerDown, 101, "https://127.0.0.1:1/api/v1/namespaces/ns/pods/web"),
    (Outage::NoKubeconfig, 100, "cannot read"),
    (Outage::AnotherCa, 101, "certificate"),
    (Outage::Fault(ApiFault::Status(500, 0)), 104, "HTTP 500"),
    (Outage::Fault(ApiFault::Status(429, 3600)), 104, "HTTP 429"),
    (Outage::Fault(ApiFault::Hang), 101, ""),
    (Outage::Fault(ApiFault::Drip), 101, ""),
    (Outage::Fault(ApiFault::Close), 101, ""),
    (Outage::Fault(ApiFault::Cut), 101, ""),
    (Outage::Fault(ApiFault::Garbage), 104, ""),
];

impl Outage {
    /// Starts the outage of `api` for `call`.
    fn begin(self, api: &Api, call: &Call) {
        match self {
            Outage::RevokedToken => api.accept("another token"),
            Outage::Forbidden => drop(api.refuse(POD_PATH, 403)),
            Outage::NoKubeconfig => fs::remove_file(call.kubeconfig()).unwrap(),
            Outage::ServerDown => {
                let kubeconfig = api.kubeconfig().replace(&api.address.port().to_string(), "1");
                fs::write(call.kubeconfig(), kubeconfig).unwrap();
            }
            Outage::AnotherCa => {
                let other = Api::start();
                let own = api.address.to_string();
                let kubeconfig = other.kubeconfig().replace(&other.address.to_string(), &own);
                fs::write(call.kubeconfig(), kubeconfig).unwrap();
            }
            Outage::Fault(fault) => drop(api.faults(&[fault; 100])),
        }
    }
}

#[test]
fn check_sends_a_request_only_if_no_rule_has_a_marker() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(manual_annotations());
    let namespace = json!({"metadata": {"name": "ns", "annotations": {SKIP_OUTBOUND: "5432"}}});
    scene.api.answer(NAMESPACE_PATH, 200, &namespace.to_string());
    call("ADD").run().succeeded();
    scene.api.answer(NAMESPACE_PATH, 200, r#"{"metadata":{"name":"ns"}}"#);
    call("CHECK").run().succeeded();
    scene.run("iptables-nft", &["-t", "nat", "-F", "PROXY_INIT_OUTPUT"]);
    call("CHECK").run().failed(122, "ignore-port-5432");
    assert_eq!(scene.api.requests().len(), 2);
    scene.run("iptables-nft", &["-t", "nat", "-F"]);
    call("CHECK").run().failed(122, "");
    assert_eq!(scene.api.requests().len(), 4);
}

#[test]
fn only_pods_that_name_the_injector_start_in_an_outage_and_are_redirected() {
    run_in_parallel(OUTAGES, |(outage, code, text)| {
        let scene = Scene::meshed();
        let add = |annotations: Option<Value>, budget| {
            let call = scene.add().linkerd("api-retry-seconds", budget).set("log_level", "warn");
            call.annotated(annotations)
        };
        for annotations in [Some(manual_annotations()), None] {
            let call = add(annotations, 2);
            outage.begin(&scene.api, &call);
            let begin = Instant::now();
            let (outcome, record) = run_and_record(&call);
            let (_, msg) = outcome.failed(code, text).error();
            let is_file = outage == Outage::NoKubeconfig;
            assert!(is_file || msg.starts_with("cannot read pod ns/web"), "{outage:?}: {msg}");
            assert!(begin.elapsed() < Duration::from_secs(20), "{outage:?}");
            assert!(request_count(&record) <= REQUESTS_IN_2_S, "{outage:?}: {record}");
            assert_eq!(scene.rules(), "", "{outage:?}");
        }

        let call = add(Some(injector_annotations(&json!({SKIP_OUTBOUND: "5432"}))), 60);
        outage.begin(&scene.api, &call);
        let begin = Instant::now();
        let (outcome, record) = run_and_record(&call);
        println!("{outage:?}: {:.1?}", begin.elapsed());
        // Well below the budget of 60 s.
        assert!(begin.elapsed() < Duration::from_secs(30), "{outage:?}");
        outcome.succeeded().logs("the plugin used only the annotations and the plugin entry: ");
        let rules = scene.rules();
        assert!(rules.contains("ignore-port-5432"), "{outage:?}");
        assert!(rules.contains(" skip-out=5432 guessed\""), "{outage:?}: {rules}");
        assert_eq!(record["decision"], "redirected", "{record}");
        assert_eq!(record["pod_uid"], UID, "{record}");
        assert_eq!(record["degraded"]["code"], code, "{record}");
        assert!(request_count(&record) <= REQUESTS_IN_2_S, "{outage:?}: {record}");
        assert!(!record.to_string().contains(TOKEN));
    });
}

#[test]
fn check_accepts_guessed_rules_after_an_outage() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(injector_annotations(&json!({})));
    let add = call("ADD");
    Outage::NoKubeconfig.begin(&scene.api, &add);
    add.run().succeeded();
    let security = r#"{"name":"linkerd-proxy","securityContext":{"runAsUser":3000}}"#;
    let of_another_uid = MESHED.replace(r#"{"name":"linkerd-proxy"}"#, security);
    scene.api.answer(POD_PATH, 200, &of_another_uid);
    call("CHECK").run().succeeded();
    scene.run("iptables-nft", &["-t", "nat", "-F", "PROXY_INIT_OUTPUT"]);
    call("CHECK").run().failed(122, "");
}

#[test]
fn injected_pod_that_was_deleted_or_replaced_fails() {
    let scene = Scene::meshed();
    let replaced = MESHED.replace("0001\"", "0002\"");
    let gone = r#"{"kind":"Status","reason":"NotFound","message":"pods \"web\" not found"}"#;
    for (_name, (status, body)) in
        table::named([("gone", (404, gone)), ("replaced", (200, &*replaced))])
    {
        scene.api.answer(POD_PATH, status, body);
        scene.add().annotated(injector_annotations(&json!({}))).run().failed(103, "");
    }
    assert_eq!(scene.rules(), "");
}

/// The ADD of a meshed pod would fail, and the agent would take the pod for a deleted one.
#[test]
fn a_proxys_404_does_not_show_that_a_marked_pod_is_gone() {
    let scene = Scene::meshed();
    scene.api.answer(POD_PATH, 404, "<html>404 page not found</html>");
    scene.add().annotated(injector_annotations(&json!({}))).run().succeeded();
    assert!(scene.has_rules());
}

#[test]
fn invalid_annotation_or_plugin_entry_fails_an_injected_pod_in_an_outage() {
    let scene = Scene::meshed();
    scene.api.accept("another token");
    let add = |annotations| scene.add().annotated(annotations);
    add(injector_annotations(&json!({"config.linkerd.io/proxy-uid": "x"}))).run().failed(110, "");
    add(injector_annotations(&json!({}))).linkerd("proxy-uid", "2102").run().failed(7, "");
    assert_eq!(scene.rules(), "");
}

#[test]
fn check_succeeds_in_an_outage_even_if_no_rule_has_a_marker() {
    run_in_parallel(OUTAGES, |(outage, code, ..)| {
        for annotations in [Some(manual_annotations()), None] {
            let scene = Scene::meshed();
            let call = |command| {
                let call = scene.call(command).linkerd("api-retry-seconds", 60);
                call.annotated(annotations.clone())
            };
            call("ADD").run().succeeded();
            let check = call("CHECK");
            outage.begin(&scene.api, &check);
            for degraded in [None, Some(code)] {
                let begin = Instant::now();
                let (outcome, record) = run_and_record(&check);
                assert_eq!(outcome.succeeded().stdout, "");
                // Well below the budget of 60 s.
                assert!(begin.elapsed() < Duration::from_secs(30), "{outage:?}");
                assert_eq!(record["decision"], "checked", "{record}");
                assert_eq!(record["degraded"]["code"].as_u64(), degraded, "{outage:?}: {record}");
                assert!(request_count(&record) <= REQUESTS_IN_2_S, "{outage:?}: {record}");
                scene.sh("iptables-nft -t nat -F");
            }
        }
    });
}
