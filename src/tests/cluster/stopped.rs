//! Agents that receive SIGTERM on a real node: either the plugin stays installed at every instant, or it is
//! uninstalled.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::agent::{agent, find_agent, rolled_out};
use crate::helm::Helm;
use crate::node::Node;
use crate::pods::kubectl;
use crate::until::{until, until_within};
use crate::watcher::Watcher;

const RELEASE: [&str; 3] = ["linkerd-cni", "-n", "linkerd-cni"];
/// A grace period of 10 s, for agents that get no proof of an uninstall and use it up. The schema accepts no shorter one
/// than the default of 30 s.
const SHORT_GRACE: [&str; 2] =
    ["--skip-schema-validation", "--set=terminationGracePeriodSeconds=10"];
/// Upper bound of the time in which an agent uninstalls. The API server accepts tokens of deleted accounts for 10 s, and
/// the agent wants rejections for 4 s. An agent that misses them ends after its grace period of 30 s and leaves the files
/// in place.
const UNINSTALL: Duration = Duration::from_secs(60);

fn restart() {
    kubectl(&["rollout", "restart", "daemonset/linkerd-cni", "-n", "linkerd-cni"]);
    rolled_out();
}

#[test]
fn a_deleted_role_binding_and_a_restart_leave_no_instant_without_the_plugin() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &SHORT_GRACE);

    let watcher = Watcher::start();
    kubectl(&["delete", "rolebinding", "linkerd-cni-agent", "-n", "linkerd-cni"]);
    restart_with_default_grace();
    watcher.finish().assert_always_installed("RoleBinding deleted, restart");

    let watcher = Watcher::start();
    let begin = Instant::now();
    helm.begin_uninstall();
    until_within(UNINSTALL, "the node is as it was", || node.files() == before);
    println!("helm uninstall without a RoleBinding: {:.1?}", begin.elapsed());
    watcher.finish().assert_never_stranded("helm uninstall");
    helm.end_uninstall();
    assert_eq!(node.files(), before);
}

#[test]
fn a_node_that_leaves_the_daemonsets_scope_is_given_back_as_it_was() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);

    let begin = Instant::now();
    helm.run("upgrade", &["--set", "nodeSelector.pool=elsewhere"]);
    until_within(UNINSTALL, "the node is as it was", || node.files() == before);
    println!("nodeSelector elsewhere: {:.1?}", begin.elapsed());

    let name = kubectl(&["get", "nodes", "-o", "name"]);
    kubectl(&["label", name.trim(), "pool=elsewhere"]);
    let label = Label(name.trim().to_owned());
    until("the plugin is installed again", || find_agent().is_some_and(|agent| agent.ready));
    assert!(node.is_chained());
    drop(label);
    until_within(UNINSTALL, "the node is as it was", || node.files() == before);
    helm.remove();
    assert_eq!(node.files(), before);
}

/// Sets the default grace period in the DaemonSet, which restarts the agent.
fn restart_with_default_grace() {
    let env = json!({"name": "LINKERD_CNI_TERMINATION_GRACE_SECONDS", "value": "30"});
    let container = json!({"name": "install-cni", "env": [env]});
    let spec = json!({"terminationGracePeriodSeconds": 30, "containers": [container]});
    let patch = json!({"spec": {"template": {"spec": spec}}}).to_string();
    kubectl(&["patch", "daemonset", "linkerd-cni", "-n", "linkerd-cni", "--patch", &patch]);
    rolled_out();
}

/// The label `pool` of a node. Dropping the value removes it.
struct Label(String);

impl Drop for Label {
    fn drop(&mut self) {
        kubectl(&["label", &self.0, "pool-"]);
    }
}

#[test]
fn an_agent_that_is_restarted_and_stopped_in_an_api_outage_leaves_the_plugin_installed() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &SHORT_GRACE);

    let first = agent().pid;
    let watcher = Watcher::start();
    node.without_api_server(|| {
        kill(first, Signal::SIGKILL).unwrap();
        let mut next = first;
        until("kubelet restarts the agent", || {
            let found = processes().into_iter().find(|pid| *pid != first);
            next = found.unwrap_or(first);
            next != first && handles_signals(next)
        });
        kill(next, Signal::SIGTERM).unwrap();
        let begin = Instant::now();
        until_within(UNINSTALL, "the agent has ended", || !processes().contains(&next));
        println!("stopped in an API outage: ends after {:.1?}", begin.elapsed());
    });
    until("an agent is ready", || find_agent().is_some_and(|agent| agent.ready));
    watcher.finish().assert_always_installed("API outage, SIGKILL, SIGTERM");
    helm.remove();
    assert_eq!(node.files(), before);
}

#[test]
fn a_rollback_to_upstreams_chart_leaves_no_instant_without_the_plugin() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.install_upstream();
    until("upstream's chart is installed", || node.entry().is_some());
    helm.run("upgrade", &[&["--reset-then-reuse-values"], &SHORT_GRACE[..]].concat());
    assert_eq!(node.linkerd_entry()["linkerd"]["iptables-mode"], "auto");

    let watcher = Watcher::start();
    helm.must(&[&["rollback"], &RELEASE[..], &["1"]].concat());
    rolled_out();
    until("the plugin entry is upstream's", || {
        node.linkerd_entry()["linkerd"]["iptables-mode"] == "nft"
    });
    watcher.finish().assert_always_installed("helm rollback");

    // Agents of upstream's chart have no right to read the DaemonSet.
    let watcher = Watcher::start();
    restart();
    watcher.finish().assert_always_installed("restart under upstream's chart");

    let watcher = Watcher::start();
    let old = agent();
    let force = ["--force", "--grace-period=0"];
    kubectl(&[&["delete", "pod", &old.pod, "-n", "linkerd-cni"], &force[..]].concat());
    let begin = Instant::now();
    until_within(UNINSTALL, "the agent has ended", || !processes().contains(&old.pid));
    println!("deleted by force: ends after {:.1?}", begin.elapsed());
    watcher.finish().assert_always_installed("forced deletion under upstream's chart");

    let begin = Instant::now();
    helm.begin_uninstall();
    until_within(UNINSTALL, "the node is as it was", || node.files() == before);
    println!("helm uninstall of upstream's chart: {:.1?}", begin.elapsed());
    helm.end_uninstall();
    assert_eq!(node.files(), before);
}

/// The agents of the namespace `linkerd-cni` on this machine, found without the API server.
fn processes() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_agent = |pid: &i32| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap_or_default();
        program.is_ok_and(|path| path == Path::new("/usr/bin/linkerd2-cni-install"))
            && !environment.contains("LINKERD_CNI_NAMESPACE=idle")
    };
    pids.filter(is_agent).map(Pid::from_raw).collect()
}

/// Whether an agent has blocked SIGTERM, which its main loop then reads.
fn handles_signals(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let mask = u64::from_str_radix(blocked.unwrap_or_default().trim(), 16).unwrap_or(0);
    mask & (1 << (Signal::SIGTERM as i32 - 1)) != 0
}
