//! What an agent learns of its own pod before SIGTERM, and what then looks like an uninstall, or is
//! one.

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

/// Leaves an agent seven seconds to ask, which is longer than rejections take to be proof.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "12");
const REJECTED: &str = "the API server rejected the token in the kubeconfig (HTTP 401)";

fn two_accounts() -> Scene {
    Scene::start(&[GRACE])
}

/// As under upstream's chart: the plugin has the agent's token, which is bound to the pod.
fn one_account() -> Scene {
    Scene::start_with_token(&bound_token(), &[GRACE])
}

/// An agent whose watch and requests of its pod are denied.
fn without_rights(has_two_accounts: bool, vars: &[(&str, &str)]) -> Scene {
    let deny = |state: &mut State| (state.pods_status, state.pod) = (403, Err(403));
    match has_two_accounts {
        true => {
            let api = Api::start();
            deny(&mut api.state());
            Scene::start_with(api, vars)
        }
        false => Scene::start_with_token_after(&bound_token(), vars, deny),
    }
}

impl Scene {
    fn sigterm(&self) {
        self.agent.signal(Signal::SIGTERM);
    }

    /// Waits for the reconcile pass that the agent's watch starts when `event` is new.
    fn until_noticed(&self, event: impl FnOnce(&Api)) {
        let passes = || self.agent.metric("linkerd_cni_agent_reconcile_total");
        let before = passes();
        event(&self.api);
        until("a pass", || passes() > before);
    }

    /// Ends the watch, and waits for the next request for one.
    fn until_watch_asks_again(&self) {
        let asked = || self.api.watches().len() + self.api.lists();
        let before = asked();
        self.api.break_watches();
        until("the next request", || asked() > before);
    }

    fn until_logged(&self, text: &str) {
        until(text, || self.agent.log().contains(text));
    }
}

/// Stops the agent before it looks at the node again, after `change`, while the API server rejects
/// every token.
fn stop_after(scene: &Scene, change: impl FnOnce(&Node)) {
    delete_pod(&scene.api);
    scene.pause_between_passes();
    change(&scene.node);
    scene.api.state().tokens.clear();
    scene.sigterm();
    scene.agent.signal(Signal::SIGCONT);
}

/// What happens, the agent's start, the events until it decides, and the reason in its log.
type Case = (&'static str, fn() -> Scene, fn(&mut Scene), &'static str);

/// None of these proves an uninstall.
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
            // Otherwise the DaemonSet, which exists, settles it before the forced deletion.
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
            scene.until_watch_asks_again();
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
    // A node that was cut off for longer than its tokens live is told to stop in an upgrade before
    // any is renewed.
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

/// The API server still accepts the deleted accounts for some seconds.
#[test]
fn rejection_of_every_token_for_four_seconds_proves_an_uninstall() {
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

/// What happens, the agent's start, and the events until it decides.
type Proof = (&'static str, fn() -> Scene, fn(&mut Scene));

/// Each of these proves an uninstall.
const PROOF: &[Proof] = &[
    (
        "the watch is rejected after the deletion, and before SIGTERM",
        || Scene::start_with_token(&bound_token(), &[]),
        |scene| {
            scene.until_noticed(delete_pod);
            scene.api.state().tokens.clear();
            scene.until_watch_asks_again();
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
    ("a request shows the deletion, and the tokens end", watch_denied, |scene| {
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
        "an API server that lags behind shows the pod as it was, after the deletion",
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
            scene.until_watch_asks_again();
            scene.api.state().pod = metadata;
            scene.api.state().tokens.clear();
            scene.sigterm();
        },
    ),
];

fn watch_denied() -> Scene {
    Scene::start_with_token_after(&bound_token(), &[], |state| state.pods_status = 403)
}

/// One account, and the node's pods are published.
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
fn the_pods_deletion_proves_an_uninstall_with_its_daemonset_or_tokens_gone() {
    in_parallel(PROOF, |(name, start, events)| {
        let mut scene = start();
        events(&mut scene);
        assert_eq!(scene.agent.wait(), Some(0), "{name}: {}", scene.agent.log());
        scene.assert_uninstalled(name);
    });
}

/// `helm uninstall` right after `helm install`: the agent starts when its accounts are gone.
#[test]
fn an_agent_without_an_accepted_token_leaves_an_empty_node_unchanged() {
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

/// The pod is deleted, its DaemonSet, its rights and its accounts are gone as soon as the agent has
/// installed the plugin.
#[test]
fn an_uninstall_right_after_the_install_of_a_node_is_proven() {
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

/// Proof of the older agent alone, such as a replaced signing key that looks like one.
#[test]
fn a_newer_agent_that_starts_while_the_agent_asks_keeps_the_plugin() {
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
fn a_newer_agent_whose_container_restarts_keeps_the_plugin() {
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

/// A rollout: the older agent does not wait for the newer one.
#[test]
fn an_agent_beside_a_newer_one_ends_at_once_while_its_daemonset_exists() {
    let mut scene = Scene::start(&[]);
    let _newer = scene.node.start_ready();
    let took = scene.stop(|_| {});
    scene.assert_left_in_place("rollout", "the DaemonSet exists");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// `helm uninstall` in the second in which a rollout starts the newer agent, whose token the API
/// server never accepts. Either agent may be stopped first.
#[test]
fn an_uninstall_while_a_newer_agent_starts_is_proven_to_the_older_one() {
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

/// Both agents have proof. The older one waits, and finds nothing left to uninstall.
#[test]
fn an_older_agent_with_proof_ends_when_the_newer_one_has_uninstalled() {
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
    // The older one waits for the newer one to return, and then finds nothing to uninstall.
    assert!(scene.node.is_uninstalled(), "{}", scene.agent.log());
    assert!(!scene.agent.log().contains("uninstalling"), "{}", scene.agent.log());
}
