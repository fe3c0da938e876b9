//! The job of a row of the matrix: install, connections, upgrades, faults, uninstall.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::cluster::agent::{Paused, agent, agent_pods, kill_agent, wait_for_rollout};
use testkit::cluster::burst;
use testkit::cluster::connections::{
    assert_connections_are_redirected, assert_linkerd_check_passes,
    assert_native_sidecar_is_redirected, assert_new_pods_skip_port_9999,
};
use testkit::cluster::families::{Family, setting};
use testkit::cluster::helm::{Helm, NAMESPACE};
use testkit::cluster::kubectl::kubectl;
use testkit::cluster::node::{Files, Node};
use testkit::cluster::pods::{self, Pods};
use testkit::cluster::watcher::Watcher;
use testkit::until::until_within;

use crate::checks::Checks;
use crate::{cni_checks, network, primary_cni, runtime};

/// Runs every check. If the installation fails, no further check runs.
pub fn run(values: &str, checks: &mut Checks) {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::new();
    let pods = Pods::default();
    let install_args: &[&str] = if values.is_empty() { &[] } else { &["--set", values] };
    let mut stranded = pods::validated("stranded", "1s");
    if runtime::has_user_namespaces() {
        stranded["spec"]["hostUsers"] = json!(false);
    }
    pods.create(&[stranded]);
    pods.until_stranded("stranded");
    if !checks.run("install", || install(&helm, install_args)) {
        return;
    }
    checks.run("a pod that started before is repaired", || assert_repaired(&pods, "stranded"));
    if setting("CLUSTER_MOUNTS") == "private" {
        checks.run("a pod that started beside the plugin is repaired", || {
            strand_and_repair_a_later_pod(&pods)
        });
    }
    cni_checks::after_install(checks);
    while_installed(&node, &helm, &pods, checks);
    cni_checks::while_installed(&pods, checks);
    checks.run("uninstall", || uninstall(&node, &helm, &before));
    checks.run("pods started before the uninstall are deleted", || delete_pods(&node, pods));
    if runtime::deletes_from_cache() {
        checks.run("the kept plugin binary is removed", || {
            runtime::remove_kept_binary(&node, &before)
        });
    }
    cni_checks::after_uninstall(&node, &helm, &before, checks);
}

fn while_installed(node: &Node, helm: &Helm, pods: &Pods, checks: &mut Checks) {
    checks.run("connections", || {
        assert_connections_are_redirected(pods);
        let families: Vec<_> = Family::all().into_iter().map(Family::name).collect();
        format!("8 connections as expected over {}", families.join(" and "))
    });
    checks.run("API requests", || {
        let counts = ["meshed", "unmeshed"].map(|name| node.api_requests(name));
        assert_eq!(counts, [0, 0], "API requests for a meshed and an unmeshed pod");
        "none".to_owned()
    });
    checks.run("API requests without the node's copy", || {
        count_requests_without_copy(node, helm, pods)
    });
    checks.run("native sidecar", || {
        assert_native_sidecar_is_redirected(pods);
        "the validator passed".to_owned()
    });
    if runtime::has_user_namespaces() {
        checks.run("a pod in a user namespace", || runtime::start_in_user_namespace(pods));
    }
    checks.run("helm test", || {
        helm.must(&["test", "linkerd-cni", "-n", NAMESPACE, "--timeout", "60s"]);
        "passed".to_owned()
    });
    checks.run("the primary CNI rewrites its file", || rewrite_config(node));
    let daemons = network::daemons();
    if !daemons.is_empty() {
        checks.run(primary_cni::restart_check(), || restart_network(&daemons, pods));
    }
    if setting("CLUSTER_NETWORK") == "calico" {
        checks.run("network policies", || network::policies(pods));
    }
    checks.run("upgrade", || {
        let result = assert_no_gap_during("helm upgrade", || {
            helm.run("upgrade", &["--reuse-values", "--set", "ignoreInboundPorts=9999"]);
        });
        assert_new_pods_skip_port_9999(pods);
        result
    });
    checks.run("rollout restart", || {
        assert_no_gap_during("kubectl rollout restart", || {
            kubectl(&format!("rollout restart daemonset/linkerd-cni -n {NAMESPACE}"));
            wait_for_rollout();
        })
    });
    checks.run("SIGKILL", || assert_no_gap_during("SIGKILL of the agent", kill_agent));
    checks.run("the container runtime restarts", || runtime::restart(pods));
}

pub fn install(helm: &Helm, args: &[&str]) -> String {
    let begin = Instant::now();
    helm.run("install", args);
    assert_linkerd_check_passes();
    format!("ready after {:.1} s", begin.elapsed().as_secs_f64())
}

/// Asserts that the repair controller, which the chart enables by default, repairs the pod in
/// place.
fn assert_repaired(pods: &Pods, name: &str) -> String {
    let uid = pods.uid(name);
    let begin = Instant::now();
    pods.until_ready(name);
    assert_eq!(pods.uid(name), uid, "the pod is replaced");
    format!("in place, ready after {:.1} s", begin.elapsed().as_secs_f64())
}

/// Returns how often the container of the repair controller was restarted.
fn controller_restarts() -> u64 {
    let agent = agent_pods().remove(0);
    let mut statuses = agent["status"]["containerStatuses"].as_array().unwrap().iter();
    let controller = statuses.find(|status| status["name"] == "repair-controller").unwrap();
    controller["restartCount"].as_u64().unwrap()
}

/// Asserts that a pod is repaired that starts after the repair controller, while the plugin is not
/// chained. The controller's container restarts once, because it does not show netns that were
/// mounted after its start.
fn strand_and_repair_a_later_pod(pods: &Pods) -> String {
    assert_eq!(controller_restarts(), 0, "for the pod that started before");
    let paused = Paused::process(agent().pid);
    network::rewrite_config();
    pods.create(&[pods::validated("beside", "1s")]);
    pods.until_stranded("beside");
    drop(paused);
    let repair = assert_repaired(pods, "beside");
    assert_eq!(controller_restarts(), 1, "for the pod that started later");
    wait_for_rollout();
    format!("{repair}; the container of the repair controller restarted once")
}

/// Checks how many API requests the plugin sends if no agent keeps the node's copy.
fn count_requests_without_copy(node: &Node, helm: &Helm, pods: &Pods) -> String {
    helm.run("upgrade", &["--reuse-values", "--set", "watchPods=false"]);
    pods.start(&[pods::meshed("asked"), pods::unmeshed("skipped")]);
    let meshed = node.api_requests("asked");
    let unmeshed = node.api_requests("skipped");
    assert!(
        primary_cni::requests_of_meshed_pod().contains(&meshed),
        "{meshed} API requests for a meshed pod"
    );
    let expected = primary_cni::requests_of_unmeshed_pod();
    assert_eq!(unmeshed, expected, "API requests for a pod without injection annotations");
    helm.run("upgrade", &["--reuse-values", "--set", "watchPods=true"]);
    format!("meshed pod {meshed}, unmeshed pod {unmeshed}")
}

/// Checks that the agent chains the plugin again after the primary CNI has written its config.
fn rewrite_config(node: &Node) -> String {
    let before = config_stamps();
    network::rewrite_config();
    until_within(Duration::from_secs(30), "the primary CNI writes its file", || {
        config_stamps() != before
    });
    let begin = Instant::now();
    until_within(Duration::from_secs(30), "the plugin entry is back", || {
        primary_cni::is_chained_again(node)
    });
    format!("chained again after {:.3} s", begin.elapsed().as_secs_f64())
}

/// Returns inode and time of change of each network config. They show whether a file was written.
fn config_stamps() -> Vec<(PathBuf, u64, i64, i64)> {
    let mut stamps = Vec::new();
    for entry in fs::read_dir("/etc/cni/net.d").unwrap().flatten() {
        let path = entry.path();
        if !path.to_string_lossy().contains(".conf") {
            continue;
        }
        if let Ok(file) = path.symlink_metadata() {
            stamps.push((path, file.ino(), file.ctime(), file.ctime_nsec()));
        }
    }
    stamps.sort();
    stamps
}

fn restart_network(daemons: &str, pods: &Pods) -> String {
    let result = assert_no_gap_during(&format!("a restart of {daemons}"), || {
        network::cluster("restart-network");
    });
    pods.assert_answers("unmeshed", "meshed", "proxy-inbound");
    format!("{daemons}: {result}")
}

/// Starts pods during `event`. Asserts that the plugin is always installed, and that each pod is
/// redirected.
fn assert_no_gap_during(what: &str, event: impl FnOnce()) -> String {
    let watcher = Watcher::start();
    burst::start_annotated_pods_during(what, event);
    watcher.finish().assert_always_installed(what);
    "every pod redirected; the plugin always installed".to_owned()
}

pub fn uninstall(node: &Node, helm: &Helm, before: &Files) -> String {
    helm.uninstall();
    let files = primary_cni::assert_files_after_uninstall(node, before);
    let pods = Pods::default();
    pods.start(&[pods::meshed("later")]);
    pods.assert_answers("later", "later", "app-of-later");
    format!("{files}; new pods start without redirection")
}

/// Deletes the pods that were started before the uninstall. The runtime calls DEL for them with the
/// current network config, or with the cached one, which still names the plugin.
fn delete_pods(node: &Node, pods: Pods) -> String {
    if runtime::deletes_from_cache() {
        runtime::assert_deletion_needs_binary(node, "meshed");
    }
    let names = ["meshed", "unmeshed", "sidecar"];
    for name in names {
        let delete = format!("delete pod -n {name} {name} --grace-period=1 --timeout=120s");
        kubectl(&format!("{delete} --ignore-not-found"));
        assert!(!runtime::has_cached(name), "the runtime has deleted {name}, but not its network");
    }
    drop(pods);
    format!("{} pods", names.len())
}
