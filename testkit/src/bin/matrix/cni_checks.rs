//! Checks that apply to one kind of primary CNI only, for three points of the job.

use testkit::cluster::helm::Helm;
use testkit::cluster::node::{Files, Node};
use testkit::cluster::pods::Pods;

use crate::checks::Checks;
use crate::primary_cni::{Kind, kind};
use crate::{cilium, istio, multus};

pub fn after_install(checks: &mut Checks) {
    let chained = match kind() {
        Kind::IstioFirst => istio::installed_after,
        Kind::IstioAfter => istio::installed_before,
        _ => return,
    };
    checks.run("chained beside Istio's plugin", chained);
}

pub fn while_installed(pods: &Pods, checks: &mut Checks) {
    if kind().is_istio() {
        checks.run("Istio's plugin is called", || istio::called(pods));
        checks.run("both agents restore their entries", || istio::both_restore(pods));
        checks
            .run("Istio's plugin is removed and installed", || istio::removed_and_installed(pods));
    }
    if kind().is_multus() {
        checks.run("pod with a second network", || multus::second_network(pods));
    }
    if kind() == Kind::MultusThick {
        checks.run("Multus' daemon is stopped", || multus::stopped_daemon(pods));
    }
}

pub fn after_uninstall(node: &Node, helm: &Helm, before: &Files, checks: &mut Checks) {
    match kind() {
        Kind::Plain => {}
        Kind::Cilium => {
            checks.run("cni.exclusive=true", || cilium::exclusive(node, helm, before));
        }
        Kind::IstioFirst | Kind::IstioAfter => {
            checks.run("Istio's plugin is removed last", || istio::removed(node, before));
        }
        Kind::MultusThin | Kind::MultusThick => {
            let pods = Pods::default();
            checks.run("called by a NetworkAttachmentDefinition", || {
                multus::called_by_an_attachment(helm, &pods)
            });
            checks.run("annotated by a MutatingAdmissionPolicy", || {
                multus::annotated_by_the_policy(helm, &pods)
            });
            checks.run("uninstall without chaining", || {
                multus::uninstalled_without_chaining(node, helm, before, pods)
            });
        }
    }
}
