//! Agents that are stopped while something looks like an uninstall: rejected tokens, a missing DaemonSet, a newer agent.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent_with_api::{Scene, all};
use crate::api::{Api, DaemonSetState, bound_token, expired_token, unbound_token};
use crate::node::Node;
use crate::records::report_rejection;
use crate::until::until;

/// Leaves an agent seven seconds to ask, which is longer than rejections take to be proof.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "12");
const REJECTED: &str = "the API server rejected the token in the kubeconfig (HTTP 401)";

fn two_accounts() -> Scene {
    Scene::start(&[GRACE])
}

fn one_account() -> Scene {
    Scene::start_with_token(&bound_token(), &[GRACE])
}

fn missing_daemonset() -> Scene {
    let api = Api::start();
    api.state().daemon_set = DaemonSetState::Status(404);
    Scene::start_with(api, &[GRACE])
}

/// Stops the agent before it looks at the node again, after `change`, while the API server rejects every token.
fn stop_after(scene: &Scene, change: impl FnOnce(&Node)) {
    scene.pause_between_passes();
    change(&scene.node);
    scene.api.state().tokens.clear();
    scene.agent.signal(Signal::SIGTERM);
    scene.agent.signal(Signal::SIGCONT);
}

/// What happens, the agent's start, the events until it decides, and the reason in its log.
type Case = (&'static str, fn() -> Scene, fn(&mut Scene), &'static str);

/// None of these proves an uninstall.
const NO_PROOF: &[Case] = &[
    (
        "the DaemonSet is missing, and the agent never saw it",
        missing_daemonset,
        |scene| scene.agent.signal(Signal::SIGTERM),
        "no proof of an uninstall within 7 s; last finding: DaemonSet linkerd-cni/linkerd-cni does \
         not exist, and this agent never saw",
    ),
    (
        "the token is bound to the agent's pod, which was deleted by force",
        one_account,
        |scene| {
            scene.api.state().tokens.clear();
            scene.agent.signal(Signal::SIGTERM);
        },
        "bound to a pod",
    ),
    (
        "the signing key was replaced before SIGTERM",
        two_accounts,
        |scene| {
            scene.api.state().tokens.clear();
            report_rejection(&scene.node);
            until("rejected", || scene.agent.ready().1.contains(REJECTED));
            scene.agent.signal(Signal::SIGTERM);
        },
        "before the agent was stopped",
    ),
    (
        "the next agent put its own token into the kubeconfig, as under upstream's chart",
        one_account,
        |scene| {
            let own = scene.node.token();
            scene.api.state().tokens = vec!["token-2".into()];
            scene.agent.signal(Signal::SIGTERM);
            until("rejected", || scene.agent.log().contains("rejected every token"));
            let next = scene.node.text("kubeconfig.json").replace(&own, "token-2");
            scene.node.replace(&scene.node.net("kubeconfig.json"), next.as_bytes());
        },
        "accepted the plugin's token",
    ),
    // A node that was cut off for longer than its tokens live is told to stop in an upgrade before any is renewed.
    (
        "the agent's token has expired",
        two_accounts,
        |scene| stop_after(scene, |node| node.rotate(&expired_token())),
        "has expired",
    ),
    (
        "the plugin's token has expired",
        two_accounts,
        |scene| {
            stop_after(scene, |node| {
                let text = node.text("kubeconfig.json").replace(&node.token(), &expired_token());
                node.replace(&node.net("kubeconfig.json"), text.as_bytes());
            });
        },
        "has expired",
    ),
];

#[test]
fn events_that_only_look_like_an_uninstall_leave_everything_in_place() {
    all(NO_PROOF, |(name, start, events, why)| {
        let mut scene = start();
        events(&mut scene);
        assert_eq!(scene.agent.wait(), Some(0), "{name}: {}", scene.agent.log());
        scene.assert_left_in_place(name, why);
    });
}

/// The API server still accepts the deleted accounts for some seconds.
#[test]
fn rejection_of_every_token_for_four_seconds_proves_an_uninstall() {
    all([true, false], |has_two_accounts| {
        let mut scene = match has_two_accounts {
            true => Scene::start(&[]),
            // A token from a Secret, which the API server accepts as long as the account exists.
            false => Scene::start_with_token(&unbound_token(), &[]),
        };
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        scene.agent.signal(Signal::SIGTERM);
        let says = |text| until(text, || scene.agent.log().contains(text));
        says("HTTP 403");
        if has_two_accounts {
            scene.api.state().tokens.retain(|token| token != "token-1");
            says("and accepted the plugin's token");
        }
        assert!(scene.node.is_installed());
        scene.api.state().tokens.clear();
        let begin = Instant::now();
        says("rejected every token");
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        let took = begin.elapsed();
        scene.assert_uninstalled("accounts deleted");
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(60), "{took:?}");
    });
}

#[test]
fn a_daemonset_that_the_agent_sees_only_later_proves_an_uninstall_once_it_is_missing() {
    // The role or the cache of the API server may be late.
    all([403, 404], |code| {
        let api = Api::start();
        api.state().daemon_set = DaemonSetState::Status(code);
        let mut scene = Scene::start_with(api, &[GRACE]);
        scene.api.state().daemon_set = DaemonSetState::Exists;
        let looks = || scene.api.asked("GET", "/daemonsets/");
        let before = looks();
        until("the agent looks again", || {
            scene.until_checked();
            looks() > before
        });
        // The next request follows the recorded response to the last one.
        scene.until_checked();
        scene.stop(|state| state.daemon_set = DaemonSetState::Status(404));
        scene.assert_uninstalled("seen later");
    });
}

#[test]
fn a_newer_agent_that_starts_while_the_agent_asks_keeps_the_plugin() {
    all([DaemonSetState::BeingDeleted, DaemonSetState::Status(403)], |set| {
        let mut scene = Scene::asking();
        let _newer = scene.node.start_ready();
        scene.api.state().daemon_set = set;
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        scene.assert_left_in_place(&format!("{set:?}"), "a newer agent runs on this node");
    });
}
