//! Upstream's chart, with this project's image, in another namespace than `linkerd-cni`.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::agent::{KUBECONFIG, clean_with, delete_by_force, find_agent_in, token_in, with_token};
use crate::agent_replaced::until_healed;
use crate::helm::Helm;
use crate::node::Node;
use crate::until::until_within;

const NAMESPACE: &str = "mesh-ops";

#[test]
fn an_agent_of_upstreams_chart_in_another_namespace_restarts_while_the_token_is_dead() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::in_namespace(NAMESPACE);
    helm.install_upstream();
    let installed = || node.entry().is_some() && find_agent_in(NAMESPACE).is_some();
    until_within(Duration::from_secs(60), "the plugin entry is in the conflist", installed);
    let settings = node.linkerd_entry()["linkerd"].clone();
    assert!(settings["agent-namespace"].is_null(), "{settings}");

    // The agent no longer renews the token, and the API server rejects the plugin's. Its claims, by
    // which the plugin knows the agent's pod, are those of every token that the node ever had.
    let old = find_agent_in(NAMESPACE).unwrap();
    kill(old.pid, Signal::SIGSTOP).unwrap();
    let good = fs::read_to_string(KUBECONFIG).unwrap();
    let token = token_in(&good).unwrap();
    let (claims, _) = token.rsplit_once('.').unwrap();
    fs::write(KUBECONFIG, with_token(&good, &format!("{claims}.garbage"))).unwrap();
    delete_by_force(&old, NAMESPACE);
    let begin = Instant::now();
    until_healed(NAMESPACE, &old.pod);
    println!("with a dead token upstream's agent was back in {:.1?}", begin.elapsed());

    // The only token is bound to the agent's pod, so its rejection is no proof of an uninstall.
    helm.uninstall();
    assert!(node.entry().is_some());
    clean_with(NAMESPACE, "", &node, &before);
}
