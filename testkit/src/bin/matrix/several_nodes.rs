//! The job for several nodes: checks that need more than one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use testkit::cluster::agent::process_of;
use testkit::cluster::events;
use testkit::cluster::families::{Family, state};
use testkit::cluster::helm::Helm;
use testkit::cluster::kubectl::kubectl;
use testkit::cluster::pods::{self, Pods};
use testkit::until::{until, until_within};

use crate::agents::{self, AgentPod, SeenAgents};
use crate::checks::Checks;
use crate::machine::Machine;

/// The meshed pods of the first, second and third node.
const MESHED: [&str; 3] = ["meshed-one", "meshed-two", "meshed-three"];
/// A meshed pod on the second node, which starts after the node was drained.
const POD_AFTER_DRAIN: &str = "after-drain";
const TAINT: &str = "linkerd.io/cni-not-ready";
const ROLLOUT: Duration = Duration::from_secs(180);
const TIMEOUT: &str = "--timeout=180s";

/// Runs every check. The first two nodes are in the cluster, without the plugin. The third node
/// joins later.
pub fn run(names: [&str; 3], image: &Path, checks: &mut Checks) {
    let first = Machine::in_cluster(names[0]);
    let second = Machine::in_cluster(names[1]);
    let helm = Helm::new();
    let pods = Pods::default();
    if !checks.run("install on tainted nodes", || install(&helm, &pods, [&first, &second])) {
        return;
    }
    checks.run("repair on one node", || assert_repaired_by_its_own_node(&pods, &second));
    let mut third = None;
    checks.run("a node joins", || {
        let third = third.insert(Machine::join(&first, names[2], TAINT));
        assert_pod_waits_for_agent(&pods, third, image)
    });
    let Some(third) = third else { return };
    let all = [&first, &second, &third];
    checks.run("connections between nodes", || connect_between_nodes(&pods, all));
    checks.run("Events of each node", || assert_one_event_for_each_pod(all));
    checks.run("rollout with a surge", || roll_out_with_surge(&helm, all));
    checks.run("rollout without a surge", || roll_out_without_surge(&helm, all));
    checks.run("SIGKILL on one node", || kill_agent(&second, all));
    checks.run("one node leaves the DaemonSet's scope", || {
        assert_always_installed_during([&first, &second], || {
            remove_node_from_scope_and_return_it(&pods, &third)
        })
    });
    checks.run("one node is drained", || drain_node(&pods, &second, all));
    checks.run("uninstall", || uninstall(&helm, all));
    checks.run("pods started before the uninstall are deleted", || {
        delete_one_pod_of_each_node(pods, all)
    });
}

fn install(helm: &Helm, pods: &Pods, nodes: [&Machine; 2]) -> String {
    pods.start(&[nodes[0].only(pods::unmeshed("client"))]);
    pods.create(&[nodes[1].only(pods::validated("stranded", "1s"))]);
    pods.until_stranded("stranded");
    for node in nodes {
        kubectl(&format!("taint node {} {TAINT}=:NoSchedule", node.name));
    }
    let begin = Instant::now();
    helm.run("install", &[&format!("--set=startupTaint={TAINT}"), TIMEOUT]);
    for node in nodes {
        until("the startup taint is removed", || !node.has_taint(TAINT));
        assert!(node.has_plugin(), "{}", node.name);
    }
    format!("two nodes ready and without the startup taint after {:.1?}", begin.elapsed())
}

/// Asserts that the repair controller of the pod's node repairs the pod `stranded`, and that the
/// controllers of other nodes send no API request about it.
fn assert_repaired_by_its_own_node(pods: &Pods, node: &Machine) -> String {
    pods.until_ready("stranded");
    let uid = pods.uid("stranded");
    let agent = agents::by_node()[&node.name].name.clone();
    let event = only_event("stranded", "LinkerdCNINotConfigured");
    assert_eq!(event["involvedObject"]["uid"], *uid, "{event}");
    assert_eq!(event["reportingInstance"], *agent, "{event}");
    assert_eq!(event["action"], "Repairing", "{event}");
    let controllers = controllers_that_asked_about("stranded");
    assert_eq!(controllers, BTreeSet::from([agent]), "pods with API requests about the pod");
    assert_redirected(pods, "client", "stranded");
    "repaired in place; one Event, which the agent of the pod's node sent; no API request of \
     another node"
        .to_owned()
}

/// Asserts that a pod waits on a new node until the agent is ready there. The agent has to wait,
/// too, because its image is loaded on the node only later.
fn assert_pod_waits_for_agent(pods: &Pods, third: &Machine, image: &Path) -> String {
    let name = third.name.as_str();
    pods.create(&[third.only(pods::native_sidecar("patient"))]);
    until("the agent's pod is on the new node", || agents::by_node().contains_key(name));
    until("the scheduler rejects the pod", || {
        let pod = pods.pod("patient");
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["reason"] == "Unschedulable")
    });
    assert!(third.has_taint(TAINT));
    assert!(!third.has_plugin());
    let agents = agents::by_node();
    third.load(image);
    let begin = Instant::now();
    until("the startup taint is removed", || !third.has_taint(TAINT));
    assert!(third.has_plugin());
    pods.until_ready("patient");
    let validator = &pods.pod("patient")["status"]["initContainerStatuses"][0];
    assert_eq!(validator["restartCount"], 0, "the validator passed at its first try");
    assert_others_are_same(name, &agents);
    let seconds = begin.elapsed().as_secs_f64();
    format!(
        "the pod waited until the agent removed the startup taint, and was ready {seconds:.1} s \
         after the image was loaded on the node"
    )
}

/// Starts a meshed pod on each node. Asserts that each pod reaches the pods of the other nodes
/// through the proxies.
fn connect_between_nodes(pods: &Pods, all: [&Machine; 3]) -> String {
    for (name, node) in MESHED.iter().zip(all) {
        // An invalid element results in an Event.
        let mut pod = pods::meshed(name);
        pod["metadata"]["annotations"]["config.linkerd.io/skip-inbound-ports"] =
            "7777,wrong".into();
        pods.create(&[node.only(pod)]);
    }
    for name in MESHED {
        pods.until_ready(name);
        assert_redirected(pods, "client", name);
    }
    let mut pairs = 0;
    for from in MESHED {
        for to in MESHED {
            if from == to {
                continue;
            }
            let target = Family::all()[0].to(&pods.ip(to), 8080);
            pods.assert_connects([from, "app", &target], "proxy-outbound", &target);
            pods.assert_connects([from, "linkerd-proxy", &target], "proxy-inbound", &target);
            pairs += 1;
        }
    }
    format!("redirected from the first node to each, and in all {pairs} ordered pairs of nodes")
}

/// Asserts that each pod of [`MESHED`] has one Event, which the agent of the pod's node has sent.
fn assert_one_event_for_each_pod(all: [&Machine; 3]) -> String {
    let agents = agents::by_node();
    for (name, node) in MESHED.iter().zip(all) {
        let event = only_event(name, "LinkerdCNIPortsIgnored");
        assert_eq!(event["reportingInstance"], *agents[&node.name].name, "{event}");
        assert_eq!(event["involvedObject"]["name"], *name, "{event}");
    }
    "one Event for each pod, each of the agent on the pod's node".to_owned()
}

/// Upgrades with a surge. The same upgrade limits the DaemonSet to nodes with a label, which all
/// three nodes have.
fn roll_out_with_surge(helm: &Helm, all: [&Machine; 3]) -> String {
    for node in all {
        kubectl(&format!("label node {} pool=meshed", node.name));
    }
    let agents = assert_stays_installed_during(all, || {
        helm.run("upgrade", &["--reuse-values", "--set=nodeSelector.pool=meshed", TIMEOUT]);
    });
    assert_eq!(
        agents.most_without_agent, 0,
        "nodes without a ready agent: {:?}",
        agents.without_agent
    );
    assert_replaced_one_by_one(&agents)
}

/// Upgrades without a surge: the agent of a node ends before the next one starts there.
fn roll_out_without_surge(helm: &Helm, all: [&Machine; 3]) -> String {
    let pace =
        "updateStrategy.rollingUpdate.maxUnavailable=1,updateStrategy.rollingUpdate.maxSurge=0";
    let set = format!("--set={pace},ignoreInboundPorts=9999");
    let agents = assert_stays_installed_during(all, || {
        helm.run("upgrade", &["--reuse-values", &set, TIMEOUT]);
    });
    assert_eq!(agents.most_without_agent, 1, "most nodes without a ready agent");
    let replaced = &agents.without_agent;
    assert_eq!(replaced.len(), all.len(), "each was replaced: {replaced:?}");
    assert_replaced_one_by_one(&agents)
}

/// Asserts that the agent of each node was replaced once, and that never two agents started at the
/// same time.
fn assert_replaced_one_by_one(agents: &SeenAgents) -> String {
    assert_eq!(agents.most_starting, 1, "agents that start at a time");
    let order = agents.order();
    let distinct_nodes: BTreeSet<_> = order.iter().collect();
    assert!(distinct_nodes.len() == 3 && order.len() == 3, "{order:?}");
    format!(
        "at most {} without a ready agent; order: {}",
        agents.most_without_agent,
        order.join(", ")
    )
}

/// Runs `event`, and waits until the agents of all nodes are ready. Asserts that the plugin is
/// always installed on all nodes meanwhile. Returns what was seen of the agents.
fn assert_stays_installed_during(nodes: [&Machine; 3], event: impl FnOnce()) -> SeenAgents {
    until_ready(nodes);
    assert_always_installed_during(nodes, || {
        let recorder = SeenAgents::watch(&nodes.map(|node| node.name.as_str()));
        event();
        until_ready(nodes);
        let mut agents = recorder.finish();
        agents.record();
        agents
    })
}

fn until_ready(nodes: [&Machine; 3]) {
    until_within(ROLLOUT, "a ready agent on each node", || nodes.iter().all(has_ready_agent));
}

/// Runs `event`. Asserts that the plugin is always installed on these nodes meanwhile.
fn assert_always_installed_during<const COUNT: usize, T>(
    nodes: [&Machine; COUNT],
    event: impl FnOnce() -> T,
) -> T {
    let watchers = nodes.map(Machine::watch);
    let result = event();
    for (node, watcher) in nodes.iter().zip(watchers) {
        watcher.finish().assert_always_installed(&node.name);
    }
    result
}

fn has_ready_agent(node: &&Machine) -> bool {
    agents::by_node().get(&node.name).is_some_and(|agent| agent.ready)
}

fn assert_others_are_same(node: &str, before: &BTreeMap<String, AgentPod>) {
    let mut current = agents::by_node();
    // The agent of this node may differ.
    current.insert(node.to_owned(), before[node].clone());
    assert_eq!(current, *before, "the agents of the other nodes are the same");
}

/// Kills the agent of one node. Asserts that the agents of the other nodes do not change.
fn kill_agent(node: &Machine, all: [&Machine; 3]) -> String {
    let before = agents::by_node();
    let begin = Instant::now();
    let agents = assert_stays_installed_during(all, || {
        let container = &before[&node.name].container;
        kill(process_of(container).unwrap(), Signal::SIGKILL).unwrap();
        until_within(ROLLOUT, "another container", || {
            let agents = agents::by_node();
            agents[&node.name].container != *container && agents[&node.name].ready
        });
    });
    let others = agents.without_agent.iter().filter(|name| **name != node.name);
    assert_eq!(others.count(), 0, "{:?}", agents.without_agent);
    assert_others_are_same(&node.name, &before);
    format!("ready again after {:.1?}; the others unchanged", begin.elapsed())
}

/// Removes the label that keeps a node in the DaemonSet's scope, and adds it again. Asserts that
/// the plugin is uninstalled meanwhile.
fn remove_node_from_scope_and_return_it(pods: &Pods, node: &Machine) -> String {
    let before = agents::by_node();
    let begin = Instant::now();
    kubectl(&format!("label node {} pool-", node.name));
    until("the node's files are as found", || node.files() == node.before);
    let uninstall_time = begin.elapsed();
    until("the agent's pod is deleted", || !agents::by_node().contains_key(&node.name));
    assert_others_are_same(&node.name, &before);
    pods.start(&[node.only(pods::meshed("out-of-scope"))]);
    pods.assert_answers("client", "out-of-scope", "app-of-out-of-scope");
    // Pods that started on the node before keep their redirect rules.
    assert_redirected(pods, "client", "meshed-three");

    kubectl(&format!("label node {} pool=meshed", node.name));
    until("the plugin is installed again", || node.has_plugin() && has_ready_agent(&node));
    pods.start(&[node.only(pods::meshed("in-scope"))]);
    assert_redirected(pods, "client", "in-scope");
    format!("uninstalled there after {uninstall_time:.1?}, installed again; the others unchanged")
}

/// Drains a node. Asserts that its agent stays, and that a pod that starts there later is
/// redirected.
fn drain_node(pods: &Pods, node: &Machine, all: [&Machine; 3]) -> String {
    let name = &node.name;
    assert_always_installed_during(all, || {
        let before = agents::by_node();
        kubectl(&format!(
            "drain {name} --ignore-daemonsets --force --grace-period=1 --timeout=120s"
        ));
        let left = kubectl(&format!("get pods -A -o name --field-selector=spec.nodeName={name}"));
        let agent = format!("pod/{}", before[name].name);
        assert_eq!(left.trim(), agent, "only the agent's pod is left on the node");
        kubectl(&format!("uncordon {name}"));
        assert_eq!(agents::by_node(), before, "all agents are the same");
    });
    pods.start(&[node.only(pods::native_sidecar(POD_AFTER_DRAIN))]);
    assert_redirected(pods, "client", POD_AFTER_DRAIN);
    "its pods deleted, its agent kept; a new pod there is redirected".to_owned()
}

fn uninstall(helm: &Helm, all: [&Machine; 3]) -> String {
    helm.uninstall();
    for node in all {
        assert_eq!(node.files(), node.before, "files of {}", node.name);
    }
    let pods = Pods::default();
    pods.start(&[all[0].only(pods::unmeshed("after"))]);
    for node in all {
        let name = format!("unredirected-{}", node.name);
        pods.start(&[node.only(pods::meshed(&name))]);
        pods.assert_answers("after", &name, &format!("app-of-{name}"));
    }
    "the files of all nodes as found; pods on each of them start".to_owned()
}

/// Deletes one pod of each node. The runtimes call DEL for them with a network config that no
/// longer has the plugin entry.
fn delete_one_pod_of_each_node(pods: Pods, all: [&Machine; 3]) -> String {
    // The drain has deleted the first pod of the second node.
    for name in [MESHED[0], POD_AFTER_DRAIN, MESHED[2]] {
        kubectl(&format!("delete pod -n {name} {name} --grace-period=1 --timeout=60s"));
    }
    drop(pods);
    for node in all {
        kubectl(&format!("label node {} pool-", node.name));
    }
    "one pod of each node".to_owned()
}

fn assert_redirected(pods: &Pods, unmeshed: &str, meshed: &str) {
    let family = Family::all()[0];
    let to_unmeshed = family.to(&pods.ip(unmeshed), 8080);
    let to_meshed = family.to(&pods.ip(meshed), 8080);
    // A proxy responds with the original destination.
    pods.assert_connects([unmeshed, "app", &to_meshed], "proxy-inbound", &to_meshed);
    pods.assert_connects([meshed, "app", &to_unmeshed], "proxy-outbound", &to_unmeshed);
    // The rules exempt the proxy.
    let app = format!("app-of-{unmeshed}");
    pods.assert_connects([meshed, "linkerd-proxy", &to_unmeshed], &app, "");
}

/// Waits for the Event with this reason, and returns it. Panics if there are several such Events,
/// or if the Event was sent more than once.
fn only_event(namespace: &str, reason: &str) -> Value {
    until("the Event", || !events::list(namespace, reason).is_empty());
    let mut events = events::list(namespace, reason);
    assert_eq!(events.len(), 1, "{events:?}");
    let event = events.remove(0);
    // An Event that was sent once may have neither number.
    let count = event["count"].as_u64().unwrap_or(1);
    let series_count = event["series"]["count"].as_u64().unwrap_or(1);
    assert_eq!([count, series_count], [1, 1], "{event}");
    event
}

/// Returns the pods whose repair controllers sent API requests about this namespace.
fn controllers_that_asked_about(namespace: &str) -> BTreeSet<String> {
    let log = fs::read_to_string(state().join("audit.log")).unwrap();
    let mut pods = BTreeSet::new();
    for line in log.lines() {
        // The last line may be incomplete.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let program = event["userAgent"].as_str().unwrap_or_default();
        if program.starts_with("linkerd-cni-repair-controller/")
            && event["objectRef"]["namespace"] == namespace
        {
            let pod = &event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
            pods.insert(pod.as_str().unwrap_or("?").to_owned());
        }
    }
    pods
}
