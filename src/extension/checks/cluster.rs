//! Checks of the cluster that apply before and after the installation. Pure.

use super::unreadable;
use crate::extension::facts::Lookup;
use crate::extension::objects::{AnyObject, ConfigMap};
use crate::extension::report::{Check, bullets};

/// Label of a namespace with the Pod Security Standard that its pods must meet.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Checks that Cilium neither disables the plugin's network config nor bypasses the redirect rules.
pub fn cilium(category: &'static str, cilium: &Result<Vec<ConfigMap>, String>) -> Check {
    let check = Check::new(category, "cilium", "Cilium, if installed, leaves the plugin in place");
    let maps = match cilium {
        Ok(maps) => maps,
        Err(why) => return unreadable(check, "the ConfigMaps cilium-config", why),
    };
    let problems: Vec<String> = maps.iter().flat_map(cilium_problems).collect();
    match problems.is_empty() {
        true => check,
        false => check.warning(bullets("Cilium's settings conflict with the plugin", &problems)),
    }
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
pub fn pod_security(
    check: Check,
    name: &str,
    namespace: &Lookup<AnyObject>,
    has_pods: bool,
) -> Check {
    let remedy = format!("kubectl label --overwrite namespace {name} {ENFORCE}=privileged");
    let namespace = match namespace {
        Ok(Some(namespace)) => namespace,
        Ok(None) => return check.error(format!("namespace {name} does not exist")),
        Err(why) => return unreadable(check, &format!("namespace {name}"), why),
    };
    match namespace.metadata.labels.get(ENFORCE).map(String::as_str) {
        Some("privileged") => check,
        Some(level) => check.error(format!(
            "the label {ENFORCE}={level} of namespace {name} rejects the agent's pods, which mount \
             directories of the node: {remedy}"
        )),
        None if has_pods => check,
        None => check.warning(format!(
            "namespace {name} has no label {ENFORCE}. If the cluster's default is baseline or \
             restricted, the agent's pods are rejected: {remedy}"
        )),
    }
}
