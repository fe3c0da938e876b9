//! A container runtime that cannot run the plugin: pods start again, and the correction chains the
//! plugin again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::child::must;

use crate::agent::agent_pods;
use crate::pods::{self, Pods};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};
use crate::{api, events};

const BIN_DIR: &str = "/opt/cni/bin";
const PLUGIN: &str = "/opt/cni/bin/linkerd-cni";
/// Directory that is not the runtime's, and has links with the names of its plugins.
const OTHER_DIR: &str = "/opt/linkerd-cni-other";
const RECORD: &str = "/run/linkerd-cni/withdrawn";

/// Longest time until an unmeshed pod starts on a node whose runtime cannot run the plugin.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Longest time from the correction until the plugin is chained.
const CHAINED_WITHIN: Duration = Duration::from_secs(30);

/// Starts an unmeshed pod, and asserts that it starts although the runtime cannot run the plugin.
fn assert_starts_without_plugin(scene: &Scene, name: &str) {
    let begin = Instant::now();
    scene.pods.create(&[pods::unmeshed(name)]);
    until_within(STARTED_WITHIN, "the pod starts", || {
        scene.pods.pod(name)["status"]["phase"] == "Running"
    });
    println!("{:>6.1?} {name} starts without the plugin", begin.elapsed());
    assert!(!scene.node.is_chained() && Path::new(RECORD).exists(), "{name}");
    until("the Event", || events::messages("default", "LinkerdCNIWithdrawn").contains(name));
    until("the agent is not ready", || {
        agent_pods().iter().any(|agent| api::condition(agent, "Ready") == "False")
    });
}

/// Asserts that the plugin is chained soon after `begin`, and redirects a pod.
fn assert_chained_again(scene: &Scene, begin: Instant, name: &str) {
    until_within(CHAINED_WITHIN, "the plugin is chained again", || scene.node.is_chained());
    println!("{:>6.1?} chained again", begin.elapsed());
    assert!(begin.elapsed() < CHAINED_WITHIN + Duration::from_secs(30));
    let pods = Pods::default();
    pods.start(&[pods::unmeshed("client"), pods::meshed(name)]);
    pods.assert_answers("client", name, "proxy-inbound");
    assert!(!Path::new(RECORD).exists());
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn pods_start_on_a_node_whose_runtime_cannot_run_the_plugin() {
    let scene = Scene::begin();
    a_bin_dir_that_is_not_the_runtimes(&scene);
    a_plugin_that_the_kernel_does_not_start(&scene, "noexec", |file| {
        must(Command::new("mount").args(["-o", "remount,bind,noexec", file]));
    });
    a_plugin_that_the_kernel_does_not_start(&scene, "processor", |file| {
        // The header of a program for a processor that no node has (EM_M32).
        let mut bytes = fs::read(file).unwrap();
        bytes[18..20].copy_from_slice(&[1, 0]);
        fs::write(file, bytes).unwrap();
    });
    scene.remove();
}

fn a_bin_dir_that_is_not_the_runtimes(scene: &Scene) {
    fs::create_dir_all(OTHER_DIR).unwrap();
    let _remove = OnDrop(|| {
        let _ = fs::remove_dir_all(OTHER_DIR);
    });
    for plugin in fs::read_dir(BIN_DIR).unwrap() {
        let plugin = plugin.unwrap();
        symlink(plugin.path(), Path::new(OTHER_DIR).join(plugin.file_name())).unwrap();
    }
    scene.helm.run("install", &[&format!("--set=destCNIBinDir={OTHER_DIR}")]);
    assert_starts_without_plugin(scene, "other-dir");
    let begin = Instant::now();
    scene.helm.run("upgrade", &[&format!("--set=destCNIBinDir={BIN_DIR}")]);
    assert_chained_again(scene, begin, "corrected");
}

/// Mounts a changed copy of the plugin over the file of the node. The agent does not see that,
/// because the mount does not reach its container.
fn a_plugin_that_the_kernel_does_not_start(scene: &Scene, name: &str, change: fn(&str)) {
    // Each installation is new for the agent, because it has another plugin entry.
    scene.helm.run("upgrade", &[&format!("--set=excludeNamespaces={{kube-system,{name}}}")]);
    let copy = format!("/opt/linkerd-cni-{name}");
    fs::copy(PLUGIN, &copy).unwrap();
    must(Command::new("mount").args(["--bind", &copy, PLUGIN]));
    let unmount = OnDrop(|| {
        let _ = Command::new("umount").arg(PLUGIN).status();
        let _ = fs::remove_file(&copy);
    });
    change(PLUGIN);
    assert_starts_without_plugin(scene, name);
    drop(unmount);
    let begin = Instant::now();
    fs::remove_file(RECORD).unwrap();
    assert_chained_again(scene, begin, &format!("{name}-corrected"));
}
