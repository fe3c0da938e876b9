//! The agent on a real node: replaced, killed, with a dead credential, after an upgrade from upstream's chart, and
//! uninstalled.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::agent::{
    KUBECONFIG, agent, clean, find_agent, kill_agent, process_of, rolled_out, token, token_in,
    until_rejected, with_token,
};
use crate::burst;
use crate::helm::Helm;
use crate::node::Node;
use crate::pods::{self, Pods, kubectl};
use crate::until::until_within;

/// In kB, the unit of `VmRSS`.
const RSS: u64 = 3900;

#[test]
fn no_pod_starts_bare_or_is_lost_while_the_agent_is_replaced_or_killed() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);

    let binary = Path::new("/opt/cni/bin/linkerd-cni");
    let written = fs::metadata(binary).unwrap().modified().unwrap();
    burst::during("helm upgrade", || {
        helm.run("upgrade", &["--set", "ignoreInboundPorts=9999"]);
    });
    burst::during("kubectl rollout restart", || {
        kubectl(&["rollout", "restart", "daemonset/linkerd-cni", "-n", "linkerd-cni"]);
        rolled_out();
    });
    burst::during("SIGKILL of the agent", kill_agent);
    let still = fs::metadata(binary).unwrap().modified().unwrap();
    assert_eq!(still, written, "an unchanged plugin binary is not written again");

    let rss = agent().rss();
    println!("agent: {rss} kB resident");
    assert!(rss <= RSS, "{rss} kB");

    helm.remove();
    assert_eq!(node.files(), before);
}

#[test]
fn an_install_of_upstreams_chart_is_taken_over_without_a_bare_pod() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.install_upstream();
    until_within(Duration::from_secs(60), "upstream's plugin entry is in the conflist", || {
        node.entry().is_some()
    });
    burst::with_retries("helm upgrade from upstream's chart", || {
        helm.run("upgrade", &["--reset-then-reuse-values"]);
    });
    let entry = node.linkerd_entry();
    assert_eq!(entry["linkerd"]["iptables-mode"], "auto", "the plugin entry is this chart's");
    helm.remove();
    assert_eq!(node.files(), before);
}

#[test]
fn a_dead_credential_heals_by_itself() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);

    // The token in the file is damaged.
    let good = fs::read_to_string(KUBECONFIG).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    let begin = Instant::now();
    until_within(Duration::from_secs(60), "the token is restored", || token() == token_in(&good));
    println!("a damaged kubeconfig was restored in {:.1?}", begin.elapsed());

    // The account is deleted and created again, so that the API server rejects the token.
    let account =
        ["get", "serviceaccount", "linkerd-cni-plugin", "-n", "linkerd-cni", "-o", "json"];
    let mut account: Value = serde_json::from_str(&kubectl(&account)).unwrap();
    let revoked = token();
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        account["metadata"].as_object_mut().unwrap().remove(field);
    }
    kubectl(&["delete", "serviceaccount", "linkerd-cni-plugin", "-n", "linkerd-cni"]);
    pods::apply(&account);
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
    until_within(Duration::from_secs(30), "ready", || {
        find_agent().is_some_and(|agent| agent.ready)
    });

    // The agent ends while the node's credential is dead: the next agent pod must start nevertheless.
    let old = agent();
    kill(old.pid, Signal::SIGSTOP).unwrap();
    fs::write(KUBECONFIG, with_token(&good, "garbage")).unwrap();
    let name = old.pod.as_str();
    let force = ["--force", "--grace-period=0"];
    kubectl(&[&["delete", "pod", name, "-n", "linkerd-cni"], &force[..]].concat());
    let begin = Instant::now();
    until_within(Duration::from_secs(60), "the next agent is ready", || {
        let healed = || token().is_some_and(|token| token != "garbage");
        healed() && find_agent().is_some_and(|next| next.pod != old.pod && next.ready)
    });
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
        let pod = ["get", "pod", &last.pod, "-n", "linkerd-cni", "-o", "json"];
        kubectl(&pod).contains("\"deletionTimestamp\"")
    });
    kill(last.pid, Signal::SIGKILL).unwrap();
    until_within(Duration::from_secs(20), "it is dead", || process_of(&last.container).is_none());
    assert!(node.entry().is_some());
    clean(&node, &before);
    helm.end_uninstall();
}
