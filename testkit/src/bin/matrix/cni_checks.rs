//! Checks that apply to one kind of primary CNI only, for three points of the job.

use testkit::cluster::helm::Helm;
use testkit::cluster::node::{Files, Node};
use testkit::cluster::pods::Pods;

use crate::checks::Checks;
use crate::primary_cni::{Kind, kind};
use crate::{cilium, istio, multus};

pub fn after_install(checks: &mut Checks) {
    let check = match kind() {
        Kind::IstioFirst => istio::assert_chained_after_istio,
        Kind::IstioAfter => istio::install_istio_second,
        _ => return,
    };
    checks.run("chained beside Istio's plugin", check);
}

pub fn while_installed(pods: &Pods, checks: &mut Checks) {
    if kind().is_istio() {
        checks.run("Istio's plugin is called", || istio::assert_both_plugins_are_called(pods));
        checks.run("both agents restore their entries", || {
            istio::assert_both_restore_their_entries(pods)
        });
        checks.run("Istio's plugin is removed and installed", || {
            istio::remove_and_install_istio(pods)
        });
    }
    if kind().is_multus() {
        checks.run("pod with a second network", || multus::start_with_second_network(pods));
    }
    if kind() == Kind::MultusThick {
        checks.run("Multus' daemon is stopped", || multus::stop_daemon(pods));
    }
}

pub fn after_uninstall(node: &Node, helm: &Helm, before: &Files, checks: &mut Checks) {
    match kind() {
        Kind::Plain => {}
        Kind::Cilium => {
            checks.run("cni.exclusive=true", || {
                cilium::install_beside_exclusive_cilium(node, helm, before)
            });
        }
        Kind::IstioFirst | Kind::IstioAfter => {
            checks.run("Istio's plugin is removed last", || istio::remove_istio_last(node, before));
        }
        Kind::MultusThin | Kind::MultusThick => {
            let pods = Pods::default();
            checks.run("called by a NetworkAttachmentDefinition", || {
                multus::install_as_attachment(helm, &pods)
            });
            checks.run("annotated by a MutatingAdmissionPolicy", || {
                multus::annotate_by_policy(helm, &pods)
            });
            checks.run("uninstall without chaining", || {
                multus::uninstall_without_chaining(node, helm, before, pods)
            });
        }
    }
}
