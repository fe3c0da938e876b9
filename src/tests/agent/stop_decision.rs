//! Whether a stopped agent uninstalls, by the API server's response.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent_with_api::{Scene, all};
use crate::api::{DaemonSetState, State};
use crate::node::LIST;
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

/// What a stopped agent does, and the reason in its log.
enum Outcome {
    /// Uninstalls at once.
    Uninstalled(&'static str),
    LeftInPlace(&'static str),
    /// Asks again until its time is over, and then leaves everything in place.
    NoProof(&'static str),
}

use Outcome::{LeftInPlace, NoProof, Uninstalled};

/// Name, outcome, and what changes at the API server before the agent is stopped.
type Case = (&'static str, Outcome, fn(&mut State));

const OUT_OF_SCOPE: &str = "node node-1 is no longer in the DaemonSet's scope: ";

fn add_taint(state: &mut State, key: &str, effect: &str) {
    state.taints = vec![json!({"key": key, "effect": effect})];
}

/// Revokes the agent's own token, as after a forced deletion of its pod, and sets the response to a
/// request with the plugin's.
fn revoke_own_token(state: &mut State, response: Option<(u16, Value)>) {
    state.tokens.retain(|token| token != "token-1");
    state.namespace = response;
}

const UNINSTALLED: &[Case] = &[
    ("DaemonSet being deleted", Uninstalled("is being deleted"), |state| {
        state.daemon_set = DaemonSetState::BeingDeleted;
    }),
    ("namespace being deleted", Uninstalled("namespace is being deleted"), |state| {
        state.daemon_set = DaemonSetState::NamespaceBeingDeleted;
    }),
    ("namespace being deleted, own token revoked", Uninstalled("namespace is"), |state| {
        revoke_own_token(state, None);
        state.daemon_set = DaemonSetState::NamespaceBeingDeleted;
    }),
    ("DaemonSet gone", Uninstalled("does not exist"), |state| {
        state.daemon_set = DaemonSetState::Status(404);
    }),
    ("node selector", Uninstalled("lacks the label pool=mesh"), |state| {
        state.placement = json!({"nodeSelector": {"pool": "mesh"}});
    }),
    ("node affinity", Uninstalled("required node affinity"), |state| {
        let wanted = json!({"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]});
        let terms = json!([{"matchExpressions": [wanted]}]);
        state.placement = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}});
    }),
    ("taint", Uninstalled("taint gpu=:NoSchedule is not tolerated"), |state| {
        add_taint(state, "gpu", "NoSchedule");
    }),
    ("taint, pod gone", Uninstalled("taint gone=:NoExecute is not tolerated"), |state| {
        add_taint(state, "gone", "NoExecute");
        state.pod = Err(404);
    }),
];

const LEFT_IN_PLACE: &[Case] = &[
    ("unchanged", LeftInPlace("the DaemonSet exists"), |_| {}),
    ("no right to read nodes", LeftInPlace("the DaemonSet exists"), |state| {
        state.node = Some(403);
    }),
    ("no such node", LeftInPlace("the DaemonSet exists"), |state| state.node = Some(404)),
    ("no right to read namespaces", LeftInPlace("the DaemonSet exists"), |state| {
        state.namespace = Some((403, json!({})));
    }),
    ("selected node with a tolerated taint", LeftInPlace("the DaemonSet exists"), |state| {
        state.placement = json!({
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
        });
        add_taint(state, "gpu", "NoExecute");
    }),
    ("new taint, container restarts", LeftInPlace("pod is not being deleted"), |state| {
        add_taint(state, "gpu", "NoSchedule");
        state.pod = Ok(json!({"name": "linkerd-cni-x", "deletionTimestamp": null}));
    }),
    ("new taint, unreadable pod", LeftInPlace("the agent cannot read its pod: "), |state| {
        add_taint(state, "gpu", "NoSchedule");
        state.pod = Err(403);
    }),
    ("orphaned pod, container restarts", LeftInPlace("pod is not being deleted"), |state| {
        state.daemon_set = DaemonSetState::Status(404);
        state.pod = Ok(json!({"name": "linkerd-cni-x", "deletionTimestamp": null}));
    }),
];

const NO_PROOF: &[Case] = &[
    ("403", NoProof("HTTP 403"), |state| state.daemon_set = DaemonSetState::Status(403)),
    ("302", NoProof("HTTP 302"), |state| state.daemon_set = DaemonSetState::Status(302)),
    (DOWN, NoProof("is unreachable"), |state| state.down = true),
    (SILENT, NoProof("last finding: the API server "), |state| state.silent = true),
    ("node 500", NoProof("HTTP 500"), |state| state.node = Some(500)),
    ("a proxy's 404", NoProof("default backend - 404"), |state| state.proxy = Some(404)),
    ("a proxy's 401", NoProof("default backend - 401"), |state| state.proxy = Some(401)),
    ("another object", NoProof("instead of DaemonSet"), |state| {
        state.daemon_set = DaemonSetState::Status(200);
    }),
    ("pod 500", NoProof("HTTP 500"), |state| {
        add_taint(state, "gpu", "NoSchedule");
        state.pod = Err(500);
    }),
    ("another object for the node", NoProof("instead of Node"), |state| {
        state.node = Some(200);
        state.placement = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
    }),
    ("namespace 429", NoProof("HTTP 429"), |state| {
        state.namespace = Some((429, json!({"message": "slow down"})));
    }),
    ("plugin's token accepted", NoProof(ACCEPTED), |state| revoke_own_token(state, None)),
    ("plugin's token accepted, 403", NoProof(ACCEPTED), |state| {
        revoke_own_token(state, Some((403, json!({"message": "no such role"}))));
    }),
    // Does not show whether the token is accepted.
    ("plugin's token, 500", NoProof("HTTP 500"), |state| {
        revoke_own_token(state, Some((500, json!({}))));
    }),
];

const DOWN: &str = "down";
const SILENT: &str = "silent";
const ACCEPTED: &str = "accepted the plugin's token";

#[test]
fn stopped_agent_uninstalls_keeps_the_plugin_or_asks_again_by_the_api_servers_response() {
    let cases = [UNINSTALLED, LEFT_IN_PLACE, NO_PROOF].into_iter().flatten();
    all(cases, |(name, outcome, change)| {
        let vars = match outcome {
            NoProof(_) => vec![GRACE, NODE, POD],
            _ => vec![NODE, POD],
        };
        let mut scene = Scene::start(&vars);
        let before = scene.api.asked("GET", DAEMONSET);
        let took = scene.stop(change);
        match outcome {
            Uninstalled(why) => {
                scene.assert_uninstalled(name);
                let log = scene.agent.log();
                assert!(log.contains(why), "{name}: {log}");
                let scoped = ["taint", "node", "label"].iter().any(|word| why.contains(word));
                assert_eq!(log.contains(OUT_OF_SCOPE), scoped, "{name}: {log}");
                assert!(took < AT_ONCE, "{name}: {took:?}");
            }
            LeftInPlace(why) => {
                scene.assert_left_in_place(name, why);
                assert!(took < AT_ONCE, "{name}: {took:?}");
            }
            NoProof(why) => {
                let no_proof = "no proof of an uninstall within 3 s; last finding: ";
                scene.assert_left_in_place(name, no_proof);
                scene.assert_left_in_place(name, why);
                assert!(took >= TIME_TO_ASK && took < TIME_TO_ASK * 10, "{name}: {took:?}");
                let asked = scene.api.asked("GET", DAEMONSET) - before;
                assert_asked_again(name, asked, &scene.agent.log());
            }
        }
    });
}

/// Checks the number of rounds, and that each change of the finding is logged once.
fn assert_asked_again(name: &str, asked: usize, log: &str) {
    let rounds = if [DOWN, SILENT].contains(&name) { 0 } else { 2 };
    assert!((rounds..6).contains(&asked), "{name}: {asked}");
    let again: Vec<_> = log.lines().filter_map(|line| line.split_once("asking again")).collect();
    // A connection can be refused in more than one way.
    assert!(again.windows(2).all(|pair| pair[0].1 != pair[1].1), "{name}: {log}");
    match name {
        SILENT => assert!(again.is_empty(), "{log}"),
        DOWN => assert!(!again.is_empty(), "{log}"),
        _ => assert_eq!(again.len(), 1, "{name}: {log}"),
    }
}

#[test]
fn agent_without_the_name_of_its_node_keeps_the_plugin() {
    let mut scene = Scene::start(&[("LINKERD_CNI_NODE_NAME", "")]);
    scene.stop(|state| {
        state.placement = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
        state.labels = json!({});
    });
    scene.assert_left_in_place("no name", "the DaemonSet exists");
}

#[test]
fn response_of_a_recovered_api_server_decides_on_the_uninstall() {
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
fn an_agent_that_found_a_kubeconfig_never_uninstalls_without_proof() {
    let account = ("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "");
    let unreachable = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let unset = [("KUBERNETES_SERVICE_HOST", ""), ("KUBERNETES_SERVICE_PORT", "")];
    all([unreachable, unset], |address| {
        let mut scene = Scene::start(&[]);
        scene.agent.kill();
        let vars = [&address[..], &[GRACE, account]].concat();
        scene.agent = scene.node.start_with(&vars);
        until("it began to work", || scene.agent.ready().0 != 0);
        scene.stop(|state| state.down = true);
        scene.assert_left_in_place(address[0].1, "the API server is unreachable");
    });
}

#[test]
fn asking_agent_is_alive_not_ready_ignores_further_signals_and_restores_removed_files() {
    let mut scene = Scene::asking();
    let kubeconfig = scene.node.inode("kubeconfig.json");
    // Without a valid token, a running agent would write its own one, which ends with its pod.
    scene.api.state().tokens.retain(|token| token == "token-1");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGTERM] {
        scene.agent.signal(signal);
        scene.node.rewrite_calico();
        fs::remove_file(scene.node.bin("linkerd-cni")).unwrap();
        until("the binary", || scene.node.is_installed());
        assert_eq!(scene.agent.get("/live").0, 200);
        assert_eq!(scene.agent.ready(), (500, "not ready: received SIGTERM\n".into()));
    }
    assert_eq!(scene.node.inode("kubeconfig.json"), kubeconfig);
    scene.api.state().daemon_set = DaemonSetState::BeingDeleted;
    assert_eq!(scene.agent.wait(), Some(0));
    scene.assert_uninstalled("after four signals");
}

#[test]
fn an_uninstall_that_fails_is_an_event_on_the_node() {
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut scene = Scene::start(&[NODE]);
    // A copy of the chain in the config of another program, which the agent must not change.
    let chained = scene.node.text(LIST);
    let multus = format!(r#"{{"type":"multus","delegates":[{chained}]}}"#);
    scene.node.write("99-multus.conf", &multus);
    scene.api.state().daemon_set = DaemonSetState::Status(404);
    assert_eq!(scene.agent.stop(), Some(1), "{}", scene.agent.log());
    let event = &scene.api.received(|request| request.path == EVENTS)[0].body;
    assert_eq!(event["reason"], "LinkerdCNIUninstallFailed");
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], "node-1");
    assert_eq!(event["regarding"]["uid"], "node-1");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("99-multus.conf") && note.contains("uninstall"), "{note}");
}
