//! Pods that the proxy injector marked: one API request, and none needed in an outage.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::api::{Api, Fault};
use super::record_socket::recorded;
use super::{
    Call, MESHED, NAMESPACE_PATH, POD_PATH, REQUESTS_IN_2_S, Scene, UID, UNMESHED, requests,
};

const OUT: &str = "config.linkerd.io/skip-outbound-ports";

/// The annotations that the injector sets, and `more`.
fn marked(more: &Value) -> Value {
    let mut annotations = json!({
        "linkerd.io/inject": "enabled",
        "linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    });
    let more = more.as_object().unwrap().clone();
    annotations.as_object_mut().unwrap().extend(more);
    annotations
}

/// Annotations of a pod that `linkerd inject --manual` gave a proxy.
fn unmarked() -> Value {
    json!({
        "linkerd.io/created-by": "linkerd/cli edge-26.8.3",
        "linkerd.io/proxy-version": "edge-26.8.3",
    })
}

fn pod(annotations: &Value) -> String {
    let metadata =
        json!({"name": "web", "namespace": "ns", "uid": UID, "annotations": annotations});
    json!({"metadata": metadata, "spec": {"containers": [{"name": "linkerd-proxy"}]}}).to_string()
}

/// What fails in an outage.
#[derive(Clone, Copy, Debug)]
enum Outage {
    RevokedToken,
    Forbidden,
    ServerDown,
    NoKubeconfig,
    AnotherCa,
    Fault(Fault),
}

const OUTAGES: [(Outage, u64); 10] = [
    (Outage::RevokedToken, 102),
    (Outage::Forbidden, 102),
    (Outage::ServerDown, 101),
    (Outage::NoKubeconfig, 100),
    (Outage::AnotherCa, 101),
    (Outage::Fault(Fault::Status(500, 0)), 104),
    (Outage::Fault(Fault::Status(429, 3600)), 104),
    (Outage::Fault(Fault::Hang), 101),
    (Outage::Fault(Fault::Drip), 101),
    (Outage::Fault(Fault::Garbage), 104),
];

impl Outage {
    /// Breaks `api`, which must have answered before, for `call`.
    fn begin(self, api: &Api, call: &Call) {
        match self {
            Outage::RevokedToken => api.accept("another token"),
            Outage::Forbidden => drop(api.answer(POD_PATH, 403, r#"{"message":"no"}"#)),
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
fn a_marked_pod_takes_one_request_an_unmarked_one_two_and_check_none() {
    let one = vec![format!("GET {POD_PATH}")];
    let two = vec![one[0].clone(), format!("GET {NAMESPACE_PATH}")];
    let disabled = marked(&json!({"linkerd.io/inject": "disabled"}));
    let look_alike = marked(&json!({"linkerd.io/created-by": "linkerd/proxy-injectors x"}));
    let cases = [
        (marked(&json!({})), &one),
        (unmarked(), &two),
        (disabled, &two),
        (look_alike, &two),
        // The injector does not replace a value of the pod, and an empty one does not apply.
        (marked(&json!({OUT: ""})), &two),
        (marked(&json!({OUT: "25"})), &one),
    ];
    for (annotations, requests) in cases {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, &pod(&annotations));
        for (command, requests) in [("ADD", requests), ("CHECK", &vec![])] {
            let before = scene.api.requests().len();
            scene.call(command).annotated(annotations.clone()).run().succeeded();
            let sent = &scene.api.requests()[before..];
            assert_eq!(sent, requests, "{command} {annotations}");
        }
        assert!(scene.rules().contains("PROXY_INIT_OUTPUT"), "{annotations}");
    }
}

#[test]
fn annotations_of_pods_without_proxy_cause_no_request_and_each_annotation_of_a_proxy_does() {
    const OPAQUE: &str = "config.linkerd.io/opaque-ports";
    for (annotations, is_asked) in [
        // The injector writes it on pods that it does not inject, from their ports or the namespace.
        (json!({OPAQUE: "3306"}), false),
        (json!({OPAQUE: "3306", "linkerd.io/inject": "disabled"}), false),
        // On host-network pods, and where the injector was not called.
        (json!({OPAQUE: "3306", "linkerd.io/inject": "enabled"}), false),
        (json!({OUT: "25", "config.linkerd.io/proxy-cpu-request": "1"}), false),
        (json!({"linkerd.io/created-by": "linkerd/helm edge-26.8.3"}), false),
        (json!({"linkerd.io/created-by": "linkerd/proxy-injector edge-26.8.3"}), true),
        (json!({"linkerd.io/proxy-version": "edge-26.8.3"}), true),
        (json!({"linkerd.io/trust-root-sha256": "0"}), true),
        (unmarked(), true),
    ] {
        let scene = Scene::meshed();
        let add = scene.add().annotated(annotations.clone());
        add.run().succeeded();
        assert_eq!(!scene.api.requests().is_empty(), is_asked, "{annotations}");
        let rules = scene.rules();
        assert_eq!(rules.contains("PROXY_INIT_OUTPUT"), is_asked, "{annotations}");
    }
}

#[test]
fn check_asks_the_api_server_only_if_rules_are_missing() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(unmarked());
    let of_namespace = json!({"metadata": {"name": "ns", "annotations": {OUT: "5432"}}});
    scene.api.answer(NAMESPACE_PATH, 200, &of_namespace.to_string());
    call("ADD").run().succeeded();
    assert_eq!(scene.api.requests().len(), 2);
    scene.api.answer(NAMESPACE_PATH, 200, r#"{"metadata":{"name":"ns"}}"#);
    call("CHECK").run().succeeded();
    assert_eq!(scene.api.requests().len(), 2);
    scene.run("iptables-nft", &["-t", "nat", "-F", "PROXY_INIT_OUTPUT"]);
    call("CHECK").run().failed(122, "ignore-port-5432");
    assert_eq!(scene.api.requests().len(), 4);
}

#[test]
fn a_pod_that_claims_the_mark_without_a_proxy_is_skipped_while_the_api_server_answers() {
    let init = pod(&json!({}))
        .replace(r#""containers""#, r#""initContainers":[{"name":"linkerd-init"}],"containers""#);
    for body in [UNMESHED, &init] {
        let scene = Scene::meshed();
        scene.api.answer(POD_PATH, 200, body);
        let add = scene.add().annotated(marked(&json!({})));
        add.run().succeeded();
        assert_eq!(scene.api.requests().len(), 1);
        assert_eq!(scene.rules(), "");
    }
}

#[test]
fn in_an_outage_marked_pods_start_redirected_and_all_others_fail_without_a_rule() {
    for (outage, code) in OUTAGES {
        let scene = Scene::meshed();
        let add = |annotations: Option<Value>| {
            let call = scene.add().linkerd("api-retry-seconds", 3).set("log_level", "warn");
            match annotations {
                Some(annotations) => call.annotated(annotations),
                None => call,
            }
        };
        for annotations in [Some(unmarked()), None] {
            let call = add(annotations);
            outage.begin(&scene.api, &call);
            let (got, msg) = call.run().error();
            assert_eq!(got, code, "{outage:?}: {msg}");
            assert_eq!(scene.rules(), "", "{outage:?}");
        }

        let call = add(Some(marked(&json!({OUT: "5432"})))).linkerd("api-retry-seconds", 60);
        outage.begin(&scene.api, &call);
        let begin = Instant::now();
        let (outcome, record) = recorded(&call);
        let outcome = outcome.succeeded();
        println!("{outage:?}: {:.1?}", begin.elapsed());
        // Well below the budget of 60 s.
        assert!(begin.elapsed() < Duration::from_secs(30), "{outage:?}");
        let rules = scene.rules();
        assert!(rules.contains("ignore-port-5432"), "{outage:?}");
        assert!(rules.contains(" skip-out=5432 guessed\""), "{outage:?}: {rules}");
        assert_eq!(record["decision"], "redirected", "{record}");
        assert_eq!(record["pod_uid"], UID, "{record}");
        assert_eq!(record["degraded"]["code"], code, "{record}");
        assert!(requests(&record) <= REQUESTS_IN_2_S, "{outage:?}: {record}");
        assert!(!record.to_string().contains(super::api::TOKEN));
        let said = "annotations and plugin entry alone were used: ";
        assert!(outcome.stderr.contains(said), "{outage:?}: {}", outcome.stderr);
    }
}

#[test]
fn check_after_an_outage_succeeds_if_the_pod_object_yields_other_rules_than_add_guessed() {
    let scene = Scene::meshed();
    let call = |command| scene.call(command).annotated(marked(&json!({})));
    let add = call("ADD");
    Outage::NoKubeconfig.begin(&scene.api, &add);
    add.run().succeeded();
    let security = r#"{"name":"linkerd-proxy","securityContext":{"runAsUser":3000}}"#;
    let of_another_uid = MESHED.replace(r#"{"name":"linkerd-proxy"}"#, security);
    scene.api.answer(POD_PATH, 200, &of_another_uid);
    call("CHECK").run().succeeded();
    scene.run("iptables-nft", &["-t", "nat", "-F", "PROXY_INIT_OUTPUT"]);
    assert_eq!(call("CHECK").run().error().0, 122);
}

#[test]
fn a_marked_pod_that_the_api_server_does_not_know_or_has_replaced_fails() {
    let scene = Scene::meshed();
    let replaced = MESHED.replace("0001\"", "0002\"");
    for (status, body) in [(404, "{}"), (200, &*replaced)] {
        scene.api.answer(POD_PATH, status, body);
        let add = scene.add().annotated(marked(&json!({})));
        assert_eq!(add.run().error().0, 103);
    }
    assert_eq!(scene.rules(), "");
}

#[test]
fn in_an_outage_an_invalid_annotation_or_plugin_entry_still_fails_a_marked_pod() {
    let scene = Scene::meshed();
    scene.api.accept("another token");
    let add = |annotations| scene.add().annotated(annotations);
    let invalid = add(marked(&json!({"config.linkerd.io/proxy-uid": "x"})));
    assert_eq!(invalid.run().error().0, 110);
    let entry = add(marked(&json!({}))).linkerd("proxy-uid", "2102");
    assert_eq!(entry.run().error().0, 7);
    assert_eq!(scene.rules(), "");
}

#[test]
fn in_an_outage_check_succeeds_and_reports_rules_that_it_cannot_judge() {
    for (outage, code) in OUTAGES {
        for annotations in [Some(marked(&json!({}))), Some(unmarked()), None] {
            let scene = Scene::meshed();
            let call = |command| {
                let call = scene.call(command).linkerd("api-retry-seconds", 60);
                match &annotations {
                    Some(annotations) => call.annotated(annotations.clone()),
                    None => call,
                }
            };
            call("ADD").run().succeeded();
            let check = call("CHECK");
            outage.begin(&scene.api, &check);
            for is_intact in [true, false] {
                let begin = Instant::now();
                let (outcome, record) = recorded(&check);
                assert_eq!(outcome.succeeded().stdout, "");
                // Well below the budget of 60 s.
                assert!(begin.elapsed() < Duration::from_secs(30), "{outage:?}");
                assert_eq!(record["decision"], "checked", "{record}");
                // Rules that follow from the annotations need no API server.
                let is_proven = annotations.is_some() && is_intact;
                let degraded = (!is_proven).then_some(code);
                assert_eq!(record["degraded"]["code"].as_u64(), degraded, "{outage:?}: {record}");
                assert!(requests(&record) <= REQUESTS_IN_2_S, "{outage:?}: {record}");
                if is_intact {
                    scene.run("iptables-nft", &["-t", "nat", "-D", "PROXY_INIT_OUTPUT", "2"]);
                }
            }
        }
    }
}
