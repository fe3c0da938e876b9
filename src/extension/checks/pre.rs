//! Checks before the installation. Pure.

use super::cluster::{cilium, pod_security};
use super::{PRE, readable};
use crate::extension::agents::DAEMONSET;
use crate::extension::api::Error;
use crate::extension::facts::PreFacts;
use crate::extension::objects::AgentDaemonSet;
use crate::extension::report::{Check, Severity, Verdict};

/// Oldest supported Kubernetes: `kubeVersion` of the chart.
pub const OLDEST_KUBERNETES: (u32, u32) = (1, 31);

pub fn checks(facts: &PreFacts) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(PRE, hint, description, verdict);
    let (major, minor) = OLDEST_KUBERNETES;
    let is_supported = format!("Kubernetes is {major}.{minor} or later");
    let mut checks = vec![check("kubernetes-version", &is_supported, version(&facts.version))];
    checks.extend(facts.rights.iter().map(|(kind, allowed)| {
        check("rights", &format!("can create {kind}"), right(facts, kind, allowed))
    }));
    let name = &facts.namespace;
    let admits = format!("namespace {name} admits the agent's pods");
    let admission = match &facts.namespace_object {
        // It is still to be created, with the label.
        Ok(None) => Ok(()),
        found => pod_security(name, found, false),
    };
    checks.extend([
        check("namespace", &admits, admission),
        other_agents(PRE, &facts.daemonsets, name, |_| true),
        cilium(PRE, &facts.cilium),
    ]);
    checks
}

fn version(version: &Result<String, Error>) -> Verdict {
    let text = readable(version, "the version of the API server")?;
    let mut numbers = text.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(a), Some(b)) if (a, b) >= OLDEST_KUBERNETES => Ok(()),
        (Some(_), Some(_)) => {
            Severity::Error.because(format!("the API server is {text}; upgrade Kubernetes"))
        }
        _ => Severity::Warning.because(format!("unknown version of the API server: {text:?}")),
    }
}

fn right(facts: &PreFacts, kind: &str, allowed: &Result<bool, Error>) -> Verdict {
    // The namespace may exist already.
    let exists = kind == "Namespaces" && matches!(facts.namespace_object, Ok(Some(_)));
    match *readable(allowed, "your rights")? || exists {
        true => Ok(()),
        false => Severity::Error.because(format!(
            "you have no right to create {kind}; install the chart as a user with this right"
        )),
    }
}

/// Checks that there is no agent beside the one in `namespace`. `is_other` decides about DaemonSets.
pub fn other_agents(
    category: &'static str,
    daemonsets: &Result<Vec<AgentDaemonSet>, Error>,
    namespace: &str,
    is_other: impl Fn(&AgentDaemonSet) -> bool,
) -> Check {
    let verdict = readable(daemonsets, "the DaemonSets").and_then(|found| {
        let others = found.iter().filter(|daemonset| is_other(daemonset));
        let names: Vec<String> = others.map(|daemonset| describe(daemonset, namespace)).collect();
        Severity::Warning.if_any(&format!("DaemonSets with the label k8s-app={DAEMONSET}"), &names)
    });
    Check::new(category, "other-agent", "no other agent of Linkerd is installed", verdict)
}

fn describe(daemonset: &AgentDaemonSet, namespace: &str) -> String {
    let is_upstream = daemonset.admin_port.is_none();
    let whose = if is_upstream { "upstream's chart" } else { "this chart" };
    let tool = match daemonset.is_in_release {
        true => "helm upgrade",
        false => "scripts/install-cni | kubectl apply -f -",
    };
    let what = match (daemonset.namespace == namespace, is_upstream) {
        (true, true) => format!("{tool} replaces it"),
        (true, false) => format!("upgrade with {tool}, and use linkerd cni check without --pre"),
        (false, _) => "uninstall it: two agents would share the nodes' files".to_owned(),
    };
    format!("{}/{} of {whose}: {what}", daemonset.namespace, daemonset.name)
}
