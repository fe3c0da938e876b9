//! Checks of Cilium's exclusive mode, which renames and overwrites what other programs write.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use testkit::cluster::agent::DAEMONSET;
use testkit::cluster::helm::{CHART, Helm, NAMESPACE};
use testkit::cluster::node::{Files, Node};
use testkit::cluster::pods::{self, Pods};
use testkit::cluster::watcher::Watcher;
use testkit::cluster::{api, events};
use testkit::until::{until, until_within};

use crate::{agents, network};

/// File that makes the stand-in for Cilium's agent exclusive when the stand-in starts.
const EXCLUSIVE: &str = "/var/lib/linkerd2-cni-cluster/cilium-exclusive";
const CONFLIST: &str = "/etc/cni/net.d/05-cilium.conflist";
const OTHER: &str = "/etc/cni/net.d/10-other.conflist";
/// Time in which the agent's writes are counted.
const COUNTED: Duration = Duration::from_secs(60);
/// Largest number of writes in that time. The agent waits 50 ms after the first write, and after
/// each further write a third longer, up to 10 s.
const MAX_WRITES: usize = 22;

/// Installs the plugin while Cilium is exclusive. Asserts that the agent names the remedy, and that
/// it gets ready once Cilium is not exclusive any more.
pub fn install_beside_exclusive_cilium(node: &Node, helm: &Helm, before: &Files) -> String {
    fs::write(EXCLUSIVE, "").unwrap();
    network::rewrite_config();
    fs::copy(CONFLIST, OTHER).unwrap();
    let renamed_config = format!("{OTHER}.cilium_bak");
    until("Cilium renames other network configs", || Path::new(&renamed_config).exists());
    let install = ["install", "linkerd-cni", CHART, "-n", NAMESPACE];
    helm.must(&[&install[..], &["--create-namespace"]].concat());
    until("the Event names the remedy", || {
        events::messages("default", "LinkerdCNIContention").contains("cni.exclusive=false")
    });
    // At no time may the active conflist have the plugin entry without binary and kubeconfig.
    let writes_before = agents::logged_writes();
    let watcher = Watcher::start();
    thread::sleep(COUNTED);
    watcher.finish().assert_never_stranded("contention with Cilium");
    let writes = agents::logged_writes() - writes_before;
    assert!((1..=MAX_WRITES).contains(&writes), "{writes} writes in {COUNTED:?}");
    assert_eq!(ready_agents(), 0, "the agent is not ready while the entry is removed");
    let pods = Pods::default();
    pods.start(&[pods::unmeshed("unmeshed")]);

    fs::remove_file(EXCLUSIVE).unwrap();
    network::rewrite_config();
    until_within(Duration::from_secs(60), "the agent is ready", || ready_agents() == 1);
    pods.start(&[pods::meshed("meshed")]);
    helm.uninstall();
    fs::remove_file(renamed_config).unwrap();
    assert_eq!(&node.files(), before);
    drop(pods);
    format!(
        "not ready, Event with the remedy, {writes} writes in {COUNTED:?}; ready without exclusive \
         mode"
    )
}

fn ready_agents() -> u64 {
    // A number of 0 is missing.
    api::get(DAEMONSET)["status"]["numberAvailable"].as_u64().unwrap_or_default()
}
