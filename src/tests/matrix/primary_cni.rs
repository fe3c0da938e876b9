//! Where the expected results depend on the primary CNI, and the checks of one kind of primary CNI only.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::checks::Checks;
use crate::cilium;
use crate::families::setting;
use crate::helm::Helm;
use crate::job;
use crate::multus;
use crate::network;
use crate::node::{Files, Node};
use crate::pods::Pods;
use crate::runtime;

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
/// Network config that Multus' daemon writes.
const MULTUS_CONF: &str = "/etc/cni/net.d/00-multus.conf";

/// Kinds of primary CNIs whose results differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The runtime calls the primary CNI.
    Plain,
    /// A stand-in for Cilium's handling of its network config.
    Cilium,
    /// The runtime calls Multus, whose config has a copy of the primary CNI's conflist.
    MultusThin,
    /// The runtime calls Multus, which reads the primary CNI's conflist.
    MultusThick,
}

impl Kind {
    fn is_multus(self) -> bool {
        matches!(self, Kind::MultusThin | Kind::MultusThick)
    }
}

fn kind() -> Kind {
    match setting("CLUSTER_NETWORK").as_str() {
        "cilium-replayed" => Kind::Cilium,
        "multus-thick" => Kind::MultusThick,
        name if name.starts_with("multus-thin") => Kind::MultusThin,
        _ => Kind::Plain,
    }
}

/// API requests for a meshed pod: the pod, and its namespace if that may have annotations. With the thin Multus the
/// plugin runs in the copy and after Multus.
pub fn requests_of_meshed_pod() -> RangeInclusive<usize> {
    if kind() == Kind::MultusThin { 1..=4 } else { 1..=2 }
}

/// API requests for a pod without annotations. Multus does not pass the pod's annotations to its delegates, so that
/// the plugin needs the pod object.
pub fn requests_of_unmeshed_pod() -> usize {
    usize::from(kind().is_multus())
}

/// Asserts that the node's files are as before. Multus and CRI-O delete pods by plugins that they cached, so the plugin
/// binary stays.
pub fn assert_files_after_uninstall(node: &Node, before: &Files) {
    let is_kept = kind().is_multus() || runtime::deletes_from_cache();
    let before = network::unchanging(before);
    let files = || {
        let mut files = network::unchanging(&node.files());
        let binary = files.remove(Path::new(BINARY));
        assert_eq!(binary.is_some(), is_kept, "whether the plugin binary stays");
        files
    };
    if kind() == Kind::MultusThick {
        // Multus' daemon writes each capability that a plugin of its delegate ever had, until the daemon restarts.
        let without = |mut files: Files| {
            files.remove(Path::new(MULTUS_CONF));
            files
        };
        let expected = without(before.clone());
        assert_eq!(without(files()), expected, "uninstalling leaves the node's files");
        job::rewrite_network();
    }
    assert_eq!(files(), before, "uninstalling leaves the node's files");
}

pub fn while_installed(pods: &Pods, checks: &mut Checks) {
    if kind().is_multus() {
        checks.run("pod with a second network", || multus::second_network(pods));
    }
    if kind() == Kind::MultusThick {
        checks.run("Multus' daemon is stopped", || multus::stopped_daemon(pods));
    }
}

/// The node is as before the install.
pub fn after_uninstall(node: &Node, helm: &Helm, before: &Files, checks: &mut Checks) {
    match kind() {
        Kind::Plain => {}
        Kind::Cilium => {
            checks.run("cni.exclusive=true", || cilium::exclusive(node, helm, before));
        }
        Kind::MultusThin | Kind::MultusThick => {
            checks.run("called by a NetworkAttachmentDefinition", || {
                multus::called_by_an_attachment(node, helm, before)
            });
        }
    }
}
