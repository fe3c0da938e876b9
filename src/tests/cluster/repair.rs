//! Pods that started before the plugin was installed, and pods that lost their redirect rules.

use std::path::Path;
use std::time::Duration;

use crate::node::netns_of;
use crate::pods::{self, command, field, kubectl};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};

const PERIOD: u64 = 3;

#[test]
fn stranded_pods_are_reported_or_repaired_in_place_and_audited() {
    let scene = Scene::begin();
    let Scene { helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    pods.create(&[pods::validated("stranded", "1s")]);
    pods.until_stranded("stranded");
    let uid = pods.field("stranded", ".metadata.uid");

    helm.run("install", &[&set("report", 0)]);
    until("the Event on the pod", || {
        !pods::events("stranded", "LinkerdCNINotConfigured").is_empty()
    });

    helm.run("upgrade", &[&set("in-place", PERIOD)]);
    pods.until_ready("stranded");
    assert_eq!(pods.field("stranded", ".metadata.uid"), uid, "the same pod");
    pods.assert_answers("client", "stranded", "proxy-inbound");

    // Another pod, as the controller ignores a repaired pod for a minute.
    pods.start(&[pods::meshed("audited")]);
    let uid = pods.field("audited", ".metadata.uid");
    let ip = pods.ip("audited");
    pods.assert_answers("client", "audited", "proxy-inbound");
    netns_of(&ip).must(&["nft", "flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_REDIRECT"]);
    until_within(Duration::from_secs(20 * PERIOD), "the Event on the audited pod", || {
        !pods::events("audited", "LinkerdCNIRulesMissing").is_empty()
    });
    pods.assert_answers("client", "audited", "proxy-inbound");
    assert_eq!(pods.field("audited", ".metadata.uid"), uid, "the same pod");
    scene.remove();
}

#[test]
fn startup_taint_is_removed_when_ready_and_plugin_with_the_daemonset() {
    let scene = Scene::begin();
    let Scene { helm, .. } = &scene;
    let tainted_node = tainted();
    helm.run("install", &[&format!("--set=startupTaint={KEY}")]);
    let taints = || field("node", ".items[0].spec.taints[*].key");
    until("the taint is removed", || !taints().contains(KEY));
    let log = kubectl("logs -n linkerd-cni daemonset/linkerd-cni");
    let (passed, removed) = (log.find("self-test passed"), log.find("removed the startup taint"));
    assert!(passed.is_some() && passed < removed, "{log}");
    drop(tainted_node);

    // As docs/uninstall.md says for accounts whose permissions go first.
    kubectl("delete daemonset linkerd-cni -n linkerd-cni --cascade=foreground --timeout=60s");
    assert!(!Path::new("/opt/cni/bin/linkerd-cni").exists());
    scene.remove();
}

const KEY: &str = "linkerd.io/cni-not-ready";

fn tainted() -> OnDrop<impl FnMut()> {
    kubectl(&format!("taint node --all {KEY}=:NoSchedule"));
    OnDrop(|| {
        let _ = command(&format!("taint node --all {KEY}-")).output();
    })
}

pub fn set(mode: &str, audit: u64) -> String {
    format!(
        "--set=repairController.enabled=true,repairController.mode={mode},\
         repairController.auditIntervalSeconds={audit}"
    )
}
