//! The plugin's credential: where it comes from, and how it heals.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use crate::agent_with_api::Scene;
use crate::api::{Api, expired_token};
use crate::node::{CALICO, LIST, Node};
use crate::requests::report_rejection;
use crate::server::Identity;
use crate::until::{until, until_within};

#[test]
fn plugin_token_is_requested_and_renewed_at_half_its_lifetime() {
    let api = Api::start();
    api.state().life = 4;
    let Scene { api, node, mut agent } = Scene::start_with(api, &[]);
    for _ in 0..2 {
        let now = node.token();
        until_within(Duration::from_secs(30), "the next token", || node.token() != now);
    }
    // Accepted before anybody is told that all is well.
    agent.until_ready();
    let request = &api.received(|request| request.method == "POST")[0].body;
    assert_eq!(request["kind"], "TokenRequest");
    assert!(request["spec"]["boundObjectRef"].is_null());
    assert!(!agent.log().contains("token-1") && !agent.log().contains(&node.token()));
}

#[test]
fn token_that_is_invalid_in_a_header_is_rejected_and_requested_again() {
    for unusable in ["two\nlines".to_owned(), "é".into(), "x".repeat(20_000)] {
        let api = Api::start();
        api.state().life = 4;
        let Scene { api, node, mut agent } = Scene::start_with(api, &[]);
        api.state().issued = Some(unusable.clone());
        until("the unusable token is rejected", || {
            let log = agent.log();
            assert!(!log.contains(&unusable));
            log.contains("could not be renewed")
                && log.contains("the token is too long or has characters that are invalid")
        });
        let last = node.token();
        assert_ne!(last, unusable);
        api.state().issued = None;
        until("the next token", || node.token() != last);
        agent.until_ready();
    }
}

#[test]
fn a_failed_token_request_never_puts_the_agents_token_on_the_host() {
    for failure in ["403", "404", "proxy", "500", "503", "429", "401", "silent", "down"] {
        let api = Api::start();
        match failure {
            "silent" => api.state().silent = true,
            "down" => api.state().down = true,
            "proxy" => api.state().proxy = Some(403),
            code => api.state().grant = code.parse().unwrap(),
        }
        let node = Node::with_api(&api);
        let mut agent = node.start();
        let says = "kubeconfig: waiting for the API server to issue the token of ServiceAccount \
                    linkerd-cni-plugin: ";
        until("the reason", || agent.ready().1.contains(says));
        until("a second request", || failure == "down" || api.asked("POST", "/token") > 1);
        assert_eq!(agent.ready().0, 500, "{failure}");
        let remedy = match failure {
            "403" | "proxy" => {
                "; grant the agent's ServiceAccount `create` on `serviceaccounts/token`"
            }
            "404" => "; create that ServiceAccount",
            _ => "",
        };
        assert!(agent.ready().1.contains(remedy), "{failure}: {:?}", agent.ready());
        let metric = |value: u8| {
            let line = format!("linkerd_cni_agent_token_request_failed {value}\n");
            agent.get("/metrics").1.contains(&line)
        };
        assert!(metric(1), "{failure}");
        assert!(remedy.is_empty() || agent.log().contains(remedy), "{failure}: {}", agent.log());
        assert_eq!(node.text(LIST), CALICO, "{failure}");
        assert!(!node.net("kubeconfig.json").exists(), "{failure}");
        let mut state = api.state();
        (state.silent, state.down, state.grant, state.proxy) = (false, false, 201, None);
        drop(state);
        until("the metric", || metric(0));
        agent.until_ready();
        assert_ne!(node.token(), "token-1", "{failure}");
        let written = agent.log().matches("wrote kubeconfig").count();
        assert_eq!(written, 1, "{failure}: {}", agent.log());
    }
}

#[test]
fn a_normal_start_logs_no_warning() {
    let Scene { agent, node: _node, .. } = Scene::start(&[]);
    // The bin dir of this node is empty.
    let warnings = agent.log().lines().filter(|line| line.contains("WARN")).count();
    let bin_dir = agent.log().matches("WARN CNI directories: ").count();
    assert_eq!(warnings, bin_dir, "{}", agent.log());
}

#[test]
fn expired_token_stays_in_the_kubeconfig_until_another_is_issued() {
    let api = Api::start();
    api.state().life = 2;
    let node = Node::with_api(&api);
    let mut agent = node.start();
    until("a token", || node.chained(LIST));
    agent.until_ready();
    api.state().grant = 500;
    let last = node.token();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(node.token(), last);
    until("the reason", || agent.log().contains("could not be renewed"));
    api.state().tokens.retain(|token| *token != last);
    api.state().grant = 403;
    report_rejection(&node);
    until("the remedy", || {
        let (status, why) = agent.ready();
        status == 500 && why.contains("rejected the token") && why.contains("; grant the agent's")
    });
    assert_eq!(node.token(), last);
    api.state().grant = 201;
    until("another", || node.token() != last);
    assert_ne!(node.token(), "token-1");
}

#[test]
fn agent_without_a_token_keeps_the_kubeconfig_of_an_earlier_agent() {
    let tokens = [expired_token(), "token-0".to_owned(), "token-1".to_owned()];
    let cases = tokens.into_iter().flat_map(|token| [(token.clone(), 503), (token, 403)]);
    for (token, failure) in cases {
        let Scene { api, node, mut agent } = Scene::start(&[]);
        agent.signal(nix::sys::signal::Signal::SIGKILL);
        agent.wait();
        let kubeconfig = node.text("kubeconfig.json").replace(&node.token(), &token);
        node.replace(&node.net("kubeconfig.json"), kubeconfig.as_bytes());
        api.state().grant = failure;
        let inode = node.inode("kubeconfig.json");
        let asked = api.asked("POST", "/token");
        let mut agent = node.start();
        until("some requests", || api.asked("POST", "/token") > asked + 3);
        assert_eq!(node.inode("kubeconfig.json"), inode);
        assert!(node.chained(LIST));
        std::fs::remove_file(node.net("kubeconfig.json")).unwrap();
        until("the kubeconfig is back", || node.token() == token);
        // Whether it serves is another question.
        let refused = "rejected the token in the kubeconfig";
        until("the verdict", || match token.as_str() {
            "token-1" => {
                let (status, note) = agent.ready();
                status == 200 && note.contains(&format!("HTTP {failure}"))
            }
            _ => agent.ready().1.contains(refused),
        });
        api.state().grant = 201;
        until("a token", || node.token() != token);
        agent.until_ready();
    }
}

#[test]
fn a_revoked_token_is_replaced_once_a_pod_fails_because_of_it() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    let old = node.token();
    api.state().tokens.retain(|token| *token != old);
    report_rejection(&node);
    // Without the record the next check comes after 10 minutes.
    until_within(Duration::from_secs(180), "a new token", || node.token() != old);
    assert_ne!(node.token(), "token-1");
    agent.until_ready();
}

#[test]
fn ready_names_a_rejected_token_until_it_is_replaced() {
    let api = Api::start();
    api.state().tokens.clear();
    let node = Node::with_api(&api);
    // As with upstream's chart, the plugin has no account of its own.
    let mut agent = node.start_with(&[("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "")]);
    until("the reason", || agent.ready().1.contains("rejected the token in the kubeconfig"));
    assert!(node.chained(LIST));
    api.state().tokens.push("token-2".into());
    node.rotate("token-2");
    agent.until_ready();
}

#[test]
fn silent_api_server_does_not_delay_chaining_on_an_installed_node() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    agent.signal(nix::sys::signal::Signal::SIGKILL);
    agent.wait();
    api.state().silent = true;
    let agent = node.start();
    let begin = Instant::now();
    // Each request to this API server takes the agent 3 s: it may not wait for one.
    for turn in 0..40 {
        let text = CALICO.replace("1e3", &format!("{turn}e3"));
        node.replace(&node.net(LIST), text.as_bytes());
        until("the entry", || node.chained(LIST));
    }
    assert!(begin.elapsed() < Duration::from_secs(80));
    until("the reason", || agent.ready().1.contains("has not responded yet: "));
    api.state().silent = false;
    until("ready", || agent.ready().0 == 200);
}

#[test]
fn a_new_certificate_authority_is_followed() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    api.present(Identity::of_localhost());
    api.state().tokens.retain(|token| token == "token-1");
    api.state().down = true;
    thread::sleep(Duration::from_millis(50));
    api.state().down = false;
    node.use_api(&api);
    let asked = api.asked("POST", "/token");
    until("a token over the new certificate", || api.asked("POST", "/token") > asked);
    agent.until_ready();
}

#[test]
fn fifo_in_place_of_the_kubeconfig_does_not_block_the_agent() {
    let api = Api::start();
    let node = Node::with_api(&api);
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&node.net("kubeconfig.json"), mode).unwrap();
    let mut agent = node.start_ready();
    assert!(node.chained(LIST));
    assert_eq!(agent.stop(), Some(0));
}

#[test]
fn a_kubeconfig_that_is_too_large_is_replaced() {
    let api = Api::start();
    let node = Node::with_api(&api);
    let kubeconfig = std::fs::File::create(node.net("kubeconfig.json")).unwrap();
    kubeconfig.set_len(64 << 20).unwrap();
    kubeconfig.set_permissions(Permissions::from_mode(0o600)).unwrap();
    let mut agent = node.start_ready();
    assert_ne!(node.token(), "");
    assert_eq!(agent.stop(), Some(0));
}
