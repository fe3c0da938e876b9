//! An upstream agent that runs beside ours, as between `helm upgrade` with a surge and
//! `helm rollback`. The stand-in for it does what upstream's program does: it writes binary
//! and kubeconfig when it starts, its entry whenever that is not in place, and removes all
//! three at its end.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::agent::Agent;
use crate::api::{Api, Set};
use crate::node::{CALICO, Node, PLUGIN};
use crate::rechained::{self, LIST, PUT_BACK, Worker};
use crate::until::until;

const KUBECONFIG: &str =
    "kind: Config\nusers:\n- name: linkerd-cni\n  user:\n    token: of-upstream\n";

fn upstream_list() -> String {
    let entry = r#"{"type":"linkerd-cni","linkerd":{"iptables-mode":"nft"}}"#;
    CALICO.replacen("  ]\n}", &format!("  ,{entry}]\n}}"), 1)
}

struct Upstream(Worker<()>);

impl Upstream {
    fn start(node: &Arc<Node>) -> Upstream {
        node.replace(&node.bin("linkerd-cni"), PLUGIN);
        node.replace(&node.net("kubeconfig.json"), KUBECONFIG.as_bytes());
        let (node, list) = (Arc::clone(node), upstream_list());
        Upstream(Worker::start(move |stop| {
            while !stop.load(Ordering::Relaxed) {
                if node.text(LIST) != list {
                    node.replace(&node.net(LIST), list.as_bytes());
                }
                thread::sleep(Duration::from_micros(500));
            }
        }))
    }

    /// In upstream's order, and with its write in place.
    fn stop(self, node: &Node) {
        self.0.finish();
        fs::remove_file(node.bin("linkerd-cni")).unwrap();
        fs::remove_file(node.net("kubeconfig.json")).unwrap();
        node.write(LIST, CALICO);
    }
}

/// Both agents on one node, after ours overwrote the kubeconfig of upstream's.
fn both(api: &Api) -> (Arc<Node>, Upstream, Agent) {
    let node = Arc::new(Node::new());
    api.serve_node(&node);
    node.write(LIST, CALICO);
    let upstream = Upstream::start(&node);
    until("the upstream entry", || node.chained(LIST));
    let agent = node.start_owned(&api.vars());
    until("the agent's kubeconfig", || {
        let token = node.token();
        !token.is_empty() && token != "token-1"
    });
    (node, upstream, agent)
}

#[test]
fn an_agent_that_ends_beside_an_upstream_one_restores_its_kubeconfig_and_keeps_the_plugin() {
    for set in [Set::There, Set::Leaving] {
        let api = Api::start();
        let (node, upstream, mut agent) = both(&api);
        let reader = rechained::watch(&node);
        api.state().set = set;
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        let log = agent.log();
        assert!(log.contains("restored the kubeconfig"), "{log}");
        until("the upstream entry", || node.text(LIST) == upstream_list());
        assert_eq!(node.text("kubeconfig.json"), KUBECONFIG, "{log}");
        assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN);
        let longest = reader.finish();
        println!("named without binary or kubeconfig for {longest:?} at most");
        assert!(longest < PUT_BACK, "{longest:?}");
        upstream.stop(&node);
    }
}

#[test]
fn an_agent_restores_at_once_what_an_upstream_one_removes_at_its_end() {
    let api = Api::start();
    let (node, upstream, mut agent) = both(&api);
    let reader = rechained::watch(&node);
    upstream.stop(&node);
    until("the agent's entry", || {
        let text = node.text(LIST);
        node.chained(LIST) && text != upstream_list()
    });
    agent.until_ready();
    let longest = reader.finish();
    println!("named without binary or kubeconfig for {longest:?} at most");
    assert!(longest < PUT_BACK, "{longest:?}");
    assert_eq!(fs::read(node.bin("linkerd-cni")).unwrap(), PLUGIN);
    assert!(!node.token().is_empty());
    api.state().set = Set::Leaving;
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert_eq!(node.text(LIST), CALICO);
}
