//! A stopped agent whose accounts are rejected: HTTP 401 from the API server.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent_with_api::{Scene, all};
use crate::api::{DaemonSetState, expired_token, unbound_token};
use crate::node::LIST;
use crate::until::until;

/// Leaves an agent seven seconds to ask.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "12");

/// The API server still accepts the deleted accounts for some seconds.
#[test]
fn rejection_of_every_token_for_four_seconds_proves_an_uninstall() {
    all(vec![true, false], |has_two_accounts| {
        let mut scene = match has_two_accounts {
            true => Scene::start(&[]),
            // A token from a Secret, which the API server accepts as long as the account exists.
            false => Scene::start_with_token(&unbound_token(), &[]),
        };
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        scene.agent.signal(Signal::SIGTERM);
        until("asked once", || scene.agent.log().contains("HTTP 403"));
        assert!(scene.is_installed());
        if has_two_accounts {
            scene.api.state().tokens.retain(|token| token != "token-1");
            until("asked with the plugin's token", || {
                scene.agent.log().contains("and accepted the plugin's token")
            });
            assert!(scene.is_installed());
        }
        scene.api.state().tokens.clear();
        let begin = Instant::now();
        until("every account is rejected", || scene.agent.log().contains("rejected every token"));
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        let took = begin.elapsed();
        scene.assert_uninstalled("accounts deleted");
        assert!(took >= Duration::from_secs(4), "{took:?}");
        assert!(took < Duration::from_secs(60), "{took:?}");
    });
}

#[test]
fn rejections_with_another_response_between_them_prove_nothing() {
    let mut scene = Scene::start(&[GRACE]);
    let tokens = scene.api.state().tokens.clone();
    scene.api.state().tokens.clear();
    scene.agent.signal(Signal::SIGTERM);
    let rejections = || scene.agent.log().matches("rejected every token").count();
    for count in 1..=2 {
        until("rejected", || rejections() == count);
        scene.api.state().tokens.clone_from(&tokens);
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        until("accepted", || scene.agent.log().matches("HTTP 403").count() == count);
        scene.api.state().tokens.clear();
    }
    assert_eq!(scene.agent.wait(), Some(0));
    scene.assert_left_in_place("401 and 403", "no proof");
}

/// Under upstream's chart the next agent puts its own token into the kubeconfig.
#[test]
fn accepted_token_of_another_agent_in_the_kubeconfig_prevents_an_uninstall() {
    let mut scene = Scene::start_with_one_account(&[GRACE]);
    let own = scene.node.token();
    scene.api.state().tokens = vec!["token-2".into()];
    scene.agent.signal(Signal::SIGTERM);
    until("the agent's token is rejected", || scene.agent.log().contains("rejected every token"));
    let next = scene.node.text("kubeconfig.json").replace(&own, "token-2");
    scene.node.replace(&scene.node.net("kubeconfig.json"), next.as_bytes());
    assert_eq!(scene.agent.wait(), Some(0));
    scene.assert_left_in_place("another agent", "accepted the plugin's token");
}

#[test]
fn missing_plugin_token_prevents_an_uninstall() {
    let mut scene = Scene::start(&[GRACE]);
    scene.pause_between_passes();
    std::fs::remove_file(scene.node.net("kubeconfig.json")).unwrap();
    scene.api.state().tokens.clear();
    scene.agent.signal(Signal::SIGTERM);
    // It takes the signal before it looks at the node again.
    scene.agent.signal(Signal::SIGCONT);
    assert_eq!(scene.agent.wait(), Some(0));
    assert!(scene.node.chained(LIST), "{}", scene.agent.log());
}

/// A node that was cut off for longer than its tokens live is told to stop in an upgrade
/// before any token is renewed.
#[test]
fn rejection_of_an_expired_token_proves_nothing() {
    all(vec!["one account", "agent's", "plugin's"], |expired| {
        let mut scene = match expired {
            "one account" => Scene::start_with_one_account(&[GRACE]),
            _ => Scene::start(&[GRACE]),
        };
        scene.pause_between_passes();
        match expired {
            "plugin's" => {
                let kubeconfig = scene.node.net("kubeconfig.json");
                let text = scene.node.text("kubeconfig.json");
                let text = text.replace(&scene.node.token(), &expired_token());
                scene.node.replace(&kubeconfig, text.as_bytes());
            }
            _ => scene.node.rotate(&expired_token()),
        }
        scene.api.state().tokens.clear();
        scene.agent.signal(Signal::SIGTERM);
        // It takes the signal before it looks at the node again.
        scene.agent.signal(Signal::SIGCONT);
        assert_eq!(scene.agent.wait(), Some(0));
        scene.assert_left_in_place(expired, "has expired");
    });
}
