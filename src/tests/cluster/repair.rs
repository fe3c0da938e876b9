//! Pods that started before the plugin was installed, and pods that lost their redirect rules.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kubectl::{command, kubectl};
use crate::node::{self, netns_of};
use crate::pods::{self, Pods};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};
use crate::{agent, api, events};

/// Seconds between two audits.
const PERIOD: u64 = 3;

/// Longest wait for an audit, an eviction or its retry after a minute. It is long, because the
/// machine may be busy.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn stranded_pods_are_reported_or_repaired_in_place_and_audited() {
    let scene = Scene::begin();
    let helm = &scene.helm;
    let pods = &scene.pods;
    pods.start(&[pods::unmeshed("client")]);
    pods.create(&[pods::validated("stranded", "1s")]);
    pods.until_stranded("stranded");
    let uid = pods.uid("stranded");

    helm.run("install", &[&set("report", 0)]);
    until("the Event on the pod", || {
        !events::list("stranded", "LinkerdCNINotConfigured").is_empty()
    });

    helm.run("upgrade", &[&set("in-place", PERIOD)]);
    pods.until_ready("stranded");
    assert_eq!(pods.uid("stranded"), uid, "the same pod");
    pods.assert_answers("client", "stranded", "proxy-inbound");

    // Another pod, as the controller ignores a repaired pod for a minute.
    pods.start(&[pods::meshed("audited")]);
    let uid = pods.uid("audited");
    let ip = pods.ip("audited");
    pods.assert_answers("client", "audited", "proxy-inbound");
    netns_of(&ip).must(&["nft", "flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_REDIRECT"]);
    until_within(LIMIT, "the Event on the audited pod", || {
        !events::list("audited", "LinkerdCNIRulesMissing").is_empty()
    });
    pods.assert_answers("client", "audited", "proxy-inbound");
    assert_eq!(pods.uid("audited"), uid, "the same pod");
    scene.remove();
}

/// The StatefulSet `evicted` with one meshed pod, in the namespace of this name.
pub fn stateful_set() -> Value {
    let mut pod = pods::meshed("evicted");
    pod["metadata"]["labels"]["app"] = json!("evicted");
    let metadata = json!({
        "labels": pod["metadata"]["labels"],
        "annotations": pod["metadata"]["annotations"],
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "evicted", "namespace": "evicted"},
        "spec": {
            "replicas": 1,
            "serviceName": "evicted",
            "selector": {"matchLabels": {"app": "evicted"}},
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    })
}

pub fn disruption_budget(name: &str, max_unavailable: u32) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "evicted"},
        "spec": {
            "maxUnavailable": max_unavailable,
            "selector": {"matchLabels": {"app": "evicted"}},
        },
    })
}

/// Waits until an Event says why the pod is not evicted. Asserts that the pod stays.
fn until_reported(pods: &Pods, uid: &str, reason: &str) {
    until_within(LIMIT, reason, || {
        events::messages("evicted", "LinkerdCNIRulesMissing").contains(reason)
    });
    let metadata = &pods.pod("evicted")["metadata"];
    assert_eq!(metadata["uid"], uid, "the same pod");
    assert_eq!(metadata["deletionTimestamp"], Value::Null);
}

/// The API server rejects the eviction of a pod with two disruption budgets with status 500.
#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn running_pod_is_evicted_once_its_disruption_budgets_allow_it() {
    let scene = Scene::installed(&[&set("delete", PERIOD)]);
    let pods = &scene.pods;
    pods.create(&[stateful_set()]);
    pods.until_ready("evicted");
    let uid = pods.uid("evicted");
    api::create(&disruption_budget("none", 0));
    api::create(&disruption_budget("one", 1));
    let netns = netns_of(&pods.ip("evicted"));
    netns.must(&["nft", "flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_REDIRECT"]);

    until_reported(pods, &uid, "This pod has more than one PodDisruptionBudget");
    kubectl("delete poddisruptionbudget one -n evicted");
    until_reported(pods, &uid, "it would violate the pod's disruption budget");
    kubectl("delete poddisruptionbudget none -n evicted");
    until_within(LIMIT, "the pod is replaced", || {
        let current = pods.uid("evicted");
        !current.is_empty() && current != uid
    });
    pods.until_ready("evicted");
    let events = events::messages("evicted", "LinkerdCNIRulesMissing");
    assert!(events.contains("Deleting pod to create a new one"), "{events}");
    scene.remove();
}

#[test]
fn agent_removes_startup_taint_when_ready_and_plugin_with_its_daemonset() {
    let scene = Scene::begin();
    let helm = &scene.helm;
    let tainted_node = taint_node();
    helm.run("install", &[&format!("--set=startupTaint={KEY}")]);
    until("the taint is removed", || !node::list()[0]["spec"]["taints"].to_string().contains(KEY));
    let log = agent::log();
    let self_test = log.find("self-test passed");
    let removal = log.find("removed the startup taint");
    assert!(self_test.is_some() && self_test < removal, "{log}");
    drop(tainted_node);

    // docs/uninstall.md has this command for accounts whose permissions are deleted first.
    kubectl("delete daemonset linkerd-cni -n linkerd-cni --cascade=foreground --timeout=60s");
    assert!(!Path::new("/opt/cni/bin/linkerd-cni").exists());
    scene.remove();
}

const KEY: &str = "linkerd.io/cni-not-ready";

/// Taints the node until the returned value is dropped.
fn taint_node() -> OnDrop<impl FnMut()> {
    kubectl(&format!("taint node --all {KEY}=:NoSchedule"));
    OnDrop(|| {
        let _ = command(&format!("taint node --all {KEY}-")).output();
    })
}

/// Returns the argument of helm that sets the repair mode and the seconds between two audits.
pub fn set(mode: &str, audit: u64) -> String {
    format!(
        "--set=repairController.enabled=true,repairController.mode={mode},\
         repairController.auditIntervalSeconds={audit}"
    )
}
