//! Tests which events around SIGTERM prove an uninstall to the agent, and which only look like one.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::agent_with_api::{Scene, in_parallel};
use crate::api::{
    Api, DaemonSetState, State, bound_token, delete_pod, delete_pod_by_force, expired_token,
    show_pod, unbound_token,
};
use crate::node::Node;
use crate::records::report_rejection;
use crate::until::until;

/// Grace period that leaves an agent seven seconds to decide. That is longer than tokens must be
/// rejected to prove an uninstall.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "12");
const REJECTED: &str = "the API server rejected the token in the kubeconfig (HTTP 401)";

fn two_accounts() -> Scene {
    Scene::start(&[GRACE])
}

/// Starts an agent as upstream's chart does: the plugin uses the agent's token, which is bound to
/// the agent's pod.
fn one_account() -> Scene {
    Scene::start_with_token(&bound_token(), &[GRACE])
}

/// Starts an agent that may not watch or read its own pod.
fn without_rights(has_two_accounts: bool, vars: &[(&str, &str)]) -> Scene {
    let deny = |state: &mut State| (state.pods_status, state.pod) = (403, Err(403));
    if has_two_accounts {
        let api = Api::start();
        deny(&mut api.state());
        Scene::start_with(api, vars)
    } else {
        Scene::start_with_token_after(&bound_token(), vars, deny)
    }
}

impl Scene {
    fn sigterm(&self) {
        self.agent.signal(Signal::SIGTERM);
    }

    /// Causes an event, and waits for the reconcile pass that the agent's watch then starts.
    fn until_noticed(&self, event: impl FnOnce(&Api)) {
        let passes = || self.agent.metric("linkerd_cni_agent_reconcile_total");
        let before = passes();
        event(&self.api);
        until("a pass", || passes() > before);
    }

    /// Ends the watch, and waits until the agent requests a new one.
    fn until_watch_is_renewed(&self) {
        let asked = || self.api.watches().len() + self.api.lists();
        let before = asked();
        self.api.break_watches();
        until("the next request", || asked() > before);
    }

    fn until_logged(&self, text: &str) {
        until(text, || self.agent.log().contains(text));
    }
}

/// Stops the agent after `change` and before its next reconcile pass. The API server rejects all
/// tokens.
fn stop_after(scene: &Scene, change: impl FnOnce(&Node)) {
    delete_pod(&scene.api);
    scene.pause_between_passes();
    change(&scene.node);
    scene.api.state().tokens.clear();
    scene.sigterm();
    scene.agent.signal(Signal::SIGCONT);
}

/// Description, function that starts the agent, function that causes the events, and reason in the
/// agent's log.
type Case = (&'static str, fn() -> Scene, fn(&mut Scene), &'static str);

/// Events that do not prove an uninstall.
const NO_PROOF: &[Case] = &[
    (
        "the pod was deleted by force, and its token ended with it",
        one_account,
        |scene| {
            scene.until_noticed(delete_pod_by_force);
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
        "gone or was deleted by force",
    ),
    (
        "a forced deletion followed a graceful one",
        one_account,
        |scene| {
            // Hide that the DaemonSet exists. Otherwise the agent would decide before the forced
            // deletion.
            scene.api.state().daemon_set = DaemonSetState::Status(403);
            delete_pod(&scene.api);
            scene.sigterm();
            scene.until_logged("HTTP 403");
            scene.until_noticed(delete_pod_by_force);
            scene.api.state().tokens.clear();
        },
        "gone or was deleted by force",
    ),
    (
        "the signing key was replaced, and the watch was rejected before the deletion",
        one_account,
        |scene| {
            scene.api.state().tokens.clear();
            scene.until_watch_is_renewed();
            scene.api.state().delete_pod(30);
            scene.sigterm();
        },
        "which proves nothing: it rejected the agent's own token",
    ),
    (
        "the signing key was replaced by a restart of the API server, which ended the watch",
        two_accounts,
        |scene| {
            scene.until_noticed(|api| {
                api.state().tokens.clear();
                api.break_watches();
            });
            scene.api.state().delete_pod(30);
            scene.sigterm();
        },
        "before the agent was stopped",
    ),
    (
        "the signing key was replaced, and a token check was rejected before the deletion",
        two_accounts,
        |scene| {
            scene.api.state().tokens.clear();
            report_rejection(&scene.node);
            until("rejected", || scene.agent.ready().1.contains(REJECTED));
            delete_pod(&scene.api);
            scene.sigterm();
        },
        "which proves nothing: it rejected the ",
    ),
    (
        "only the container restarts",
        one_account,
        |scene| {
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
        "the agent's pod is not being deleted",
    ),
    (
        "the grace period was over before the kubelet stopped the agent",
        one_account,
        |scene| {
            scene.api.state().delete_pod(30);
            scene.api.state().pod.as_mut().unwrap()["deletionTimestamp"] =
                json!("2026-01-01T00:00:00Z");
            show_pod(&scene.api, "MODIFIED");
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
        "the grace period of the agent's pod, and so its token, has ended",
    ),
    (
        "one account, without the right to read the pod",
        || without_rights(false, &[GRACE]),
        |scene| {
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
        "bound to a pod",
    ),
    (
        "the DaemonSet is gone, without the right to read the pod",
        || without_rights(true, &[GRACE]),
        |scene| {
            scene.api.state().daemon_set = DaemonSetState::Status(404);
            scene.sigterm();
        },
        "the agent cannot read its pod: ",
    ),
    (
        "the next agent put its own token into the kubeconfig, as under upstream's chart",
        one_account,
        |scene| {
            let own = scene.node.token();
            delete_pod(&scene.api);
            scene.api.state().tokens = vec!["token-2".into()];
            scene.sigterm();
            scene.until_logged("rejected every token");
            let next = scene.node.text("kubeconfig.json").replace(&own, "token-2");
            scene.node.replace(&scene.node.net("kubeconfig.json"), next.as_bytes());
        },
        "accepted the plugin's token",
    ),
    // The node was offline until its tokens expired, and an upgrade stops the agent before it can
    // renew them.
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
    in_parallel(NO_PROOF, |(name, start, events, why)| {
        let mut scene = start();
        events(&mut scene);
        assert_eq!(scene.agent.wait(), Some(0), "{name}: {}", scene.agent.log());
        scene.assert_left_in_place(name, why);
    });
}

type Start = (&'static str, fn() -> Scene);

/// The API server still accepts the tokens for some seconds after their accounts are deleted.
#[test]
fn rejection_of_all_tokens_for_four_seconds_proves_an_uninstall() {
    let starts: [Start; 4] = [
        ("two accounts", || Scene::start(&[])),
        ("one account", || Scene::start_with_token(&bound_token(), &[])),
        // A token from a Secret, which the API server accepts as long as the account exists.
        ("token of a Secret", || Scene::start_with_token(&unbound_token(), &[])),
        ("two accounts without rights", || without_rights(true, &[])),
    ];
    in_parallel(starts, |(name, start)| {
        let mut scene = start();
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        delete_pod(&scene.api);
        scene.sigterm();
        scene.until_logged("HTTP 403");
        if name == "two accounts" {
            scene.api.state().tokens.retain(|token| token != "token-1");
            scene.until_logged("and accepted the plugin's token");
        }
        assert!(scene.node.is_installed());
        scene.api.state().tokens.clear();
        let begin = Instant::now();
        scene.until_logged("rejected every token");
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        let took = begin.elapsed();
        scene.assert_uninstalled(name);
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(60), "{took:?}");
    });
}

/// Description, function that starts the agent, and function that causes the events.
type Proof = (&'static str, fn() -> Scene, fn(&mut Scene));

/// Events that prove an uninstall.
const PROOF: &[Proof] = &[
    (
        "the watch is rejected after the deletion, and before SIGTERM",
        || Scene::start_with_token(&bound_token(), &[]),
        |scene| {
            scene.until_noticed(delete_pod);
            scene.api.state().tokens.clear();
            scene.until_watch_is_renewed();
            scene.sigterm();
        },
    ),
    (
        "the watch shows the deletion only after SIGTERM",
        || Scene::start(&[]),
        |scene| {
            let pod = scene.api.state().pod.clone();
            scene.api.state().daemon_set = DaemonSetState::Status(404);
            scene.api.state().pod = Err(403);
            scene.sigterm();
            scene.until_logged("but nothing shows that the agent's pod is being deleted");
            scene.api.state().pod = pod;
            delete_pod(&scene.api);
        },
    ),
    ("the watch is denied, and a request shows the deletion", watch_denied, |scene| {
        scene.api.state().daemon_set = DaemonSetState::Status(404);
        scene.api.state().delete_pod(30);
        scene.sigterm();
    }),
    ("a request shows the deletion, and the tokens become invalid", watch_denied, |scene| {
        scene.api.state().daemon_set = DaemonSetState::Status(403);
        scene.api.state().delete_pod(30);
        scene.sigterm();
        scene.until_logged("HTTP 403");
        scene.api.state().tokens.clear();
    }),
    ("the watch of the node's pods shows the deletion", node_watch, |scene| {
        scene.until_noticed(delete_pod);
        scene.api.state().tokens.clear();
        scene.sigterm();
    }),
    ("the watch of the node's pods shows the owner", node_watch, |scene| {
        scene.api.state().daemon_set = DaemonSetState::Status(404);
        delete_pod(&scene.api);
        scene.sigterm();
    }),
    (
        "after the deletion, an API server that lags behind returns the old pod",
        || Scene::start_with_token(&bound_token(), &[]),
        |scene| {
            scene.until_noticed(delete_pod);
            let metadata = scene.api.state().pod.clone();
            scene
                .api
                .state()
                .pod
                .as_mut()
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove("deletionTimestamp");
            scene.until_watch_is_renewed();
            scene.api.state().pod = metadata;
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
    ),
];

fn watch_denied() -> Scene {
    Scene::start_with_token_after(&bound_token(), &[], |state| state.pods_status = 403)
}

/// Starts an agent that watches all pods of the node. Agent and plugin use the same token.
fn node_watch() -> Scene {
    let api = Api::start();
    api.state().tokens = vec![bound_token()];
    let mut node = Node::with_api(&api);
    node.vars.retain(|(name, _)| *name != "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT");
    node.vars.push(("LINKERD_CNI_RUN_DIR", node.root().join("run").display().to_string()));
    node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
    node.rotate(&bound_token());
    Scene::start_on(api, node, &[])
}

#[test]
fn deletion_of_the_pod_and_its_daemonset_or_tokens_proves_an_uninstall() {
    in_parallel(PROOF, |(name, start, events)| {
        let mut scene = start();
        events(&mut scene);
        assert_eq!(scene.agent.wait(), Some(0), "{name}: {}", scene.agent.log());
        scene.assert_uninstalled(name);
    });
}

/// If `helm uninstall` follows immediately on `helm install`, the agent may start after its
/// accounts were deleted.
#[test]
fn agent_without_a_valid_token_leaves_an_empty_node_unchanged() {
    in_parallel([true, false], |has_two_accounts| {
        let api = Api::start();
        api.state().tokens.clear();
        let mut node = Node::with_api(&api);
        if !has_two_accounts {
            node.vars.retain(|(name, _)| *name != "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT");
        }
        node.vars.push(("LINKERD_CNI_RUN_DIR", node.root().join("run").display().to_string()));
        node.vars.push(("LINKERD_CNI_NODE_NAME", "node-1".into()));
        let before = node.tree();
        let mut agent = node.start();
        until("two requests", || api.requests().len() >= 2);
        until("the reason", || agent.ready().1.contains("HTTP 401"));
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        assert!(agent.log().contains("nothing is installed on this node"), "{}", agent.log());
        assert_eq!(node.tree(), before, "{}", agent.log());
        assert!(!node.root().join("run/pods").exists());
    });
}

/// All objects of the chart are deleted as soon as the agent has installed the plugin.
#[test]
fn agent_detects_an_uninstall_immediately_after_it_installed_the_plugin() {
    in_parallel([true, false], |has_two_accounts| {
        let api = Api::start();
        let mut node = Node::with_api(&api);
        if !has_two_accounts {
            node.vars.retain(|(name, _)| *name != "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT");
            node.rotate(&bound_token());
            api.state().tokens = vec![bound_token()];
        }
        let before = node.tree();
        let mut agent = node.start();
        until("the plugin is installed", || node.is_installed());
        api.state().daemon_set = DaemonSetState::Status(403);
        delete_pod(&api);
        api.state().tokens.clear();
        node.assert_restored(&mut agent, &before);
    });
}

/// Only the older agent has proof of an uninstall. It may be wrong: a replaced signing key looks
/// like one.
#[test]
fn newer_agent_that_starts_while_an_older_one_decides_keeps_the_plugin() {
    let sets =
        [DaemonSetState::BeingDeleted, DaemonSetState::Replaced, DaemonSetState::Status(403)];
    in_parallel(sets, |set| {
        let mut scene = Scene::asking_for(&[GRACE]);
        let _newer = scene.node.start_ready();
        scene.api.state().daemon_set = set;
        assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
        let why = match set {
            DaemonSetState::BeingDeleted => "a newer agent runs on this node",
            DaemonSetState::Replaced => "the plugin is left to a newer agent on this node",
            _ => "no proof of an uninstall within 7 s",
        };
        scene.assert_left_in_place(&format!("{set:?}"), why);
    });
}

#[test]
fn newer_agent_whose_container_restarts_keeps_the_plugin() {
    let mut scene = Scene::start(&[GRACE]);
    let mut newer = scene.node.start_ready();
    scene.api.state().daemon_set = DaemonSetState::BeingDeleted;
    delete_pod(&scene.api);
    scene.sigterm();
    scene.until_logged("but a newer agent runs on this node");
    newer.kill();
    thread::sleep(Duration::from_millis(2500));
    let _restarted = scene.node.start();
    assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
    scene.assert_left_in_place("restart", "a newer agent runs on this node");
}

/// During a rollout, the older agent must not wait for the newer one.
#[test]
fn older_agent_exits_immediately_if_its_daemonset_exists() {
    let mut scene = Scene::start(&[]);
    let _newer = scene.node.start_ready();
    let took = scene.stop(|_| {});
    scene.assert_left_in_place("rollout", "the DaemonSet exists");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// `helm uninstall` follows a rollout so quickly that the API server never accepts the token of the
/// newer agent. Either agent may be stopped first.
#[test]
fn older_agent_uninstalls_if_the_newer_agent_never_had_a_valid_token() {
    let accounts: [fn() -> Scene; 2] =
        [|| Scene::start(&[]), || Scene::start_with_token(&bound_token(), &[])];
    in_parallel(
        accounts.iter().flat_map(|start| [(start, true), (start, false)]),
        |(start, older_first)| {
            let mut scene = start();
            scene.api.state().daemon_set = DaemonSetState::Status(403);
            delete_pod(&scene.api);
            scene.api.state().tokens.clear();
            let mut newer = scene.node.start();
            until("the reason", || newer.ready().1.contains("HTTP 401"));
            if older_first {
                scene.sigterm();
                scene.until_logged("no proof of an uninstall yet");
                newer.signal(Signal::SIGTERM);
            } else {
                newer.signal(Signal::SIGTERM);
                assert_eq!(newer.wait(), Some(0), "{}", newer.log());
                scene.sigterm();
            }
            assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
            assert_eq!(newer.wait(), Some(0), "{}", newer.log());
            let name = format!("older first: {older_first}");
            assert!(newer.log().contains("an older agent ran on this node"), "{}", newer.log());
            scene.assert_uninstalled(&name);
        },
    );
}

/// Both agents have proof of an uninstall.
#[test]
fn older_agent_waits_until_the_newer_one_has_uninstalled() {
    let mut scene = Scene::start(&[]);
    let mut newer = scene.node.start_ready();
    scene.api.state().daemon_set = DaemonSetState::Status(404);
    delete_pod(&scene.api);
    scene.sigterm();
    scene.until_logged("but a newer agent runs on this node");
    assert!(scene.node.is_installed());
    newer.signal(Signal::SIGTERM);
    assert_eq!(newer.wait(), Some(0), "{}", newer.log());
    assert!(newer.log().contains("uninstalling"), "{}", newer.log());
    assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
    // The older agent finds nothing left to uninstall.
    assert!(scene.node.is_uninstalled(), "{}", scene.agent.log());
    assert!(!scene.agent.log().contains("uninstalling"), "{}", scene.agent.log());
}
