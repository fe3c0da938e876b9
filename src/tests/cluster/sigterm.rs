//! Agents that receive SIGTERM: either the plugin stays installed at every instant, or it is
//! uninstalled.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use testkit::cluster::leftovers::remove_leftovers;

use crate::agent::{
    KUBECONFIG, Paused, agent, delete_by_force, find_agent, is_agent, is_ready, until_rejected,
    wait_for_rollout,
};
use crate::burst;
use crate::chart::assert_helm_test_passes;
use crate::connections::assert_linkerd_check_passes;
use crate::kubectl::kubectl;
use crate::node::{self, pid_of};
use crate::quickstart::assert_quickstart_refuses_upstream_release;
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};
use crate::upstream::Program;
use crate::watcher::Watcher;

/// Arguments for a short grace period. Agents that get no proof of an uninstall use the whole
/// period. The schema accepts no period below 30 s.
pub const SHORT_GRACE: [&str; 2] =
    ["--skip-schema-validation", "--set=terminationGracePeriodSeconds=10"];
/// Longest time until an agent has uninstalled or ended. The API server accepts tokens of deleted
/// accounts for 10 s, and the agent has to see rejections for 4 s. An agent that does not see them
/// ends after its grace period of 30 s and leaves the files in place.
const UNINSTALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time until kubelet connects again to an API server that was restarted.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn plugin_is_uninstalled_without_scope_or_release_but_not_without_role_binding() {
    let scene = Scene::installed(&SHORT_GRACE);
    let node = &scene.node;
    let helm = &scene.helm;
    let until_restored = |after: &str| {
        until_within(UNINSTALL_TIMEOUT, &format!("the node is as it was: {after}"), || {
            scene.is_restored()
        });
    };

    let elsewhere = ["--set=nodeSelector.pool=elsewhere"];
    helm.run("upgrade", &[&SHORT_GRACE[..], &elsewhere].concat());
    until_restored("nodeSelector elsewhere");
    let name = node::name();
    kubectl(&format!("label node {name} pool=elsewhere"));
    let label = OnDrop(|| {
        kubectl(&format!("label node {name} pool-"));
    });
    until("the plugin is installed again", is_ready);
    assert!(node.is_chained());
    drop(label);
    until_restored("label removed");

    helm.run("upgrade", &SHORT_GRACE);
    let watcher = Watcher::start();
    kubectl("delete rolebinding linkerd-cni-agent -n linkerd-cni");
    restart_with_default_grace();
    watcher.finish().assert_always_installed("RoleBinding deleted, restart");

    let watcher = Watcher::start();
    helm.begin_uninstall();
    until_restored("helm uninstall without a RoleBinding");
    watcher.finish().assert_never_stranded("helm uninstall");
    helm.end_uninstall();
    assert!(scene.is_restored());
}

/// Restarts the agent with the default grace period.
fn restart_with_default_grace() {
    let env = json!({"name": "LINKERD_CNI_TERMINATION_GRACE_SECONDS", "value": "30"});
    let container = json!({"name": "install-cni", "env": [env]});
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [container]});
    let patch = json!({"spec": {"template": {"spec": spec}}}).to_string();
    kubectl(&format!("patch daemonset linkerd-cni -n linkerd-cni --patch {patch}"));
    wait_for_rollout();
}

#[test]
fn upgrade_from_upstreams_chart_and_rollback_strand_no_pod() {
    let scene = Scene::begin();
    let node = &scene.node;
    let helm = &scene.helm;
    let before = &scene.before;
    helm.install_upstream(Program::OurAgent);
    // Upstream's pod is ready before it has chained the plugin.
    wait_for_rollout();
    until("upstream's chart is installed", || node.entry().is_some());
    assert_quickstart_refuses_upstream_release();
    // Upstream's agent removes the plugin when it ends, so the first attempt to start a pod may
    // fail.
    burst::start_validated_pods_during("helm upgrade from upstream's chart", || {
        helm.run("upgrade", &[&["--reset-then-reuse-values"], &SHORT_GRACE[..]].concat());
    });
    assert_eq!(node.linkerd_entry()["linkerd"]["iptables-mode"], "auto");
    assert_linkerd_check_passes();
    assert_helm_test_passes(helm);

    let watcher = Watcher::start();
    helm.rollback(&[]);
    wait_for_rollout();
    until("the plugin entry is upstream's", || {
        node.linkerd_entry()["linkerd"]["iptables-mode"] == "nft"
    });
    watcher.finish().assert_always_installed("helm rollback");

    // Agents of upstream's chart have no right to read the DaemonSet.
    let watcher = Watcher::start();
    kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
    wait_for_rollout();
    watcher.finish().assert_always_installed("restart under upstream's chart");

    let watcher = Watcher::start();
    let old = agent();
    delete_by_force(&old);
    until_ended(old.pid, "deleted by force");
    watcher.finish().assert_always_installed("forced deletion under upstream's chart");

    // The same without a next agent, which would write a valid token, and without kubelet, which
    // would kill the agent after 2 s, before rejections are proof.
    let old = agent();
    let kubeconfig = fs::read_to_string(KUBECONFIG).unwrap();
    let paused = ["kubelet", "kube-controller-manager"].map(|name| Paused::process(pid_of(name)));
    delete_by_force(&old);
    until_rejected(&kubeconfig);
    let watcher = Watcher::start();
    kill(old.pid, Signal::SIGTERM).unwrap();
    until_ended(old.pid, "stopped with a revoked token");
    watcher.finish().assert_always_installed("forced deletion without a next agent");
    drop(paused);
    until_within(RECONNECT_TIMEOUT, "the next agent runs", || {
        find_agent().is_some_and(|agent| agent.pod != old.pod)
    });

    helm.uninstall();
    assert_eq!(node.files(), *before, "uninstalling leaves the node's files");
    // Upstream's chart does not mount the directory of the node's copy, which this chart's agent
    // wrote.
    remove_leftovers(node, before, "");
}

/// Waits until the agent has ended. `reason` says why it ends.
pub fn until_ended(agent: Pid, reason: &str) {
    let what = format!("the agent has ended, {reason}");
    until_within(UNINSTALL_TIMEOUT, &what, || !is_agent(agent.as_raw()));
}
