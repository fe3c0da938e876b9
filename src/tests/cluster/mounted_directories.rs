//! Files that the node has and the agent's container does not.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::agent::{agent, find_agent, is_ready};
use crate::extension::cni;
use crate::node::netns_of;
use crate::pods::{self, Pods, kubectl};
use crate::scene::{OnDrop, Scene};
use crate::until::{until, until_within};

const NETWORK: &str = "/etc/cni/net.d/10-bridge.conflist";
const LINK: &str = "/etc/cni/net.d/05-link.conflist";
const BIN: &str = "/opt/cni/bin";
/// The restart takes six failed probes of `/live`, by default 10 s apart.
const PROBE: &str = "--set=livenessProbe.periodSeconds=2";
const RESTART: Duration = Duration::from_secs(60);

fn ready_text() -> String {
    let path = format!("/api/v1/namespaces/linkerd-cni/pods/{}:9991/proxy/ready", agent().pod);
    let output = pods::command(&format!("get --raw {path}")).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn is_redirected(pods: &Pods, name: &str) -> bool {
    netns_of(&pods.ip(name)).rules().contains("4143")
}

/// containerd reads the directory again when a file is removed.
fn make_runtime_read() {
    let path = "/etc/cni/net.d/trigger";
    fs::write(path, "").unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_link_out_of_the_mount_is_named_and_a_renamed_bin_dir_has_the_agent_restarted() {
    let scene = Scene::begin();
    let Scene { helm, pods, .. } = &scene;
    let target = tempfile::tempdir().unwrap();
    let outside = target.path().join("network.conflist");
    fs::copy(NETWORK, &outside).unwrap();
    helm.run("install", &[PROBE]);

    symlink(&outside, LINK).unwrap();
    let link = OnDrop(|| {
        let _ = fs::remove_file(LINK);
    });
    make_runtime_read();
    until("the agent is not ready", || find_agent().is_some_and(|agent| !agent.ready));
    let why = ready_text();
    for part in ["05-link.conflist", "a symbolic link out of the mounted directory", "remove it"] {
        assert!(why.contains(part), "{part} in {why}");
    }
    // The runtime does load the file that the agent cannot read.
    pods.start(&[pods::meshed("behind-link")]);
    assert!(!is_redirected(pods, "behind-link"));

    let (_, report) = cni(&["check", "-o", "short", "--wait=0s"]);
    let named = report.contains("× each agent is ready") && report.contains("05-link.conflist");
    assert!(named, "{report}");

    drop(link);
    make_runtime_read();
    until("the agent is ready", is_ready);
    pods.start(&[pods::meshed("without-link")]);
    assert!(is_redirected(pods, "without-link"));
    let first = agent().container;

    // Another inode under the same name, with the same files but the plugin binary.
    let renamed = format!("{BIN}.renamed");
    let copied = format!("{BIN}.copied");
    let copy = Command::new("cp").args(["-a", BIN, &copied]).status().unwrap();
    assert!(copy.success());
    fs::rename(BIN, &renamed).unwrap();
    fs::rename(&copied, BIN).unwrap();
    fs::remove_file(Path::new(BIN).join("linkerd-cni")).unwrap();

    until_within(RESTART, "kubelet restarts the agent", || {
        find_agent().is_some_and(|agent| agent.container != first && agent.ready)
    });
    fs::remove_dir_all(&renamed).unwrap();
    assert!(Path::new(BIN).join("linkerd-cni").exists());
    let name = agent().pod;
    let log = kubectl(&format!("logs -n linkerd-cni -c install-cni --previous {name}"));
    assert!(log.contains("mounts: /host/opt/cni/bin was removed or renamed on the node"), "{log}");
    scene.remove();
}
