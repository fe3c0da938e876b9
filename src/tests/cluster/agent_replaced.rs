//! The agent on a real node: replaced, killed, with a dead credential, after an upgrade from upstream's chart, and
//! uninstalled.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::agent::{
    KUBECONFIG, agent, clean, delete_by_force, find_agent_in, is_ready, kill_agent, process_of,
    revoke_token, rolled_out, token, token_in, until_rejected, with_token,
};
use crate::burst;
use crate::pods::{self, Pods, kubectl};
use crate::scene::Scene;
use crate::until::until_within;

/// Waits until an agent after the pod `old` is ready, with another token than `garbage`.
pub fn until_healed(namespace: &str, old: &str) {
    until_within(Duration::from_secs(60), "the next agent is ready", || {
        let healed = || token().is_some_and(|token| token != "garbage");
        healed() && find_agent_in(namespace).is_some_and(|next| next.pod != old && next.ready)
    });
}

/// In kB, the unit of `VmRSS`.
const RSS: u64 = 4096;

#[test]
fn meshed_pods_start_redirected_while_the_agent_is_replaced_or_killed() {
    let scene = Scene::installed(&[]);
    let Scene { helm, .. } = &scene;

    let binary = Path::new("/opt/cni/bin/linkerd-cni");
    let written = fs::metadata(binary).unwrap().modified().unwrap();
    burst::of_any_origin("helm upgrade", || {
        helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    });
    burst::of_any_origin("kubectl rollout restart", || {
        kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
        rolled_out();
    });
    burst::during("SIGKILL of the agent", kill_agent);
    let still = fs::metadata(binary).unwrap().modified().unwrap();
    assert_eq!(still, written, "an unchanged plugin binary is not written again");

    let rss = agent().rss();
    println!("agent: {rss} kB resident");
    assert!(rss <= RSS, "{rss} kB");
    scene.remove();
}

#[test]
fn the_agent_replaces_a_damaged_and_a_revoked_token() {
    // With the copy of the node's pods no pod needs the token.
    let scene = Scene::installed(&["--set=watchPods=false"]);
    let Scene { node, helm, before, .. } = &scene;

    // The token in the file is damaged.
    let good = fs::read_to_string(KUBECONFIG).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    let begin = Instant::now();
    until_within(Duration::from_secs(60), "the token is restored", || token() == token_in(&good));
    println!("a damaged kubeconfig was restored in {:.1?}", begin.elapsed());

    let revoked = token();
    revoke_token();
    until_rejected(&good);
    // The agent notices when a pod fails: the plugin record makes it check the token.
    let begin = Instant::now();
    let pods = Pods::default();
    pods.create(&[pods::meshed("revoked")]);
    until_within(Duration::from_secs(60), "the token is replaced", || {
        token().is_some() && token() != revoked
    });
    println!("a revoked token was replaced in {:.1?}", begin.elapsed());
    pods.until_ready("revoked");
    drop(pods);
    until_within(Duration::from_secs(30), "ready", is_ready);

    // The agent ends while the node's credential is dead: the next agent pod must start nevertheless.
    let old = agent();
    kill(old.pid, Signal::SIGSTOP).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    delete_by_force(&old, "linkerd-cni");
    let begin = Instant::now();
    until_healed("linkerd-cni", &old.pod);
    println!("with a dead token the agent was back in {:.1?}", begin.elapsed());

    // Pods start again.
    let pods = Pods::default();
    pods.start(&[pods::native_sidecar("healed")]);
    drop(pods);

    // An agent that is killed while its release is uninstalled leaves its files; one command removes them. The agent
    // is killed once its pod is being deleted, when kubelet does not restart it any more.
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
    clean(node, before);
    helm.end_uninstall();
}
