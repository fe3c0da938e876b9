//! The job for several nodes: checks that need more than one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use testkit::cluster::agent::process_of;
use testkit::cluster::families::{Family, state};
use testkit::cluster::helm::Helm;
use testkit::cluster::kubectl::get_items;
use testkit::cluster::pods::{self, Pods, kubectl};
use testkit::until::{until, until_within};

use crate::agents::{self, AgentPod, SeenAgents};
use crate::checks::Checks;
use crate::machine::Machine;

const MESHED: [&str; 3] = ["meshed-one", "meshed-two", "meshed-three"];
const TAINT: &str = "linkerd.io/cni-not-ready";
const ROLLOUT: Duration = Duration::from_secs(180);
const TIMEOUT: &str = "--timeout=180s";

/// Runs every check. The first two nodes are in the cluster, without the plugin. The third node
/// joins later.
pub fn run(names: [&str; 3], image: &Path, checks: &mut Checks) {
    let [first, second] = [names[0], names[1]].map(Machine::in_cluster);
    let helm = Helm::new();
    let pods = Pods::default();
    if !checks.run("install on tainted nodes", || install(&helm, &pods, [&first, &second])) {
        return;
    }
    checks.run("repair on one node", || repaired_by_its_own_node(&pods, &second));
    let mut third = None;
    checks.run("a node joins", || {
        let third = third.insert(Machine::join(&first, names[2], TAINT));
        starts_after_the_agent(&pods, third, image)
    });
    let Some(third) = third else { return };
    let all = [&first, &second, &third];
    checks.run("connections between nodes", || connections(&pods, all));
    checks.run("Events of each node", || events(all));
    checks.run("rollout with a surge", || surge(&helm, all));
    checks.run("rollout without a surge", || unavailable(&helm, all));
    checks.run("SIGKILL on one node", || killed(&second, all));
    checks.run("one node leaves the DaemonSet's scope", || {
        always_installed([&first, &second], || leaves_and_returns(&pods, &third))
    });
    checks.run("one node is drained", || drained(&pods, &second, all));
    checks.run("uninstall", || uninstall(&helm, all));
    checks.run("pods started before the uninstall are deleted", || deleted(pods, all));
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

fn repaired_by_its_own_node(pods: &Pods, node: &Machine) -> String {
    pods.until_ready("stranded");
    let uid = pods.field("stranded", ".metadata.uid");
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

/// Checks that a pod waits on a new node until the agent is ready there. The agent has to wait,
/// too, because its image is loaded on the node only later.
fn starts_after_the_agent(pods: &Pods, third: &Machine, image: &Path) -> String {
    let name = third.name.as_str();
    pods.create(&[third.only(pods::native_sidecar("patient"))]);
    until("the agent's pod is on the new node", || agents::by_node().contains_key(name));
    let reason = r#".status.conditions[?(@.type=="PodScheduled")].reason"#;
    until("the scheduler rejects the pod", || pods.field("patient", reason) == "Unschedulable");
    assert!(third.has_taint(TAINT));
    assert!(!third.has_plugin());
    let agents = agents::by_node();
    third.load(image);
    let begin = Instant::now();
    until("the startup taint is removed", || !third.has_taint(TAINT));
    assert!(third.has_plugin());
    pods.until_ready("patient");
    let restarts = pods.field("patient", ".status.initContainerStatuses[0].restartCount");
    assert_eq!(restarts, "0", "the validator passed at its first try");
    assert_others_are_same(name, &agents);
    let seconds = begin.elapsed().as_secs_f64();
    format!(
        "the pod waited until the agent removed the startup taint, and was ready {seconds:.1} s \
         after the image was loaded on the node"
    )
}

fn connections(pods: &Pods, all: [&Machine; 3]) -> String {
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
    let pairs = MESHED.iter().flat_map(|from| MESHED.map(|to| (*from, to)));
    let pairs: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
    for (from, to) in &pairs {
        let target = Family::all()[0].to(&pods.ip(to), 8080);
        for (container, responder) in
            [("app", "proxy-outbound"), ("linkerd-proxy", "proxy-inbound")]
        {
            pods.assert_connects([from, container, &target], responder, &target);
        }
    }
    format!(
        "redirected from the first node to each, and in all {} ordered pairs of nodes",
        pairs.len()
    )
}

fn events(all: [&Machine; 3]) -> String {
    let agents = agents::by_node();
    for (name, node) in MESHED.iter().zip(all) {
        let event = only_event(name, "LinkerdCNIPortsIgnored");
        assert_eq!(event["reportingInstance"], *agents[&node.name].name, "{event}");
        assert_eq!(event["involvedObject"]["name"], *name, "{event}");
    }
    "one Event for each pod, each of the agent on the pod's node".to_owned()
}

/// Checks a rollout with a surge. The same upgrade limits the DaemonSet to nodes with a label,
/// which all three nodes have.
fn surge(helm: &Helm, all: [&Machine; 3]) -> String {
    for node in all {
        kubectl(&format!("label node {} pool=meshed", node.name));
    }
    let seen = undisturbed(all, || {
        helm.run("upgrade", &["--reuse-values", "--set=nodeSelector.pool=meshed", TIMEOUT]);
    });
    assert_eq!(seen.most_without_agent, 0, "nodes without a ready agent: {:?}", seen.without_agent);
    one_after_the_other(&seen)
}

fn unavailable(helm: &Helm, all: [&Machine; 3]) -> String {
    let pace =
        "updateStrategy.rollingUpdate.maxUnavailable=1,updateStrategy.rollingUpdate.maxSurge=0";
    let set = format!("--set={pace},ignoreInboundPorts=9999");
    let seen = undisturbed(all, || helm.run("upgrade", &["--reuse-values", &set, TIMEOUT]));
    assert_eq!(seen.most_without_agent, 1, "most nodes without a ready agent");
    let replaced = &seen.without_agent;
    assert_eq!(replaced.len(), all.len(), "each was replaced: {replaced:?}");
    one_after_the_other(&seen)
}

fn one_after_the_other(seen: &SeenAgents) -> String {
    assert_eq!(seen.most_starting, 1, "agents that start at a time");
    let order = seen.order();
    assert!(order.iter().collect::<BTreeSet<_>>().len() == 3 && order.len() == 3, "{order:?}");
    format!(
        "at most {} without a ready agent; order: {}",
        seen.most_without_agent,
        order.join(", ")
    )
}

/// Runs `event`, and waits until the agents of all nodes are ready. Asserts that the plugin is
/// always installed on all nodes meanwhile. Returns what was seen of the agents.
fn undisturbed(nodes: [&Machine; 3], event: impl FnOnce()) -> SeenAgents {
    until_ready(nodes);
    always_installed(nodes, || {
        let watch = SeenAgents::watch(&nodes.map(|node| node.name.as_str()));
        event();
        until_ready(nodes);
        let mut seen = watch.finish();
        seen.record();
        seen
    })
}

fn until_ready(nodes: [&Machine; 3]) {
    until_within(ROLLOUT, "a ready agent on each node", || nodes.iter().all(has_ready_agent));
}

fn always_installed<const COUNT: usize, T>(
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
    let mut now = agents::by_node();
    now.insert(node.to_owned(), before[node].clone());
    assert_eq!(now, *before, "the agents of the other nodes are the same");
}

fn killed(node: &Machine, all: [&Machine; 3]) -> String {
    let before = agents::by_node();
    let begin = Instant::now();
    let seen = undisturbed(all, || {
        let container = &before[&node.name].container;
        kill(process_of(container).unwrap(), Signal::SIGKILL).unwrap();
        until_within(ROLLOUT, "another container", || {
            let agents = agents::by_node();
            agents[&node.name].container != *container && agents[&node.name].ready
        });
    });
    let others = seen.without_agent.iter().filter(|name| **name != node.name);
    assert_eq!(others.count(), 0, "{:?}", seen.without_agent);
    assert_others_are_same(&node.name, &before);
    format!("ready again after {:.1?}; the others unchanged", begin.elapsed())
}

fn leaves_and_returns(pods: &Pods, node: &Machine) -> String {
    let before = agents::by_node();
    let begin = Instant::now();
    kubectl(&format!("label node {} pool-", node.name));
    until("the node's files are as found", || node.files() == node.before);
    let took = begin.elapsed();
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
    format!("uninstalled there after {took:.1?}, installed again; the others unchanged")
}

fn drained(pods: &Pods, node: &Machine, all: [&Machine; 3]) -> String {
    let name = &node.name;
    always_installed(all, || {
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
    pods.start(&[node.only(pods::native_sidecar("refilled"))]);
    assert_redirected(pods, "client", "refilled");
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
fn deleted(pods: Pods, all: [&Machine; 3]) -> String {
    for name in [MESHED[0], "refilled", MESHED[2]] {
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
    let [from, to] = [unmeshed, meshed].map(|name| family.to(&pods.ip(name), 8080));
    for (pod, container, target, responder) in [
        (unmeshed, "app", &to, "proxy-inbound"),
        (meshed, "app", &from, "proxy-outbound"),
        (meshed, "linkerd-proxy", &from, &*format!("app-of-{unmeshed}")),
    ] {
        let original = if responder.starts_with("proxy") { target } else { "" };
        pods.assert_connects([pod, container, target], responder, original);
    }
}

/// Waits for the Event with this reason, and returns it. Panics if there are several such Events,
/// or if the Event was sent more than once.
fn only_event(namespace: &str, reason: &str) -> Value {
    let events = || get_items(&format!("events -n {namespace} --field-selector=reason={reason}"));
    until("the Event", || !events().is_empty());
    let mut events = events();
    assert_eq!(events.len(), 1, "{events:?}");
    let event = events.remove(0);
    let sent =
        [&event["count"], &event["series"]["count"]].map(|count| count.as_u64().unwrap_or(1));
    assert_eq!(sent, [1, 1], "{event}");
    event
}

fn controllers_that_asked_about(namespace: &str) -> BTreeSet<String> {
    let log = fs::read_to_string(state().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let asked = events.filter(|event| {
        let agent = event["userAgent"].as_str().unwrap_or_default();
        agent.starts_with("linkerd-cni-repair-controller/")
            && event["objectRef"]["namespace"] == namespace
    });
    let pod = "authentication.kubernetes.io/pod-name";
    asked.map(|event| event["user"]["extra"][pod][0].as_str().unwrap_or("?").to_owned()).collect()
}
