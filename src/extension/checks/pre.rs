//! Checks before the installation. Pure.

use super::cluster::{cilium, pod_security};
use super::{PRE, unreadable};
use crate::extension::agents::DAEMONSET;
use crate::extension::objects::{AgentDaemonSet, RELEASE};
use crate::extension::pre_facts::PreFacts;
use crate::extension::report::Check;

/// Oldest supported Kubernetes: `kubeVersion` of the chart.
pub const OLDEST_KUBERNETES: (u32, u32) = (1, 31);

pub fn checks(facts: &PreFacts) -> Vec<Check> {
    let mut checks = vec![version(&facts.version)];
    for (kind, allowed) in &facts.rights {
        let check = Check::new(PRE, "rights", format!("can create {kind}"));
        checks.push(match allowed {
            Ok(true) => check,
            // The namespace may exist already.
            Ok(false) if *kind == "Namespaces" && matches!(facts.namespace_object, Ok(Some(_))) => {
                check
            }
            Ok(false) => check.error(format!(
                "you have no right to create {kind}; install the chart as a user with this right"
            )),
            Err(why) => unreadable(check, "your rights", why),
        });
    }
    let name = &facts.namespace;
    let security =
        Check::new(PRE, "namespace", format!("namespace {name} admits the agent's pods"));
    checks.push(match &facts.namespace_object {
        // It is still to be created, with the label.
        Ok(None) => security,
        found => pod_security(security, name, found, false),
    });
    checks.push(other_agents(facts));
    checks.push(cilium(PRE, &facts.cilium));
    checks
}

fn version(version: &Result<String, String>) -> Check {
    let (major, minor) = OLDEST_KUBERNETES;
    let check =
        Check::new(PRE, "kubernetes-version", format!("Kubernetes is {major}.{minor} or later"));
    let text = match version {
        Ok(text) => text,
        Err(why) => return unreadable(check, "the version of the API server", why),
    };
    let mut numbers = text.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(a), Some(b)) if (a, b) >= OLDEST_KUBERNETES => check,
        (Some(_), Some(_)) => check.error(format!("the API server is {text}; upgrade Kubernetes")),
        _ => check.warning(format!("unknown version of the API server: {text:?}")),
    }
}

fn other_agents(facts: &PreFacts) -> Check {
    let check = Check::new(PRE, "other-agent", "no other agent of Linkerd is installed");
    let found = match &facts.daemonsets {
        Ok(found) => found,
        Err(why) => return unreadable(check, "the DaemonSets", why),
    };
    let names: Vec<String> = found.iter().map(|daemonset| describe(daemonset, facts)).collect();
    check.warning_if_any(&format!("DaemonSets with the label k8s-app={DAEMONSET}"), &names)
}

fn describe(daemonset: &AgentDaemonSet, facts: &PreFacts) -> String {
    let metadata = &daemonset.metadata;
    let is_upstream = daemonset.spec.template.spec.admin_port().is_none();
    let whose = if is_upstream { "upstream's chart" } else { "this chart" };
    let tool = match metadata.annotations.contains_key(RELEASE) {
        true => "helm upgrade",
        false => "scripts/install-cni | kubectl apply -f -",
    };
    let what = match (metadata.namespace == facts.namespace, is_upstream) {
        (true, true) => format!("{tool} replaces it"),
        (true, false) => format!("upgrade with {tool}, and use linkerd cni check without --pre"),
        (false, _) => "uninstall it first: two agents would share the nodes' files".to_owned(),
    };
    format!("{}/{} of {whose}: {what}", metadata.namespace, metadata.name)
}
