//! The plugin's credential: where it comes from, and how it heals.

use std::thread;
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::node::{CALICO, Node, until};

fn node(api: &Api) -> Node {
    let node = Node::new();
    api.serve_node(&node);
    node.write("10-calico.conflist", CALICO);
    node
}

#[test]
fn the_plugin_gets_a_token_of_its_own_that_is_renewed_at_half_its_life() {
    let api = Api::start();
    api.state().life = 4;
    let node = node(&api);
    let mut agent = node.start_owned(&api.vars());
    agent.until_ready();
    until("its own token", || node.token() != "token-1");
    for _ in 0..2 {
        let (now, begin) = (node.token(), Instant::now());
        until("the next token", || node.token() != now);
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
    // Accepted before anybody is told that all is well.
    agent.until_ready();
    let asked = api.state().requests.clone();
    let (_, _, request) = asked.iter().find(|(verb, ..)| verb == "POST").unwrap();
    assert_eq!(request["kind"], "TokenRequest");
    assert!(request["spec"]["boundObjectRef"].is_null());
    assert!(!agent.log().contains("token-1") && !agent.log().contains(&node.token()));
}

#[test]
fn where_the_api_server_gives_none_the_agents_own_is_taken_at_once() {
    for code in [403, 404] {
        let api = Api::start();
        api.state().grant = code;
        let node = node(&api);
        let begin = Instant::now();
        let mut agent = node.start_owned(&api.vars());
        agent.until_ready();
        assert!(begin.elapsed() < Duration::from_secs(2), "{code}");
        assert_eq!(node.token(), "token-1");
        assert!(agent.log().contains(&format!("HTTP {code}")));
    }
}

#[test]
fn a_revoked_token_is_replaced_by_itself() {
    let api = Api::start();
    let node = node(&api);
    let mut agent = node.start_owned(&api.vars());
    agent.until_ready();
    until("its own token", || node.token() != "token-1");
    let old = node.token();
    api.state().tokens.retain(|token| *token != old);
    let begin = Instant::now();
    until("a new token", || {
        ![&old, "token-1"].contains(&node.token().as_str())
    });
    assert!(begin.elapsed() < Duration::from_secs(15));
    agent.until_ready();
}

#[test]
fn a_token_that_the_api_server_refuses_is_named_until_there_is_a_better_one() {
    let api = Api::start();
    api.state().tokens.clear();
    let node = node(&api);
    let mut agent = node.start_owned(&api.vars());
    until("the reason", || {
        agent
            .ready()
            .1
            .contains("refuses the token in the kubeconfig")
    });
    assert!(node.chained("10-calico.conflist"));
    api.state().tokens.push("token-2".into());
    node.rotate("token-2");
    agent.until_ready();
}

#[test]
fn an_api_server_that_never_answers_does_not_keep_the_node_from_being_served() {
    let api = Api::start();
    api.state().silent = true;
    let node = node(&api);
    let agent = node.start_owned(&api.vars());
    let begin = Instant::now();
    for _ in 0..5 {
        until("the entry", || node.chained("10-calico.conflist"));
        node.replace(&node.net("10-calico.conflist"), CALICO.as_bytes());
        thread::sleep(Duration::from_millis(5));
    }
    assert!(begin.elapsed() < Duration::from_secs(8));
    until("the reason", || {
        agent.ready().1.contains("has not answered yet")
    });
    api.state().silent = false;
    until("ready", || agent.ready().0 == 200);
}

#[test]
fn a_new_certificate_authority_is_followed() {
    let api = Api::start();
    let node = node(&api);
    let mut agent = node.start_owned(&api.vars());
    agent.until_ready();
    until("its own token", || node.token() != "token-1");
    api.renew();
    api.state().tokens.retain(|token| token == "token-1");
    api.state().down = true;
    thread::sleep(Duration::from_millis(50));
    api.state().down = false;
    api.serve_node(&node);
    let asked = api.asked("POST", "/token");
    until("a token over the new certificate", || {
        api.asked("POST", "/token") > asked
    });
    agent.until_ready();
}

#[test]
fn a_pipe_in_the_kubeconfigs_place_holds_nobody_up() {
    let api = Api::start();
    let node = Node::new();
    api.serve_node(&node);
    node.write("10-calico.conflist", CALICO);
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&node.net("kubeconfig.json"), mode).unwrap();
    let mut agent = node.start_owned(&api.vars());
    agent.until_ready();
    assert!(node.chained("10-calico.conflist"));
    assert_eq!(agent.stop(), Some(0));
}
