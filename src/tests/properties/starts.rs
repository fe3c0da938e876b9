//! Decides on random pods: a pod with a proxy is skipped only for a documented reason.

use linkerd2_cni::pod::Decision;
use linkerd2_cni::pod::annotation::{self, Annotations};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use testkit::chart::yaml;

use crate::decision::{API_ERRORS, COPY_STATES, CopyState, EXCLUDED, Start};
use crate::property_config;
use crate::{list_like_text, namespace_name, pod_name};

const CONTAINERS: [&str; 4] = ["app", "linkerd-proxy", "linkerd-init", "linkerd-proxy-2"];

/// Reads the `keys` or `values` of annotations from `starts.yaml`.
fn read_texts(kind: &str) -> Vec<String> {
    let texts = yaml(include_str!("starts.yaml"))[kind].take();
    serde_json::from_value(texts).unwrap()
}

fn annotations() -> impl Strategy<Value = Annotations> {
    let mut keys = read_texts("keys");
    keys.extend(annotation::TABLE.iter().map(|row| row.key.to_owned()));
    let value = prop_oneof![4 => select(read_texts("values")), 1 => list_like_text()];
    btree_map(select(keys), value, 0..5)
}

prop_compose! {
    fn start()(
        namespace in prop_oneof![namespace_name(), select(vec![EXCLUDED, "linkerd-cni"]).prop_map(str::to_owned)],
        name in prop_oneof![pod_name(), "linkerd-cni-[a-z0-9-]{0,5}[a-z0-9]"],
        (annotations, namespace_annotations) in (annotations(), annotations()),
        containers in vec(select(CONTAINERS.to_vec()), 1..3),
        init_containers in vec(select(CONTAINERS.to_vec()), 0..2),
        (has_capability, strict) in (any::<bool>(), any::<bool>()),
        copy in select(COPY_STATES.to_vec()),
        api_error in option::weighted(0.3, select(API_ERRORS.to_vec())),
    ) -> Start {
        Start {
            namespace, name, annotations, containers, init_containers, has_capability, strict,
            copy, namespace_annotations, api_error,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..property_config() })]

    #[test]
    fn pod_with_a_proxy_is_skipped_only_for_a_documented_reason(start in start()) {
        start.assert_not_bare();
    }

    #[test]
    fn node_copy_and_pod_object_lead_to_the_same_decision(
        start in start(),
    ) {
        let start_by_object =
            Start { has_capability: false, copy: CopyState::Unkept, api_error: None, ..start.clone() };
        let start_by_copy = Start { copy: CopyState::Published, ..start };
        assert_eq!(start_by_copy.decide(), start_by_object.decide());
    }
}

/// The properties above would prove nothing if all pods failed or were skipped.
#[test]
fn pods_are_redirected_skipped_or_fail_depending_on_the_input() {
    let start = |annotations: &[(&str, &str)], containers: &[&'static str]| Start {
        namespace: "ns".to_owned(),
        name: "web".to_owned(),
        annotations: annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        containers: containers.to_vec(),
        init_containers: Vec::new(),
        has_capability: true,
        strict: false,
        copy: CopyState::Unkept,
        namespace_annotations: Annotations::new(),
        api_error: None,
    };
    let enabled = [("linkerd.io/proxy-version", "edge-26.1.1")];
    let injected = [("linkerd.io/created-by", "linkerd/proxy-injector v1")];
    let meshed = start(&enabled, &["app", "linkerd-proxy"]);
    assert!(matches!(meshed.decide(), Ok(Decision::Redirect(_))));
    assert!(matches!(start(&enabled, &["app"]).decide(), Ok(Decision::Skip(_))));
    let with_outage = |start: Start| Start { api_error: Some(API_ERRORS[1]), ..start };
    assert!(matches!(with_outage(meshed).decide(), Err(error) if error.failure == API_ERRORS[1]));
    assert!(matches!(
        with_outage(start(&injected, &["linkerd-proxy"])).decide(),
        Ok(Decision::Redirect(_))
    ));
}
