//! What SIGTERM means, by what the API server says about the DaemonSet.

use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::api::{Api, Set};
use crate::node::{CALICO, Node, until};

fn started(api: &Api) -> (Node, Agent) {
    let node = Node::new();
    api.serve_node(&node);
    node.write("10-calico.conflist", CALICO);
    let mut agent = node.start_owned(&api.vars());
    agent.until_ready();
    (node, agent)
}

#[test]
fn a_daemonset_that_ends_takes_the_plugin_along_and_one_that_stays_does_not() {
    for (set, stays) in [
        (Set::There, true),
        (Set::Leaving, false),
        (Set::NamespaceLeaving, false),
        (Set::Status(404), false),
        (Set::Status(401), false),
        (Set::Status(403), false),
        (Set::Status(500), true),
        (Set::Status(429), true),
    ] {
        let api = Api::start();
        let (node, mut agent) = started(&api);
        if set == Set::Status(401) {
            // The release's accounts went with it.
            api.state().tokens.clear();
        }
        api.state().set = set;
        assert_eq!(agent.stop(), Some(0), "{set:?}: {}", agent.log());
        assert_eq!(node.chained("10-calico.conflist"), stays, "{set:?}");
        assert_eq!(node.bin("linkerd-cni").exists(), stays, "{set:?}");
        assert_eq!(node.net("kubeconfig.json").exists(), stays, "{set:?}");
        if !stays {
            assert_eq!(node.text("10-calico.conflist"), CALICO);
        }
    }
}

#[test]
fn an_api_server_that_was_there_and_says_nothing_changes_nothing() {
    for how in ["silent", "down"] {
        let api = Api::start();
        let (node, mut agent) = started(&api);
        api.state().silent = how == "silent";
        api.state().down = how == "down";
        let begin = Instant::now();
        assert_eq!(agent.stop(), Some(0));
        assert!(begin.elapsed() < Duration::from_secs(5), "{how}");
        assert!(node.chained("10-calico.conflist"), "{how}");
        assert!(agent.log().contains("leaving everything in place"));
    }
}

#[test]
fn a_token_that_went_with_the_pod_is_no_end_of_the_release() {
    let api = Api::start();
    let (node, mut agent) = started(&api);
    api.state().tokens.retain(|token| token != "token-1");
    assert_eq!(agent.stop(), Some(0));
    assert!(node.chained("10-calico.conflist"), "{}", agent.log());

    let api = Api::start();
    let (node, mut agent) = started(&api);
    let mut state = api.state();
    state.tokens.retain(|token| token != "token-1");
    // Nor is it the end of the plugin's token, but it is the end.
    state.set = Set::NamespaceLeaving;
    drop(state);
    assert_eq!(agent.stop(), Some(0));
    assert!(!node.chained("10-calico.conflist"), "{}", agent.log());
}

#[test]
fn where_no_api_server_ever_was_the_plugin_goes_as_upstreams_does() {
    let api = Api::start();
    let node = Node::new();
    api.serve_node(&node);
    node.write("10-calico.conflist", CALICO);
    let before = node.tree();
    let vars = [
        ("KUBERNETES_SERVICE_HOST", "localhost"),
        ("KUBERNETES_SERVICE_PORT", "1"),
    ];
    let mut agent = node.start_with(&vars);
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn an_upgrade_leaves_every_file_as_it_is() {
    let api = Api::start();
    let (node, mut agent) = started(&api);
    let names = [
        "10-calico.conflist",
        "kubeconfig.json",
        "../bin/linkerd-cni",
    ];
    until("the plugin's own token", || {
        node.kubeconfig()["users"][0]["user"]["token"] != "token-1"
    });
    let inodes = names.map(|name| node.inode(name));
    for _ in 0..3 {
        assert_eq!(agent.stop(), Some(0));
        agent = node.start_owned(&api.vars());
        agent.until_ready();
        assert_eq!(names.map(|name| node.inode(name)), inodes);
    }
    assert_eq!(api.asked("POST", "/token"), 1);
}
