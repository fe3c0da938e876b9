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
use crate::outage::{create_all, marked, redirected};
use crate::pods::{self, Pods, apply, kubectl};
use crate::scene::Scene;
use crate::until::{until, until_found, until_within};
use crate::watcher::Watcher;

/// Limit of the agent's resident memory (`VmRSS`), in kB.
const RSS_LIMIT_KB: u64 = 4096;

#[test]
fn meshed_pods_start_redirected_while_the_agent_is_replaced_or_killed() {
    let scene = Scene::installed(&[]);
    let Scene { node, helm, .. } = &scene;

    let binary = Path::new("/opt/cni/bin/linkerd-cni");
    let written = fs::metadata(binary).unwrap().modified().unwrap();
    let is_ignored = || {
        let entry = node.linkerd_entry();
        entry["linkerd"]["inbound-ports-to-ignore"].to_string().contains("\"9999\"")
    };
    let watcher = Watcher::start();
    burst::start_mixed_pods_during("helm upgrade with other values", || {
        helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    });
    assert!(is_ignored());
    burst::start_annotated_pods_during("helm rollback to the first values", || {
        helm.rollback(&["--wait"]);
        wait_for_rollout();
    });
    assert!(!is_ignored());
    watcher.finish().assert_always_installed("upgrade and rollback with other values");
    burst::start_mixed_pods_during("kubectl rollout restart", || {
        kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
        wait_for_rollout();
    });
    burst::start_annotated_pods_during("SIGKILL of the agent", kill_agent);
    let still = fs::metadata(binary).unwrap().modified().unwrap();
    assert_eq!(still, written, "an unchanged plugin binary is not written again");

    let rss = agent().rss();
    println!("agent: {rss} kB resident");
    assert!(rss <= RSS_LIMIT_KB, "{rss} kB");
    scene.remove();
}

const INJECTED: usize = 8;

/// Other meshed pods wait until the agent has replaced the token, which it does once a pod fails.
fn an_api_server_that_rejects_the_token_keeps_no_injected_pod_waiting(good: &str) {
    let namespace = pods::namespace("revoked");
    // The agent would renew the token, so it is stopped meanwhile.
    let paused = Paused::process(agent().pid);
    revoke_token();
    until_rejected(good);
    create_all("revoked", (0..INJECTED).map(|_| marked()));
    until("all injected pods are redirected", || redirected("revoked") == INJECTED);
    let unmarked = json!({"linkerd.io/proxy-version": "test"});
    apply(&validating_pod("revoked", INJECTED, &unmarked));
    let reason = format!("cannot read pod revoked/pod-{INJECTED}");
    let event = until_found("the reason why the other pod waits", || {
        let said = kubectl(&format!("describe pod -n revoked pod-{INJECTED}"));
        let line = said.lines().find(|line| line.contains("FailedCreatePodSandBox"))?;
        line.contains(&reason).then(|| line.to_owned())
    });
    assert!(event.contains("HTTP 401") && event.contains("renews the token"), "{event}");

    drop(paused);
    until_within(Duration::from_secs(60), "the token is replaced", || {
        token().is_some() && token() != token_in(good)
    });
    until("the other pod runs", || redirected("revoked") == INJECTED + 1);
    // The rate of Events is limited.
    until("Events of pods that started without the API server", || {
        let events = kubectl("get events -n revoked");
        events.lines().filter(|line| line.contains("LinkerdCNIDegraded")).count() >= 5
    });
    drop(namespace);
    until_within(Duration::from_secs(30), "ready", is_ready);
}

#[test]
fn the_agent_replaces_a_damaged_and_a_revoked_token() {
    // With the copy of the node's pods no pod needs the token.
    let scene = Scene::installed(&["--set=watchPods=false"]);
    let Scene { node, helm, before, .. } = &scene;

    // The token in the file is damaged.
    let good = fs::read_to_string(KUBECONFIG).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    until_within(Duration::from_secs(60), "the token is restored", || token() == token_in(&good));

    an_api_server_that_rejects_the_token_keeps_no_injected_pod_waiting(&good);

    // The agent ends while the node's credential is dead: the next agent pod must start
    // nevertheless.
    let old = agent();
    kill(old.pid, Signal::SIGSTOP).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    delete_by_force(&old);
    until_within(Duration::from_secs(60), "the next agent is ready", || {
        let healed = || token().is_some_and(|token| token != "garbage");
        healed() && find_agent().is_some_and(|next| next.pod != old.pod && next.ready)
    });

    // Pods start again.
    let pods = Pods::default();
    pods.start(&[pods::native_sidecar("healed")]);
    drop(pods);

    // An agent that is killed while its release is uninstalled leaves its files; one command
    // removes them. The agent is killed once its pod is being deleted, when kubelet does not
    // restart it any more.
    let last = agent();
    kill(last.pid, Signal::SIGSTOP).unwrap();
    helm.begin_uninstall();
    until_within(Duration::from_secs(20), "its pod is being deleted", || {
        kubectl(&format!("get pod {} -n linkerd-cni -o json", last.pod))
            .contains("\"deletionTimestamp\"")
    });
    kill(last.pid, Signal::SIGKILL).unwrap();
    until_within(Duration::from_secs(20), "it is dead", || process_of(&last.container).is_none());
    assert!(node.entry().is_some());
    remove_leftovers(node, before, "");
    helm.end_uninstall();
}
