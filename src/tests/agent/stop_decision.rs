//! Whether a stopped agent uninstalls, by the API server's response.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use testkit::chart::yaml;

use crate::agent_with_api::{Scene, all};
use crate::api::{Api, DaemonSetState, State, delete_pod, owner, pod_owned_by};
use crate::node::{LIST, Node};
use crate::until::until;

/// Leaves an agent three seconds to ask.
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "8");
const TIME_TO_ASK: Duration = Duration::from_secs(3);
/// Shorter than the 25 s that an agent has to ask without [`GRACE`].
const AT_ONCE: Duration = Duration::from_secs(20);
/// The node that the agent runs on.
const NODE: (&str, &str) = ("LINKERD_CNI_NODE_NAME", "node-1");

const OUT_OF_SCOPE: &str = "node node-1 is no longer in the DaemonSet's scope: ";

/// Changes what the API server responds before the agent is stopped, as a case of
/// `stop_decision.yaml` says.
fn change(state: &mut State, case: &Value) {
    let status = |key: &str| case[key].as_u64().map(|code| code as u16);
    state.daemon_set = match (status("daemonset"), case["daemonset"].as_str()) {
        (Some(code), _) => DaemonSetState::Status(code),
        (_, Some("being deleted")) => DaemonSetState::BeingDeleted,
        (_, Some("replaced")) => DaemonSetState::Replaced,
        (_, Some(_)) => DaemonSetState::NamespaceBeingDeleted,
        _ => DaemonSetState::Exists,
    };
    (state.node, state.proxy) = (status("node"), status("proxy"));
    (state.down, state.silent) = (case["down"] == true, case["silent"] == true);
    if let Some(placement) = case.get("placement") {
        state.placement = placement.clone();
    }
    state.taints.extend(case.get("taint").cloned());
    if let Some(code) = status("pod") {
        state.pod = Err(code);
    }
    if case["own_token"] == "revoked" {
        state.tokens.retain(|token| token != "token-1");
    }
    let namespace = &case["namespace"];
    state.namespace = namespace[0].as_u64().map(|code| (code as u16, namespace[1].clone()));
}

/// An agent whose pod has the owner of the case: a DaemonSet of this name, or other references.
fn start(case: &Value, vars: &[(&str, &str)]) -> Scene {
    let api = Api::start();
    let mut state = api.state();
    match &case["owner"] {
        Value::String(name) => {
            state.owner.clone_from(name);
            state.pod = Ok(pod_owned_by(&json!([owner(name)])));
        }
        Value::Null => {}
        references => state.pod = Ok(pod_owned_by(references)),
    }
    drop(state);
    Scene::start_with(api, vars)
}

const DOWN: &str = "down";
const SILENT: &str = "silent";

#[test]
fn stopped_agent_uninstalls_keeps_the_plugin_or_asks_again_by_the_api_servers_response() {
    let cases = yaml(include_str!("stop_decision.yaml"));
    let cases = cases.as_object().unwrap().iter();
    let cases = cases.flat_map(|(outcome, cases)| {
        cases.as_object().unwrap().iter().map(move |(name, case)| (outcome.as_str(), name, case))
    });
    all(cases, |(outcome, name, case)| {
        let why = case["why"].as_str().unwrap();
        let vars = match outcome {
            "no proof" => vec![GRACE, NODE],
            _ => vec![NODE],
        };
        let mut scene = start(case, &vars);
        let before = scene.api.requests().len();
        change(&mut scene.api.state(), case);
        if case["stays"] != true {
            delete_pod(&scene.api);
        }
        let begin = Instant::now();
        assert_eq!(scene.agent.stop(), Some(0), "{}", scene.agent.log());
        let took = begin.elapsed();
        match outcome {
            "uninstalled" => {
                scene.assert_uninstalled(name);
                let log = scene.agent.log();
                assert!(log.contains(why), "{name}: {log}");
                let scoped = ["taint", "node", "label"].iter().any(|word| why.contains(word));
                assert_eq!(log.contains(OUT_OF_SCOPE), scoped, "{name}: {log}");
                assert!(took < AT_ONCE, "{name}: {took:?}");
            }
            "left in place" => {
                scene.assert_left_in_place(name, why);
                assert!(took < AT_ONCE, "{name}: {took:?}");
            }
            _ => {
                let no_proof = "no proof of an uninstall within 3 s; last finding: ";
                scene.assert_left_in_place(name, no_proof);
                scene.assert_left_in_place(name, why);
                assert!(took >= TIME_TO_ASK && took < TIME_TO_ASK * 10, "{name}: {took:?}");
                let asked = scene.api.requests().len() - before;
                assert_asked_again(name, asked, &scene.agent.log());
            }
        }
    });
}

/// Checks the number of requests, and that each change of the finding is logged once.
fn assert_asked_again(name: &str, asked: usize, log: &str) {
    let at_least = if [DOWN, SILENT].contains(&name) { 0 } else { 2 };
    assert!((at_least..20).contains(&asked), "{name}: {asked}");
    let again: Vec<_> = log.lines().filter_map(|line| line.split_once("asking again")).collect();
    // A connection can be refused in more than one way.
    assert!(again.windows(2).all(|pair| pair[0].1 != pair[1].1), "{name}: {log}");
    match name {
        SILENT => assert!(again.is_empty(), "{log}"),
        DOWN => assert!(!again.is_empty(), "{log}"),
        // The watch may show the deletion only after the first round.
        _ => assert!((1..=2).contains(&again.len()), "{name}: {log}"),
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
            delete_pod(&scene.api);
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
fn an_agent_without_an_api_server_leaves_everything_in_place() {
    let account = ("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "");
    let unreachable = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let unset = [("KUBERNETES_SERVICE_HOST", ""), ("KUBERNETES_SERVICE_PORT", "")];
    let addresses = [unreachable, unset];
    all(addresses.iter().flat_map(|at| [(at, true), (at, false)]), |(address, is_installed)| {
        let vars = [&address[..], &[GRACE, account]].concat();
        let why = "the API server is unreachable";
        if is_installed {
            let mut scene = Scene::start(&[]);
            scene.agent.kill();
            scene.agent = scene.node.start_with(&vars);
            until("it began to work", || scene.agent.ready().0 != 0);
            scene.stop(|state| state.down = true);
            scene.assert_left_in_place(address[0].1, why);
            return;
        }
        let node = Node::with_calico();
        let mut agent = node.start_with(&vars);
        until("it began to work", || agent.ready().0 != 0);
        let is_chained = || node.chained(LIST);
        until("the plugin is installed", || is_chained() || address == &unset);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        let says = if address == &unset { "nothing is installed on this node" } else { why };
        assert!(agent.log().contains(says), "{}", agent.log());
        assert_eq!(is_chained(), address != &unset, "{}", agent.log());
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
    delete_pod(&scene.api);
    assert_eq!(scene.agent.stop(), Some(1), "{}", scene.agent.log());
    let event = &scene.api.received(|request| request.path == EVENTS)[0].body;
    assert_eq!(event["reason"], "LinkerdCNIUninstallFailed");
    assert_eq!(event["regarding"]["kind"], "Node");
    assert_eq!(event["regarding"]["name"], "node-1");
    assert_eq!(event["regarding"]["uid"], "node-1");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("99-multus.conf") && note.contains("uninstall"), "{note}");
}
