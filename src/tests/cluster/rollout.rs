//! Rollouts over 60 nodes with Helm, within the times that docs/upgrade.md tells users to choose.
//!
//! API server, controllers, scheduler and Helm are real, and so is one more node with its agent. The
//! 60 nodes have simulated kubelets: their agents are ready 6 to 10 s after they are created.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::cluster::observed_agents::Seen;
use testkit::cluster::simulated_nodes::SimulatedNodes;
use testkit::repository;

use crate::api;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::node::{Files, Node};
use crate::watcher::Watcher;

const SIMULATED: usize = 60;
/// With the real node.
const NODES: usize = SIMULATED + 1;
/// A tenth of the nodes, rounded up: the chart's default `maxSurge: 10%`.
const DEFAULT_SURGE: usize = 7;
/// `--timeout` of Helm if none is given.
const HELM_TIMEOUT: Duration = Duration::from_secs(300);
/// Time-out of an upgrade that fails. It only has to be longer than the first step.
const FAILING_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for Helm to roll back: the old agents are still there.
const ROLLBACK: Duration = Duration::from_secs(30);

/// The fields are dropped in this order, also after a failure: the release, while the simulated
/// kubelets still remove its pods, then the nodes.
struct Cluster {
    helm: Helm,
    simulated: SimulatedNodes,
    node: Node,
    before: Files,
}

impl Cluster {
    fn start() -> Cluster {
        let node = Node::exclusive();
        let before = node.files();
        Cluster { helm: Helm::new(), simulated: SimulatedNodes::start(SIMULATED), node, before }
    }

    /// Installs the chart with its defaults, and Helm's. Returns how long that took.
    fn install(&self) -> Duration {
        let begin = Instant::now();
        self.helm.must(&[&["install"], &RELEASE[..], &["--create-namespace"]].concat());
        let time = begin.elapsed();
        self.simulated.until_settled();
        println!("{time:>6.1?} helm install on {NODES} nodes");
        time
    }

    /// Upgrades with these arguments of Helm, which have to replace all agents. Returns how long
    /// that took, and what was seen of the agents.
    fn upgrade(&self, what: &str, more: &[&str]) -> (Duration, Seen) {
        let agents = self.simulated.agent_uids();
        let (time, seen) = self.simulated.observe(|| {
            let begin = Instant::now();
            self.helm.must(&[&["upgrade"], &RELEASE[..], more].concat());
            begin.elapsed()
        });
        assert!(agents.is_disjoint(&self.simulated.agent_uids()), "{what} replaces each agent");
        println!("{time:>6.1?} helm upgrade with {what}");
        self.print(&seen);
        (time, seen)
    }

    /// Shows how the simulated nodes compare with the real one.
    fn print(&self, seen: &Seen) {
        println!(
            "    at most {} nodes without a ready agent, {} agents starting, {} pods above one a node",
            seen.most_without_agent, seen.most_starting, seen.most_above
        );
        for (what, times) in [("ready", &seen.ready_after), ("gone", &seen.gone_after)] {
            let mut real = Vec::new();
            let mut simulated = Vec::new();
            for (node, time) in times {
                if self.simulated.includes(node) {
                    simulated.push(*time);
                } else {
                    real.push(*time);
                }
            }
            // Empty after a failed upgrade: no agent of the new revision gets ready.
            let shortest = simulated.iter().min().copied().unwrap_or_default();
            let longest = simulated.iter().max().copied().unwrap_or_default();
            println!(
                "    {what} after {shortest:.1?} to {longest:.1?}, on the real node {real:.1?}"
            );
        }
    }

    fn remove(self) {
        self.helm.remove();
        drop(self.simulated);
        assert_eq!(api::list("/api/v1/nodes").len(), 1, "only the real node is left");
        assert_eq!(self.node.files(), self.before, "uninstalling leaves the node's files");
    }
}

const RELEASE: [&str; 5] = ["linkerd-cni", CHART, "-n", NAMESPACE, "--wait"];

/// Returns the time that docs/upgrade.md tells users to choose, if the nodes have the image.
fn documented_timeout(steps: usize) -> Duration {
    let page = fs::read_to_string(repository().join("docs/upgrade.md")).unwrap();
    let formula = "(10 s + time to pull the image) × number of steps + 2 minutes";
    assert!(page.contains(formula), "docs/upgrade.md has no longer the formula {formula}");
    Duration::from_secs(10 * steps as u64 + 120)
}

/// Asserts that each simulated node always had a ready agent, and that the DaemonSet's controller
/// used the whole surge and no more.
fn assert_no_gap(seen: &Seen, surge: usize, what: &str) {
    assert_eq!(
        seen.most_without_agent, 0,
        "{what}: without a ready agent: {:?}",
        seen.without_agent
    );
    assert_eq!(seen.most_starting, surge, "{what}: agents that start at a time");
    // The controller does not wait until the old pods are gone. They are gone before as many others
    // are ready.
    assert!(seen.most_above <= 2 * surge, "{what}: {} pods above one a node", seen.most_above);
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn helms_default_timeout_is_enough_to_install_and_upgrade_60_nodes() {
    let cluster = Cluster::start();
    let time = cluster.install();
    assert!(time < documented_timeout(1).min(HELM_TIMEOUT), "helm install took {time:?}");

    let watcher = Watcher::start();
    let (time, seen) = cluster.upgrade("the default maxSurge", &["--set=logLevel=debug"]);
    watcher.finish().assert_always_installed("the real node");
    let limit = documented_timeout(NODES.div_ceil(DEFAULT_SURGE)).min(HELM_TIMEOUT);
    assert!(time < limit, "helm upgrade took {time:?}, longer than {limit:?}");
    assert_no_gap(&seen, DEFAULT_SURGE, "the default maxSurge");

    // Shows that a node without a ready agent would have been seen.
    let pace = "--set=updateStrategy.rollingUpdate.maxUnavailable=50%";
    let (_, seen) = cluster.upgrade("maxUnavailable: 50%", &[pace]);
    assert!(seen.most_without_agent >= SIMULATED / 2, "{} nodes", seen.most_without_agent);
    assert_eq!(seen.without_agent.len(), SIMULATED, "nodes that had no ready agent for a time");
    cluster.remove();
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn documented_timeout_is_enough_to_upgrade_60_nodes_one_at_a_time() {
    let cluster = Cluster::start();
    cluster.install();
    let limit = documented_timeout(NODES);
    let timeout = format!("--timeout={}s", limit.as_secs());
    let pace = "--set=updateStrategy.rollingUpdate.maxSurge=1,logLevel=debug";
    let (time, seen) = cluster.upgrade("maxSurge: 1", &[pace, &timeout]);
    assert!(time < limit, "helm upgrade took {time:?}, longer than {limit:?}");
    // So the simulated nodes are slow enough to show that a surge of one would be a bad default.
    assert!(time > HELM_TIMEOUT, "helm upgrade took {time:?}, less than Helm's default time-out");
    assert_no_gap(&seen, 1, "maxSurge: 1");
    cluster.remove();
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn failed_upgrade_of_60_nodes_is_rolled_back_without_replacing_an_agent() {
    let cluster = Cluster::start();
    cluster.install();
    let agents = cluster.simulated.agent_uids();
    let watcher = Watcher::start();
    let ((output, time), seen) = cluster.simulated.observe(|| {
        let begin = Instant::now();
        (upgrade_to_missing_image(), begin.elapsed())
    });
    watcher.finish().assert_always_installed("the real node");
    println!("{time:>6.1?} helm upgrade to an image that does not exist");
    cluster.print(&seen);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("has been rolled back"), "{error}");
    assert!(time > FAILING_TIMEOUT, "helm upgrade took {time:?}");
    assert!(time < FAILING_TIMEOUT + ROLLBACK, "helm upgrade took {time:?}");
    assert_no_gap(&seen, DEFAULT_SURGE, "failed upgrade");
    assert_eq!(cluster.simulated.agent_uids(), agents, "each node has the agent that it had");
    let history = cluster.helm.must(&["history", "linkerd-cni", "-n", NAMESPACE, "-o", "json"]);
    assert!(history.contains("Rollback to 1"), "{history}");
    cluster.remove();
}

/// Upgrades to an image that no node has and none can pull, with Helm's flag that rolls back.
fn upgrade_to_missing_image() -> Output {
    let mut helm = Command::new("helm");
    helm.arg("upgrade").args(RELEASE).arg("--rollback-on-failure");
    helm.arg(format!("--timeout={}s", FAILING_TIMEOUT.as_secs()));
    helm.args(["--set", "image.version=v2.0.0-missing"]).output().expect("helm runs")
}
