//! Whether a stopped agent uninstalls, by the API server's response.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::agent_with_api::{self, Scene, all};
use crate::api::{Api, DaemonSetState, State};
use crate::node::CALICO;
use crate::until::until;

const DAEMONSET: &str = "/daemonsets/linkerd-cni";
/// Leaves an agent three seconds to ask.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "8");
const TIME_TO_ASK: Duration = Duration::from_secs(3);
/// Shorter than the 25 s that an agent has to ask without [`GRACE`].
const AT_ONCE: Duration = Duration::from_secs(20);
/// The node that the agent runs on.
const NODE: (&str, &str) = ("LINKERD_CNI_NODE_NAME", "node-1");

/// The agent's pod.
const POD: (&str, &str) = ("LINKERD_CNI_POD_NAME", "linkerd-cni-x");

#[test]
fn an_agent_whose_daemonset_or_namespace_is_deleted_uninstalls_at_once() {
    all(
        vec![
            DaemonSetState::BeingDeleted,
            DaemonSetState::NamespaceBeingDeleted,
            DaemonSetState::Status(404),
        ],
        |set| {
            let mut scene = Scene::start(&[NODE]);
            let took = scene.stop(|state| state.daemon_set = set);
            scene.assert_uninstalled(&format!("{set:?}"));
            assert!(took < AT_ONCE, "{set:?}: {took:?}");
        },
    );
}

#[test]
fn an_agent_whose_daemonset_stays_ends_at_once_and_leaves_everything_in_place() {
    type Change = fn(&mut State);
    let changes: Vec<(&str, Change)> = vec![
        ("unchanged", |_| {}),
        ("no right to read nodes", |state| state.node = Some(403)),
        ("no such node", |state| state.node = Some(404)),
        ("no right to read namespaces", |state| {
            state.namespace = Some((403, json!({})));
        }),
    ];
    all(changes, |(what, change)| {
        let mut scene = Scene::start(&[NODE]);
        let took = scene.stop(change);
        scene.assert_left_in_place(what, "the DaemonSet exists");
        assert!(took < AT_ONCE, "{what}: {took:?}");
    });
}

#[test]
fn an_answer_that_proves_nothing_is_asked_for_again_and_everything_stays_in_place() {
    type Change = fn(&mut State);
    let changes: Vec<(&str, &str, Change)> = vec![
        ("403", "HTTP 403", |state| state.daemon_set = DaemonSetState::Status(403)),
        ("429", "HTTP 429", |state| state.daemon_set = DaemonSetState::Status(429)),
        ("500", "HTTP 500", |state| state.daemon_set = DaemonSetState::Status(500)),
        ("302", "HTTP 302", |state| state.daemon_set = DaemonSetState::Status(302)),
        ("down", "is unreachable", |state| state.down = true),
        ("silent", "", |state| state.silent = true),
        ("node 500", "HTTP 500", |state| state.node = Some(500)),
        ("a proxy's 404", "default backend - 404", |state| {
            state.proxy = Some(404);
        }),
        ("another object", "instead of DaemonSet", |state| {
            state.daemon_set = DaemonSetState::Status(200);
        }),
        ("pod 500", "HTTP 500", |state| {
            state.taints = vec![json!({"key": "gpu", "effect": "NoSchedule"})];
            state.pod = Err(500);
        }),
        ("another object for the node", "instead of Node", |state| {
            state.node = Some(200);
            state.placement = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
        }),
        ("namespace 429", "HTTP 429", |state| {
            state.namespace = Some((429, json!({"message": "slow down"})));
        }),
    ];
    all(changes, |(what, why, change)| {
        let mut scene = Scene::start(&[GRACE, NODE, POD]);
        let before = scene.api.asked("GET", DAEMONSET);
        let took = scene.stop(change);
        scene.assert_left_in_place(what, "no proof of an uninstall within 3 s; last finding: ");
        scene.assert_left_in_place(what, why);
        assert!(took >= TIME_TO_ASK, "{what}: {took:?}");
        assert!(took < TIME_TO_ASK * 10, "{what}: {took:?}");
        let asked = scene.api.asked("GET", DAEMONSET) - before;
        let rounds = if ["down", "silent"].contains(&what) { 0 } else { 2 };
        assert!((rounds..6).contains(&asked), "{what}: {asked}");
        let log = scene.agent.log();
        let again = log.lines().filter_map(|line| line.split_once("asking again"));
        let again: Vec<_> = again.map(|(_, why)| why).collect();
        // One line a change; a connection can be refused in more than one way.
        assert!(again.windows(2).all(|pair| pair[0] != pair[1]), "{what}: {log}");
        match what {
            "silent" => assert!(again.is_empty(), "{log}"),
            "down" => assert!(!again.is_empty(), "{log}"),
            _ => assert_eq!(again.len(), 1, "{what}: {log}"),
        }
    });
}

#[test]
fn an_api_server_that_recovers_while_the_agent_asks_decides() {
    type Change = fn(&mut State);
    let troubles: Vec<(&str, Change)> = vec![
        ("429", |state| state.daemon_set = DaemonSetState::Status(429)),
        ("down", |state| state.down = true),
        ("silent", |state| {
            (state.daemon_set, state.silent) = (DaemonSetState::Status(500), true);
        }),
    ];
    all(troubles, |(what, trouble)| {
        for set in [DaemonSetState::Exists, DaemonSetState::Status(404)] {
            let mut scene = Scene::start(&[]);
            trouble(&mut scene.api.state());
            scene.agent.signal(Signal::SIGTERM);
            match what {
                "silent" => thread::sleep(Duration::from_secs(1)),
                _ => until("asked once", || scene.agent.log().contains("asking again")),
            }
            let mut state = scene.api.state();
            (state.daemon_set, state.down, state.silent) = (set, false, false);
            drop(state);
            assert_eq!(scene.agent.wait(), Some(0), "{}", scene.agent.log());
            match set {
                DaemonSetState::Exists => scene.assert_left_in_place(what, "the DaemonSet exists"),
                _ => scene.assert_uninstalled(what),
            }
        }
    });
}

#[test]
fn a_node_that_left_the_daemonsets_scope_is_uninstalled() {
    type Change = fn(&mut State);
    let changes: Vec<(&str, Change)> = vec![
        ("lacks the label pool=mesh", |state| {
            state.placement = json!({"nodeSelector": {"pool": "mesh"}});
        }),
        ("required node affinity", |state| {
            let wanted =
                json!({"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]});
            let terms = json!([{"matchExpressions": [wanted]}]);
            state.placement = json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            }}});
        }),
        ("taint gpu=:NoSchedule is not tolerated", |state| {
            state.taints = vec![json!({"key": "gpu", "effect": "NoSchedule"})];
        }),
        ("taint gone=:NoExecute is not tolerated", |state| {
            state.taints = vec![json!({"key": "gone", "effect": "NoExecute"})];
            state.pod = Err(404);
        }),
    ];
    all(changes, |(why, change)| {
        let mut scene = Scene::start(&[NODE, POD]);
        let took = scene.stop(change);
        scene.assert_uninstalled(why);
        assert!(took < AT_ONCE, "{why}: {took:?}");
        let log = scene.agent.log();
        let reason = "node node-1 is no longer in the DaemonSet's scope: ";
        assert!(log.contains(reason) && log.contains(why), "{log}");
    });
}

#[test]
fn a_restarted_container_on_a_node_with_a_new_noschedule_taint_keeps_the_plugin() {
    type Change = fn(&mut State);
    let changes: Vec<(&str, Change)> = vec![
        ("the agent's pod is not being deleted", |state| {
            state.pod = Ok(json!({"name": "linkerd-cni-x", "deletionTimestamp": null}));
        }),
        ("the agent cannot read its pod: ", |state| state.pod = Err(403)),
    ];
    all(changes, |(why, change)| {
        let mut scene = Scene::start(&[NODE, POD]);
        let took = scene.stop(|state| {
            state.taints = vec![json!({"key": "gpu", "effect": "NoSchedule"})];
            change(state);
        });
        scene.assert_left_in_place(why, why);
        assert!(took < AT_ONCE, "{why}: {took:?}");
    });
}

#[test]
fn a_node_in_the_daemonsets_scope_or_of_unknown_name_keeps_the_plugin() {
    let placement = json!({
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
    });
    all(vec![NODE, ("LINKERD_CNI_NODE_NAME", "")], |name| {
        let mut scene = Scene::start(&[name]);
        scene.stop(|state| {
            state.placement = placement.clone();
            state.taints = vec![json!({"key": "gpu", "effect": "NoExecute"})];
            if name != NODE {
                state.labels = json!({});
            }
        });
        scene.assert_left_in_place(name.1, "the DaemonSet exists");
    });
}

#[test]
fn an_agent_that_found_a_kubeconfig_never_uninstalls_without_proof() {
    let unreachable = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let unset = [("KUBERNETES_SERVICE_HOST", ""), ("KUBERNETES_SERVICE_PORT", "")];
    all(vec![unreachable, unset], |address| {
        let mut scene = Scene::start(&[]);
        scene.agent.kill();
        let vars = [&address[..], &[GRACE]].concat();
        scene.agent = scene.node.start_with(&vars);
        until("it began to work", || scene.agent.ready().0 != 0);
        scene.stop(|state| state.down = true);
        scene.assert_left_in_place(address[0].1, "the API server is unreachable");
    });
}

#[test]
fn a_grace_period_of_a_few_seconds_is_one_round() {
    all(vec!["1", "5"], |seconds| {
        let grace = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", seconds);
        for (set, asked) in [(DaemonSetState::Status(403), 1), (DaemonSetState::Status(404), 1)] {
            let mut scene = Scene::start(&[grace]);
            let before = scene.api.asked("GET", DAEMONSET);
            let took = scene.stop(|state| state.daemon_set = set);
            assert!(took < AT_ONCE, "{seconds}: {took:?}");
            assert!(scene.api.asked("GET", DAEMONSET) - before <= asked + 1);
            assert_eq!(scene.is_uninstalled(), set == DaemonSetState::Status(404), "{seconds}");
        }
        let mut scene = Scene::start(&[grace]);
        let took = scene.stop(|state| state.silent = true);
        assert!(took < AT_ONCE, "{seconds}: {took:?}");
        assert!(scene.is_installed());
    });
}

#[test]
fn while_it_asks_the_agent_is_alive_not_ready_and_deaf_to_more_signals() {
    let mut scene = Scene::start(&[]);
    scene.api.state().daemon_set = DaemonSetState::Status(403);
    for signal in [Signal::SIGTERM, Signal::SIGTERM, Signal::SIGINT, Signal::SIGTERM] {
        scene.agent.signal(signal);
        until("asked", || scene.agent.log().contains("asking again"));
        assert_eq!(scene.agent.get("/live").0, 200);
        assert_eq!(scene.agent.ready(), (500, "not ready: received SIGTERM\n".into()));
        assert!(scene.is_installed());
    }
    scene.api.state().daemon_set = DaemonSetState::BeingDeleted;
    assert_eq!(scene.agent.wait(), Some(0));
    scene.assert_uninstalled("after four signals");
}

#[test]
fn while_it_asks_the_agent_restores_what_another_program_removes() {
    let mut scene = Scene::start(&[]);
    scene.api.state().daemon_set = DaemonSetState::Status(403);
    scene.agent.signal(Signal::SIGTERM);
    until("asked", || scene.agent.log().contains("asking again"));
    let kubeconfig = scene.node.inode("kubeconfig.json");
    // Without a valid token, a running agent would write its own one, which ends with its pod.
    scene.api.state().tokens.retain(|token| token == "token-1");
    for _ in 0..3 {
        scene.node.replace(&scene.node.net("10-calico.conflist"), CALICO.as_bytes());
        until("the entry", || scene.node.chained("10-calico.conflist"));
        fs::remove_file(scene.node.bin("linkerd-cni")).unwrap();
        until("the binary", || scene.node.bin("linkerd-cni").exists());
        assert_eq!(scene.agent.ready(), (500, "not ready: received SIGTERM\n".into()));
    }
    assert_eq!(scene.node.inode("kubeconfig.json"), kubeconfig);
    scene.api.state().daemon_set = DaemonSetState::Exists;
    assert_eq!(scene.agent.wait(), Some(0));
    scene.assert_left_in_place("after a rewrite", "the DaemonSet exists");
}

#[test]
fn where_no_api_server_ever_was_the_plugin_goes_as_upstreams_does() {
    let api = Api::start();
    let node = agent_with_api::node(&api);
    let before = node.tree();
    let vars = [("KUBERNETES_SERVICE_HOST", "localhost"), ("KUBERNETES_SERVICE_PORT", "1")];
    let mut agent = node.start_with(&vars);
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0));
    assert_eq!(node.tree(), before);
}

#[test]
fn an_upgrade_leaves_every_file_as_it_is() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    let names = ["10-calico.conflist", "kubeconfig.json", "../bin/linkerd-cni"];
    until("the plugin's own token", || node.kubeconfig()["users"][0]["user"]["token"] != "token-1");
    let inodes = names.map(|name| node.inode(name));
    for _ in 0..3 {
        assert_eq!(agent.stop(), Some(0));
        agent = node.start_owned(&api.vars());
        agent.until_ready();
        assert_eq!(names.map(|name| node.inode(name)), inodes);
    }
    assert_eq!(api.asked("POST", "/token"), 1);
}

#[test]
fn an_uninstall_that_fails_is_an_event_on_the_node() {
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut scene = Scene::start(&[NODE]);
    // A copy of the chain in the config of another program, which the agent must not change.
    let chained = scene.node.text("10-calico.conflist");
    let multus = format!(r#"{{"type":"multus","delegates":[{chained}]}}"#);
    scene.node.write("99-multus.conf", &multus);
    scene.api.state().daemon_set = DaemonSetState::Status(404);
    assert_eq!(scene.agent.stop(), Some(1), "{}", scene.agent.log());
    let requests = scene.api.state().requests.clone();
    let (.., event) = requests.iter().find(|(_, path, _)| path == EVENTS).unwrap();
    assert_eq!(event["reason"], "LinkerdCNIUninstallFailed");
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"});
    assert_eq!(event["regarding"], node);
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("99-multus.conf") && note.contains("uninstall"), "{note}");
}
