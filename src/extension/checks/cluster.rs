//! Checks of the cluster that apply before and after the installation. Pure.

use super::readable;
use crate::extension::api::Error;
use crate::extension::facts::Lookup;
use crate::extension::objects::ConfigMap;
use crate::extension::report::{Check, Severity, Verdict};

/// Label of a namespace with the Pod Security Standard that its pods must meet.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Checks that Cilium neither disables the plugin's network config nor bypasses the redirect rules.
pub fn cilium(category: &'static str, maps: &Result<Vec<ConfigMap>, Error>) -> Check {
    let verdict = readable(maps, "the ConfigMaps cilium-config").and_then(|maps| {
        let problems: Vec<String> = maps.iter().flat_map(cilium_problems).collect();
        Severity::Warning.if_any("Cilium's settings conflict with the plugin", &problems)
    });
    Check::new(category, "cilium", "Cilium, if installed, leaves the plugin in place", verdict)
}

fn cilium_problems(map: &ConfigMap) -> Vec<String> {
    let is_true = |key: &str| map.data.get(key).is_some_and(|value| value == "true");
    let namespace = &map.metadata.namespace;
    let mut problems = Vec::new();
    // Cilium's default is true.
    if map.data.get("cni-exclusive").is_none_or(|value| value != "false") {
        problems.push(format!(
            "{namespace}/cilium-config: cni-exclusive is not \"false\", so Cilium disables the network \
             configs of other plugins; install Cilium with cni.exclusive=false"
        ));
    }
    if is_true("kube-proxy-replacement") && !is_true("bpf-lb-sock-hostns-only") {
        problems.push(format!(
            "{namespace}/cilium-config: with kube-proxy-replacement, Cilium resolves Services before \
             the proxy sees them; install Cilium with socketLB.hostNamespaceOnly=true"
        ));
    }
    problems
}

/// Checks that Pod Security Admission admits the agent's pods. `has_pods`: it has admitted some.
pub fn pod_security(name: &str, namespace: &Lookup, has_pods: bool) -> Verdict {
    let remedy = format!("kubectl label --overwrite namespace {name} {ENFORCE}=privileged");
    let Some(namespace) = readable(namespace, &format!("namespace {name}"))? else {
        return Severity::Error.because(format!("namespace {name} does not exist"));
    };
    match namespace.metadata.labels.get(ENFORCE).map(String::as_str) {
        Some("privileged") => Ok(()),
        Some(level) => Severity::Error.because(format!(
            "the label {ENFORCE}={level} of namespace {name} rejects the agent's pods, which mount \
             directories of the node: {remedy}"
        )),
        None if has_pods => Ok(()),
        None => Severity::Warning.because(format!(
            "namespace {name} has no label {ENFORCE}. If the cluster's default is baseline or \
             restricted, the agent's pods are rejected: {remedy}"
        )),
    }
}
