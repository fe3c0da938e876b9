//! Releases that are uninstalled soon after their installation, and agents that stop for another
//! reason, on a real API server.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::agent::{agent, delete_by_force, find_agent, is_ready, wait_for_rollout};
use crate::api;
use crate::cni::upstream_entry;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::{kubectl, kubectl_with_stdin};
use crate::node::{copied_pods, kill_component, restart_api_server};
use crate::pods;
use crate::scene::Scene;
use crate::sigterm::{SHORT_GRACE, until_ended};
use crate::until::{until, until_within};
use crate::upstream::{self, Program};
use crate::watcher::Watcher;
use testkit::child::must;
use testkit::cluster::leftovers::remove_leftovers;
use testkit::image;

/// The grace period of the agent's pod, and some time for the kubelet.
const GRACE: Duration = Duration::from_secs(35);
/// A pod whose image is missing stays for its whole grace period, and until the kubelet's next
/// sync.
const PODS_GONE: Duration = Duration::from_secs(60);
const PKI: &str = "/var/lib/linkerd2-cni-cluster/pki";
/// Namespace of the pods in `one_account.yaml`.
const MANIFEST_NAMESPACE: &str = "one-account";

/// Waits until the node is as it was, and until the agents have ended. Asserts that the node is
/// then still as it was.
fn assert_restored(scene: &Scene, namespace: &str, what: &str) {
    let begin = Instant::now();
    until_within(GRACE, &format!("{what}: the node is as before"), || {
        scene.node.files() == scene.before
    });
    until_within(PODS_GONE, &format!("{what}: the pods are gone"), || pods::are_gone(namespace));
    println!("{:>6.1?} {what}", begin.elapsed());
    assert_eq!(scene.node.files(), scene.before, "{what}");
    assert_eq!(copied_pods(), [""; 0], "{what}");
}

fn install(chart: &str, more: &[&str]) {
    let install = ["install", "linkerd-cni", chart, "-n", NAMESPACE, "--create-namespace"];
    Helm::new().must(&[&install[..], more].concat());
}

/// Times between installation and uninstall. The kubelet needs a second or two to start the agent,
/// so the agent's accounts are deleted before, while and after it installs the plugin.
const SECONDS: [f64; 6] = [0.5, 1.0, 1.5, 2.0, 3.0, 5.0];

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn helm_uninstall_right_after_helm_install_restores_the_node() {
    let scene = Scene::begin();
    let upstream_chart = tempfile::tempdir().unwrap();
    upstream::write_chart(upstream_chart.path(), Program::OurAgent);
    let version = format!("image.version=v{}", linkerd2_cni::VERSION);
    let upstream_chart = upstream_chart.path().to_str().unwrap();
    for (name, chart, values) in [
        ("this chart", CHART, vec![]),
        ("this chart without the node's copy", CHART, vec!["--set=watchPods=false"]),
        ("upstream's chart", upstream_chart, vec!["--set", &version]),
    ] {
        for seconds in SECONDS {
            install(chart, &values);
            thread::sleep(Duration::from_secs_f64(seconds));
            scene.helm.begin_uninstall();
            assert_restored(&scene, NAMESPACE, &format!("{name}, after {seconds} s"));
        }
    }
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn node_is_restored_if_helm_uninstalls_a_failed_release() {
    let scene = Scene::begin();
    for (what, values) in [
        ("an image that does not exist", "image.version=v2.0.0-missing"),
        // The agent installs the plugin.
        ("an agent that is never ready", "readinessProbe.initialDelaySeconds=600"),
    ] {
        let mut helm = Command::new("helm");
        helm.args(["install", "linkerd-cni", CHART, "-n", NAMESPACE, "--create-namespace"]);
        helm.args(["--wait", "--rollback-on-failure", "--timeout", "15s", "--set", values]);
        let output = helm.output().unwrap();
        assert!(!output.status.success(), "{what}");
        assert_restored(&scene, NAMESPACE, what);
    }
}

/// The new agent of a rollout may start after its accounts were deleted. Then only the old agent
/// has proof.
#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn helm_uninstall_during_a_rollout_restores_the_node() {
    let scene = Scene::begin();
    for round in 0..2 {
        for seconds in [0.2, 0.5, 1.0, 1.5, 2.0] {
            install(CHART, &["--wait"]);
            kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
            thread::sleep(Duration::from_secs_f64(seconds));
            scene.helm.begin_uninstall();
            assert_restored(&scene, NAMESPACE, &format!("round {round}, after {seconds} s"));
        }
    }
}

/// A manifest with one ServiceAccount, like that of upstream's test suite.
fn manifest(namespace: &str, daemonset: &str) -> String {
    include_str!("one_account.yaml")
        .replace("NAMESPACE", namespace)
        .replace("DAEMONSET", daemonset)
        .replace("IMAGE", &image())
        .replace("ENTRY", &upstream_entry().to_string())
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn kubectl_delete_of_a_one_account_manifest_restores_the_node() {
    let scene = Scene::begin();
    for name in ["linkerd-cni", "mesh-cni"] {
        let manifest = manifest(MANIFEST_NAMESPACE, name);
        for seconds in [1.0, 2.0, 5.0] {
            kubectl_with_stdin("apply -f -", &manifest);
            thread::sleep(Duration::from_secs_f64(seconds));
            let begin = Instant::now();
            kubectl_with_stdin("delete --timeout=60s -f -", &manifest);
            let what = format!("DaemonSet {name}, deleted after {seconds} s");
            assert!(begin.elapsed() < GRACE, "{what}: {:?}", begin.elapsed());
            assert_restored(&scene, MANIFEST_NAMESPACE, &what);
        }
    }

    // The namespace stays, and the ServiceAccount is deleted with the DaemonSet.
    kubectl(&format!("create namespace {MANIFEST_NAMESPACE}"));
    let manifest = manifest(MANIFEST_NAMESPACE, "mesh-cni");
    let (_, objects) = manifest.split_once("---\n").unwrap();
    kubectl_with_stdin("apply -f -", objects);
    until("the plugin is installed", || scene.node.is_chained());
    kubectl_with_stdin("delete --wait=false -f -", objects);
    assert_restored(&scene, MANIFEST_NAMESPACE, "the namespace stays");

    // Only the DaemonSet is deleted.
    let namespace = format!("-n {MANIFEST_NAMESPACE}");
    kubectl_with_stdin("apply -f -", objects);
    kubectl(&format!("create role sets --verb=get --resource=daemonsets {namespace}"));
    let account = format!("{MANIFEST_NAMESPACE}:linkerd-cni");
    kubectl(&format!("create rolebinding sets --role=sets --serviceaccount={account} {namespace}"));
    until("the plugin is installed", || scene.node.is_chained());
    kubectl(&format!("delete daemonset mesh-cni {namespace} --wait=false"));
    assert_restored(&scene, MANIFEST_NAMESPACE, "only the DaemonSet is deleted");
    kubectl_with_stdin("delete --ignore-not-found -f -", &manifest);
}

#[test]
fn plugin_stays_installed_if_the_agents_pod_is_orphaned_or_deleted_by_force() {
    let scene = Scene::installed(&SHORT_GRACE);
    let node = &scene.node;
    let helm = &scene.helm;
    let before = &scene.before;

    let watcher = Watcher::start();
    let old = agent();
    delete_by_force(&old);
    until_ended(old.pid, "deleted by force");
    until_within(GRACE, "the next agent", || find_agent().is_some_and(|next| next.pod != old.pod));
    watcher.finish().assert_always_installed("forced deletion");

    let watcher = Watcher::start();
    let orphan = agent();
    kubectl("delete daemonset linkerd-cni -n linkerd-cni --cascade=orphan");
    kill(orphan.pid, Signal::SIGTERM).unwrap();
    until_within(GRACE, "the container runs again", || {
        let next = find_agent();
        next.is_some_and(|next| next.pod == orphan.pod && next.container != orphan.container)
    });
    until_within(GRACE, "ready", is_ready);
    let last = agent();
    api::delete(&format!("{}/{}", pods::path(NAMESPACE), last.pod));
    until_ended(last.pid, "orphaned");
    watcher.finish().assert_always_installed("orphaned pod");
    helm.uninstall();
    assert!(node.is_chained());
    remove_leftovers(node, before, "");
}

/// Gives the API server another key for the tokens of ServiceAccounts. It rejects all earlier
/// tokens then.
fn replace_signing_key() {
    kill_component("kube-apiserver");
    let private = format!("{PKI}/tokens.key");
    let public = format!("{PKI}/tokens.pub");
    must(Command::new("openssl").args(["genrsa", "-out", &private, "2048"]));
    must(Command::new("openssl").args(["rsa", "-in", &private, "-pubout", "-out", &public]));
    restart_api_server();
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn plugin_stays_installed_if_the_signing_key_is_replaced() {
    let rollout =
        "updateStrategy.rollingUpdate.maxSurge=0,updateStrategy.rollingUpdate.maxUnavailable=1";
    let scene = Scene::installed(&[&SHORT_GRACE[..], &["--set", rollout]].concat());
    for is_noticed in [true, false] {
        let watcher = Watcher::start();
        replace_signing_key();
        if is_noticed {
            until_within(Duration::from_secs(120), "the watch is rejected", || {
                // Fails while the kubelet, which also restarts, does not know the pod yet.
                let log = pods::log(NAMESPACE, &agent().pod, "install-cni").unwrap_or_default();
                log.contains("cannot watch the pods of this node: GET")
            });
        }
        kubectl("rollout restart daemonset/linkerd-cni -n linkerd-cni");
        wait_for_rollout();
        let pods = pods::list(NAMESPACE);
        assert_eq!(pods.len(), 1, "{pods:?}");
        watcher.finish().assert_always_installed("replaced signing key");
        until_within(GRACE, "ready", is_ready);
    }
    scene.remove();
}
