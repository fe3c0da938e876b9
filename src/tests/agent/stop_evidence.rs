//! Agents that are stopped while something looks like an uninstall and is none: everything stays in place.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::agent_with_api::{Scene, all};
use crate::api::{Api, DaemonSetState};
use crate::requests::report_rejection;
use crate::until::{until, until_within};

/// Leaves an agent seven seconds to ask, which is longer than rejections take to be proof.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "12");
const REJECTED: &str = "the API server rejected the token in the kubeconfig (HTTP 401)";

#[test]
fn a_missing_daemonset_that_the_agent_never_saw_leaves_everything_in_place() {
    let api = Api::start();
    api.state().daemon_set = DaemonSetState::Status(404);
    let mut scene = Scene::start_with(api, &[GRACE]);
    scene.stop(|_| {});
    scene.assert_left_in_place("never seen", "no proof of an uninstall within 7 s; last finding: ");
    scene
        .assert_left_in_place("never seen", "linkerd-cni does not exist, and this agent never saw");
}

#[test]
fn a_daemonset_that_the_agent_sees_only_later_proves_an_uninstall_once_it_is_missing() {
    // The role or the cache of the API server may be late.
    all(vec![403, 404], |code| {
        let api = Api::start();
        api.state().daemon_set = DaemonSetState::Status(code);
        let mut scene = Scene::start_with(api, &[GRACE]);
        scene.api.state().daemon_set = DaemonSetState::Exists;
        let asked = |path| scene.api.asked("GET", path);
        let looked = asked("/daemonsets/");
        let check = || {
            let checks = asked("/namespaces/linkerd-cni?");
            until("the kubeconfig", || fs::remove_file(scene.node.net("kubeconfig.json")).is_ok());
            until("a check", || asked("/namespaces/linkerd-cni?") > checks);
        };
        until("the agent looks again", || {
            check();
            asked("/daemonsets/") > looked
        });
        // The next request follows the recorded response to the last one.
        check();
        scene.stop(|state| state.daemon_set = DaemonSetState::Status(404));
        scene.assert_uninstalled("seen later");
    });
}

#[test]
fn a_rejected_token_that_is_bound_to_the_agents_pod_leaves_everything_in_place() {
    let mut scene = Scene::start_with_one_account(&[GRACE]);
    scene.stop(|state| state.tokens.clear());
    scene.assert_left_in_place("deleted by force", "bound to a pod");
}

#[test]
fn rejection_before_sigterm_proves_nothing() {
    let mut scene = Scene::start(&[GRACE]);
    scene.api.state().tokens.clear();
    report_rejection(&scene.node);
    until_within(Duration::from_secs(30), "rejected", || scene.agent.ready().1.contains(REJECTED));
    scene.stop(|_| {});
    scene.assert_left_in_place("signing key replaced", "before the agent was stopped");
}

#[test]
fn rejection_of_tokens_that_were_never_accepted_proves_nothing() {
    let mut scene = Scene::start(&[GRACE]);
    scene.agent.kill();
    scene.api.state().tokens.clear();
    scene.agent = scene.node.start_with(&[GRACE]);
    until("it began to work", || scene.agent.ready().0 != 0);
    scene.stop(|_| {});
    scene.assert_left_in_place("restarted", "before the agent was stopped");
}

#[test]
fn a_newer_agent_that_starts_while_the_agent_asks_keeps_the_plugin() {
    all(vec![DaemonSetState::BeingDeleted, DaemonSetState::Status(403)], |set| {
        let mut scene = Scene::start(&[]);
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        scene.agent.signal(Signal::SIGTERM);
        until("asked once", || scene.agent.log().contains("asking again"));
        let _newer = scene.node.start_ready();
        scene.api.state().daemon_set = set;
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        scene.assert_left_in_place(&format!("{set:?}"), "a newer agent runs on this node");
    });
}
