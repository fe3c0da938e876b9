//! Expected results that depend on the primary CNI.

use std::ops::RangeInclusive;
use std::path::Path;

use testkit::cluster::families::setting;
use testkit::cluster::node::{Files, Node};

use crate::{istio, network, runtime};

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const MULTUS_CONF: &str = "/etc/cni/net.d/00-multus.conf";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// A stand-in for Cilium's handling of its network config.
    Cilium,
    /// The runtime calls Multus, whose config has a copy of the primary CNI's conflist.
    MultusThin,
    /// The runtime calls Multus, which reads the primary CNI's conflist.
    MultusThick,
    IstioFirst,
    IstioAfter,
}

impl Kind {
    pub fn is_multus(self) -> bool {
        matches!(self, Kind::MultusThin | Kind::MultusThick)
    }

    pub fn is_istio(self) -> bool {
        matches!(self, Kind::IstioFirst | Kind::IstioAfter)
    }
}

/// Returns the kind of this cluster's primary CNI.
pub fn kind() -> Kind {
    match setting("CLUSTER_NETWORK").as_str() {
        "cilium-replayed" => Kind::Cilium,
        "istio-cni-after" => Kind::IstioAfter,
        "istio-cni-first" => Kind::IstioFirst,
        "multus-thick" => Kind::MultusThick,
        name if name.starts_with("multus-thin") => Kind::MultusThin,
        _ => Kind::Plain,
    }
}

/// Returns the expected number of API requests for a meshed pod: one for the pod, and one for its
/// namespace if the namespace's annotations may apply. With the thin Multus the plugin runs twice.
pub fn requests_of_meshed_pod() -> RangeInclusive<usize> {
    if kind() == Kind::MultusThin { 1..=4 } else { 1..=2 }
}

/// Returns the expected number of API requests for an unmeshed pod. With Multus there is one,
/// because Multus does not pass the pod's annotations to its delegates, so the plugin needs the pod
/// object.
pub fn requests_of_unmeshed_pod() -> usize {
    usize::from(kind().is_multus())
}

/// Whether the plugin entry is in the conflist, together with that of Istio if the node has one.
pub fn is_chained_again(node: &Node) -> bool {
    match kind() {
        Kind::IstioFirst | Kind::IstioAfter => istio::is_chained(),
        _ => node.entry().is_some(),
    }
}

/// Returns the name of the check in which the daemons of the primary CNI restart.
pub fn restart_check() -> &'static str {
    if kind().is_istio() { "Istio's agent restarts" } else { "the primary CNI restarts" }
}

/// Asserts that the node's files are as before the installation, and describes the result. There
/// are two exceptions:
///
/// - The plugin binary stays on nodes with Multus or CRI-O, which delete pods with the network
///   config that they have cached.
/// - Istio's plugin stays if it was installed after linkerd-cni.
pub fn assert_files_after_uninstall(node: &Node, before: &Files) -> &'static str {
    let is_kept = kind().is_multus() || runtime::deletes_from_cache();
    match kind() {
        Kind::IstioAfter => {
            istio::until_only_istio_is_left(node, before);
            return "Istio's plugin stays chained, other files of the node as before";
        }
        Kind::IstioFirst => istio::until_as_before(node, before),
        _ => {}
    }
    let before = network::unchanging(before);
    if kind() == Kind::MultusThick {
        // The config of Multus is not compared before the daemon restarts: until then, the daemon
        // writes each capability that a plugin of its delegate ever had.
        let mut expected = before.clone();
        let mut actual = files_without_binary(node, is_kept);
        expected.remove(Path::new(MULTUS_CONF));
        actual.remove(Path::new(MULTUS_CONF));
        assert_eq!(actual, expected, "uninstalling leaves the node's files");
        network::rewrite_config();
    }
    let actual = files_without_binary(node, is_kept);
    assert_eq!(actual, before, "uninstalling leaves the node's files");
    "the node's files as before"
}

/// Returns the node's files without the plugin binary. Fails unless the binary is there if it
/// `is_kept`, and missing otherwise.
fn files_without_binary(node: &Node, is_kept: bool) -> Files {
    let mut files = network::unchanging(&node.files());
    let binary = files.remove(Path::new(BINARY));
    assert_eq!(binary.is_some(), is_kept, "whether the plugin binary stays");
    files
}
