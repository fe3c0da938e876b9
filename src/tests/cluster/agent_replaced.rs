//! The agent on a real node: replaced, killed, with a dead credential, and uninstalled.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::json;
use testkit::cluster::leftovers::remove_leftovers;

use crate::agent::{
    KUBECONFIG, Paused, agent, delete_by_force, find_agent, is_ready, kill_agent, process_of,
    revoke_token, token, token_in, until_rejected, wait_for_rollout, with_token,
};
use crate::burst::{self, validating_pod};
use crate::kubectl::kubectl;
use crate::outage::{count_redirected, create_all, injector_annotations};
use crate::pods::{self, Pods};
use crate::scene::Scene;
use crate::until::{until, until_found, until_within};
use crate::watcher::Watcher;
use crate::{api, events};

/// Limit of the agent's resident memory (`VmRSS`), in kB.
const RSS_LIMIT_KB: u64 = 4096;

#[test]
fn meshed_pods_start_redirected_while_the_agent_is_replaced_or_killed() {
    let scene = Scene::installed(&[]);
    let binary = Path::new("/opt/cni/bin/linkerd-cni");
    let written_at = fs::metadata(binary).unwrap().modified().unwrap();
    let is_port_ignored = || {
        let entry = scene.node.linkerd_entry();
        entry["linkerd"]["inbound-ports-to-ignore"].to_string().contains("\"9999\"")
    };
    let watcher = Watcher::start();
    burst::start_mixed_pods_during("helm upgrade with other values", || {
        scene.helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    });
    assert!(is_port_ignored());
    burst::start_annotated_pods_during("helm rollback to the first values", || {
        scene.helm.rollback(&["--wait"]);
        wait_for_rollout();
    });
    assert!(!is_port_ignored());
    watcher.finish().assert_always_installed("upgrade and rollback with other values");
    burst::start_mixed_pods_during("kubectl rollout restart", || {
        kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
        wait_for_rollout();
    });
    burst::start_annotated_pods_during("SIGKILL of the agent", kill_agent);
    assert_eq!(
        fs::metadata(binary).unwrap().modified().unwrap(),
        written_at,
        "an unchanged plugin binary is not written again"
    );

    let rss = agent().rss();
    println!("agent: {rss} kB resident");
    assert!(rss <= RSS_LIMIT_KB, "{rss} kB");
    scene.remove();
}

/// Number of pods with the injector's mark.
const INJECTED: usize = 8;

/// Revokes the token. Asserts that injected pods start nevertheless, and that another meshed pod
/// waits until the agent has replaced the token, which the agent does once a pod fails.
fn assert_injected_pods_start_with_a_revoked_token(good_kubeconfig: &str) {
    let namespace = pods::namespace("revoked");
    // The agent would renew the token, so it is stopped meanwhile.
    let paused = Paused::process(agent().pid);
    revoke_token();
    until_rejected(good_kubeconfig);
    create_all("revoked", (0..INJECTED).map(|_| injector_annotations()));
    until("all injected pods are redirected", || count_redirected("revoked") == INJECTED);
    let unmarked = json!({"linkerd.io/proxy-version": "test"});
    api::create(&validating_pod("revoked", INJECTED, &unmarked));
    let reason = format!("cannot read pod revoked/pod-{INJECTED}");
    let event = until_found("the reason why the other pod waits", || {
        let messages = events::messages("revoked", "FailedCreatePodSandBox");
        messages.lines().find(|line| line.contains(&reason)).map(str::to_owned)
    });
    assert!(event.contains("HTTP 401") && event.contains("renews the token"), "{event}");

    drop(paused);
    until_within(Duration::from_secs(60), "the token is replaced", || {
        token().is_some() && token() != token_in(good_kubeconfig)
    });
    until("the other pod runs", || count_redirected("revoked") == INJECTED + 1);
    // The rate of Events is limited.
    until("Events of pods that started without the API server", || {
        events::list("revoked", "LinkerdCNIDegraded").len() >= 5
    });
    drop(namespace);
    until_within(Duration::from_secs(30), "ready", is_ready);
}

#[test]
fn agent_replaces_a_damaged_or_revoked_token() {
    // With the copy of the node's pods, no pod would need the token.
    let scene = Scene::installed(&["--set=watchPods=false"]);

    // The token in the file is damaged.
    let good_kubeconfig = fs::read_to_string(KUBECONFIG).unwrap();
    let damaged_kubeconfig = with_token(&good_kubeconfig, "garbage");
    fs::write(KUBECONFIG, &damaged_kubeconfig).unwrap();
    until_within(Duration::from_secs(60), "the token is restored", || {
        token() == token_in(&good_kubeconfig)
    });

    assert_injected_pods_start_with_a_revoked_token(&good_kubeconfig);
    assert_agent_starts_with_a_damaged_token(&damaged_kubeconfig);

    // Pods start again.
    let pods = Pods::default();
    pods.start(&[pods::native_sidecar("healed")]);
    drop(pods);

    kill_agent_during_uninstall(&scene);
    remove_leftovers(&scene.node, &scene.before, "");
    scene.helm.end_uninstall();
}

/// Damages the token while no agent runs. Asserts that the next agent starts nevertheless, and
/// replaces the token.
fn assert_agent_starts_with_a_damaged_token(damaged_kubeconfig: &str) {
    let old = agent();
    kill(old.pid, Signal::SIGSTOP).unwrap();
    fs::write(KUBECONFIG, damaged_kubeconfig).unwrap();
    delete_by_force(&old);
    until_within(Duration::from_secs(60), "the next agent is ready", || {
        let is_token_replaced = token().is_some_and(|token| token != "garbage");
        is_token_replaced && find_agent().is_some_and(|next| next.pod != old.pod && next.ready)
    });
}

/// Begins an uninstall, and kills the agent, which leaves its files. The agent is killed once its
/// pod is being deleted, when kubelet does not restart it any more.
fn kill_agent_during_uninstall(scene: &Scene) {
    let last = agent();
    kill(last.pid, Signal::SIGSTOP).unwrap();
    scene.helm.begin_uninstall();
    let path = format!("{}/{}", pods::path("linkerd-cni"), last.pod);
    until_within(Duration::from_secs(20), "its pod is being deleted", || {
        api::get(&path)["metadata"]["deletionTimestamp"].is_string()
    });
    kill(last.pid, Signal::SIGKILL).unwrap();
    until_within(Duration::from_secs(20), "it is dead", || process_of(&last.container).is_none());
    assert!(scene.node.entry().is_some());
}
