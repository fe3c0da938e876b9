//! Tests whether a stopped agent uninstalls, for each response of the API server.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table::{self, RowName};

use crate::agent_with_api::{Scene, in_parallel};
use crate::api::{Api, DaemonSetState, State, delete_pod, owner, pod_owned_by};
use crate::node::{LIST, Node};
use crate::until::until;

/// Grace period that leaves an agent [`TIME_TO_DECIDE`].
const GRACE: (&str, &str) = ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "8");
const TIME_TO_DECIDE: Duration = Duration::from_secs(3);
/// Longest time of a decision that does not wait. Shorter than the 25 s that an agent has to decide
/// without [`GRACE`].
const AT_ONCE: Duration = Duration::from_secs(20);
/// Name of the node on which the agent runs.
const NODE: (&str, &str) = ("LINKERD_CNI_NODE_NAME", "node-1");

const OUT_OF_SCOPE: &str = "node node-1 is no longer in the DaemonSet's scope: ";

/// A row of `stop_decision.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopRow {
    owner: Option<Owner>,
    daemonset: Option<DaemonSet>,
    placement: Option<Value>,
    taint: Option<Value>,
    node: Option<u16>,
    pod: Option<u16>,
    namespace: Option<NamespaceResponse>,
    proxy: Option<u16>,
    #[serde(default)]
    down: bool,
    #[serde(default)]
    silent: bool,
    own_token: Option<OwnToken>,
    #[serde(default)]
    stays: bool,
    why: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Owner {
    DaemonSet(String),
    References(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum DaemonSet {
    Status(u16),
    State(DaemonSetName),
}

#[derive(Deserialize)]
enum DaemonSetName {
    #[serde(rename = "being deleted")]
    BeingDeleted,
    #[serde(rename = "namespace being deleted")]
    NamespaceBeingDeleted,
    #[serde(rename = "replaced")]
    Replaced,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceResponse {
    status: u16,
    body: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum OwnToken {
    Revoked,
}

impl StopRow {
    /// Changes what the API server responds before the agent is stopped.
    fn change(&self, state: &mut State) {
        state.daemon_set = match self.daemonset {
            None => DaemonSetState::Exists,
            Some(DaemonSet::Status(code)) => DaemonSetState::Status(code),
            Some(DaemonSet::State(DaemonSetName::BeingDeleted)) => DaemonSetState::BeingDeleted,
            Some(DaemonSet::State(DaemonSetName::Replaced)) => DaemonSetState::Replaced,
            Some(DaemonSet::State(DaemonSetName::NamespaceBeingDeleted)) => {
                DaemonSetState::NamespaceBeingDeleted
            }
        };
        (state.node, state.proxy) = (self.node, self.proxy);
        (state.down, state.silent) = (self.down, self.silent);
        if let Some(placement) = &self.placement {
            state.placement = placement.clone();
        }
        state.taints.extend(self.taint.clone());
        if let Some(code) = self.pod {
            state.pod = Err(code);
        }
        if let Some(OwnToken::Revoked) = self.own_token {
            state.tokens.retain(|token| token != "token-1");
        }
        if let Some(response) = &self.namespace {
            state.namespace = Some((response.status, response.body.clone()));
        }
    }

    /// Starts an agent whose pod has the owner of the row.
    fn start(&self, vars: &[(&str, &str)]) -> Scene {
        let api = Api::start();
        let mut state = api.state();
        match &self.owner {
            Some(Owner::DaemonSet(name)) => {
                state.owner.clone_from(name);
                state.pod = Ok(pod_owned_by(&json!([owner(name)])));
            }
            Some(Owner::References(references)) => {
                state.pod = Ok(pod_owned_by(&json!(references)));
            }
            None => {}
        }
        drop(state);
        Scene::start_with(api, vars)
    }
}

/// Returns the rows with this outcome.
fn rows(outcome: &str) -> impl Iterator<Item = (RowName, StopRow)> + Send {
    table::rows_of(include_str!("stop_decision.yaml"), outcome)
}

/// Stops an agent in the situation of the row. Returns the scene, the time until the agent exited,
/// and the number of requests in this time.
fn stop(row: &StopRow, vars: &[(&str, &str)]) -> (Scene, Duration, usize) {
    let mut scene = row.start(vars);
    let before = scene.api.requests().len();
    row.change(&mut scene.api.state());
    if !row.stays {
        delete_pod(&scene.api);
    }
    let begin = Instant::now();
    assert_eq!(scene.agent.stop(), Some(0), "{}", scene.agent.log());
    let requests = scene.api.requests().len() - before;
    (scene, begin.elapsed(), requests)
}

#[test]
fn stopped_agent_uninstalls_immediately_if_a_response_proves_an_uninstall() {
    in_parallel(rows("uninstalled"), |(name, row)| {
        let (scene, took, _) = stop(&row, &[NODE]);
        scene.assert_uninstalled(&name);
        let log = scene.agent.log();
        assert!(log.contains(&row.why), "{name}: {log}");
        let scoped = ["taint", "node", "label"].iter().any(|word| row.why.contains(word));
        assert_eq!(log.contains(OUT_OF_SCOPE), scoped, "{name}: {log}");
        assert!(took < AT_ONCE, "{name}: {took:?}");
    });
}

#[test]
fn stopped_agent_exits_immediately_if_a_response_disproves_an_uninstall() {
    in_parallel(rows("left in place"), |(name, row)| {
        let (scene, took, _) = stop(&row, &[NODE]);
        scene.assert_left_in_place(&name, &row.why);
        assert!(took < AT_ONCE, "{name}: {took:?}");
    });
}

#[test]
fn stopped_agent_retries_until_its_time_is_over_if_no_response_is_conclusive() {
    in_parallel(rows("no proof"), |(name, row)| {
        let (scene, took, requests) = stop(&row, &[GRACE, NODE]);
        let no_proof = "no proof of an uninstall within 3 s; last finding: ";
        scene.assert_left_in_place(&name, no_proof);
        scene.assert_left_in_place(&name, &row.why);
        assert!(took >= TIME_TO_DECIDE && took < TIME_TO_DECIDE * 10, "{name}: {took:?}");

        let fewest = if row.down || row.silent { 0 } else { 2 };
        assert!((fewest..20).contains(&requests), "{name}: {requests}");
        let log = scene.agent.log();
        let findings: Vec<_> =
            log.lines().filter_map(|line| line.split_once("asking again")).collect();
        // The agent logs a finding only if it differs from the last one. There may be several,
        // because a connection can fail in different ways.
        let are_changes = findings.windows(2).all(|pair| pair[0].1 != pair[1].1);
        assert!(are_changes, "{name}: {log}");
        if row.silent {
            assert!(findings.is_empty(), "{name}: {log}");
        } else if row.down {
            assert!(!findings.is_empty(), "{name}: {log}");
        } else {
            // There may be a second finding if the watch shows the deletion late.
            assert!((1..=2).contains(&findings.len()), "{name}: {log}");
        }
    });
}

#[test]
fn stopped_agent_that_does_not_know_its_node_keeps_the_plugin() {
    let mut scene = Scene::start(&[("LINKERD_CNI_NODE_NAME", "")]);
    scene.stop(|state| {
        state.placement = json!({"nodeSelector": {"kubernetes.io/os": "linux"}});
        state.labels = json!({});
    });
    scene.assert_left_in_place("no name", "the DaemonSet exists");
}

#[test]
fn response_of_a_recovered_api_server_decides_about_the_uninstall() {
    type Change = fn(&mut State);
    let faults: Vec<(&str, Change)> = vec![
        ("429", |state| state.daemon_set = DaemonSetState::Status(429)),
        ("down", |state| state.down = true),
        ("silent", |state| {
            (state.daemon_set, state.silent) = (DaemonSetState::Status(500), true);
        }),
    ];
    in_parallel(faults, |(what, fault)| {
        for set in [DaemonSetState::Exists, DaemonSetState::Status(404)] {
            let mut scene = Scene::start(&[]);
            fault(&mut scene.api.state());
            delete_pod(&scene.api);
            scene.agent.signal(Signal::SIGTERM);
            if what == "silent" {
                thread::sleep(Duration::from_secs(1));
            } else {
                until("the first response", || scene.agent.log().contains("asking again"));
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
fn stopped_agent_without_an_api_server_leaves_everything_in_place() {
    let account = ("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "");
    let unreachable = [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")];
    let unset = [("KUBERNETES_SERVICE_HOST", ""), ("KUBERNETES_SERVICE_PORT", "")];
    let addresses = [unreachable, unset];
    in_parallel(
        addresses.iter().flat_map(|at| [(at, true), (at, false)]),
        |(address, is_installed)| {
            let vars = [&address[..], &[GRACE, account]].concat();
            let why = "the API server is unreachable";
            if is_installed {
                let mut scene = Scene::start(&[]);
                scene.agent.kill();
                scene.agent = scene.node.start_with(&vars);
                until("the agent listens", || scene.agent.ready().0 != 0);
                scene.stop(|state| state.down = true);
                scene.assert_left_in_place(address[0].1, why);
                return;
            }
            let node = Node::with_calico();
            let mut agent = node.start_with(&vars);
            until("the agent listens", || agent.ready().0 != 0);
            let is_chained = || node.chained(LIST);
            until("the plugin is installed", || is_chained() || address == &unset);
            assert_eq!(agent.stop(), Some(0), "{}", agent.log());
            let why = if address == &unset { "nothing is installed on this node" } else { why };
            assert!(agent.log().contains(why), "{}", agent.log());
            assert_eq!(is_chained(), address != &unset, "{}", agent.log());
        },
    );
}

#[test]
fn agent_that_is_still_deciding_ignores_signals_and_restores_removed_files() {
    let mut scene = Scene::asking();
    let kubeconfig = scene.node.inode("kubeconfig.json");
    // The agent must not write its own token in place of the rejected one, because its token
    // becomes invalid when its pod is deleted.
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
fn failed_uninstall_posts_an_event_on_the_node() {
    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut scene = Scene::start(&[NODE]);
    // The config of Multus contains a copy of the plugin entry, which the agent must not change.
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

/// During a `helm uninstall` the API server rejects the agent's token, so the agent cannot post an
/// Event.
#[test]
fn next_agent_reports_an_uninstall_that_failed() {
    let api = Api::start();
    let mut node = Node::with_api(&api);
    let run_dir = node.root().join("run");
    fs::create_dir(&run_dir).unwrap();
    node.vars.push(("LINKERD_CNI_RUN_DIR", run_dir.display().to_string()));
    let mut scene = Scene::start_on(api, node, &[NODE]);
    let chained = scene.node.text(LIST);
    scene.node.write("99-multus.conf", &format!(r#"{{"type":"multus","delegates":[{chained}]}}"#));
    let tokens = std::mem::take(&mut scene.api.state().tokens);
    delete_pod(&scene.api);
    assert_eq!(scene.agent.stop(), Some(1), "{}", scene.agent.log());
    assert!(scene.agent.log().contains("cannot post an Event"), "{}", scene.agent.log());
    assert!(run_dir.join("uninstall-failed").exists());

    // An agent that ends before it could post the Event leaves the report to the next one.
    scene.api.state().tokens = tokens;
    scene.api.state().events = 503;
    let mut unheard = scene.node.start_with(&[NODE]);
    until("the failed Event", || unheard.log().contains("cannot post Events"));
    unheard.kill();
    assert!(run_dir.join("uninstall-failed").exists(), "{}", unheard.log());

    scene.api.state().events = 201;
    let before = scene.api.events().len();
    let next = scene.node.start_with(&[NODE]);
    let is_next =
        |event: &Value| event["note"].as_str().unwrap().contains("The last uninstall on this node");
    let events = || scene.api.events().into_iter().skip(before);
    until("the Event", || events().any(|event| is_next(&event)));
    let event = events().find(is_next).unwrap();
    assert_eq!(event["reason"], "LinkerdCNIUninstallFailed");
    assert_eq!(event["regarding"]["name"], "node-1");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("99-multus.conf"), "{event}");
    // The note contains the time of the failure, which starts with the year.
    assert!(note.contains("failed at 20"), "{event}");
    let log = next.log();
    assert!(log.contains("the last uninstall on this node failed"), "{log}");
    until("the record is removed", || !run_dir.join("uninstall-failed").exists());
}
