//! Checks before the installation, which apply after it too.

use serde_json::Value;

use crate::extension::agents::DAEMONSET;
use crate::extension::api::{Api, find, list};
use crate::extension::facts::{self, readable};
use crate::extension::objects::{admin_port, pod_spec, text};
use crate::extension::report::{Check, Severity, Verdict};
use crate::kube::object_reader::namespace_path;

const PRE: &str = "linkerd-cni-pre";
/// Label of a namespace with the Pod Security Standard that its pods must meet.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Checks whether the chart can be installed in `namespace`. A failed request does not stop the others.
pub fn checks(api: &dyn Api, namespace: &str) -> Vec<Check> {
    vec![
        pod_security(api, PRE, namespace, false),
        other_agents(api, PRE, namespace, |_| true),
        cilium(api, PRE),
    ]
}

/// Checks that there is no agent beside the one in `namespace`. `is_other` decides about DaemonSets.
pub fn other_agents(
    api: &dyn Api,
    category: &'static str,
    namespace: &str,
    is_other: impl Fn(&Value) -> bool,
) -> Check {
    let verdict = readable(&facts::daemonsets(api), "the DaemonSets").and_then(|found| {
        let others = found.iter().filter(|daemonset| is_other(daemonset));
        let names: Vec<String> = others.map(|daemonset| describe(daemonset, namespace)).collect();
        Severity::Warning.if_any(&format!("DaemonSets with the label k8s-app={DAEMONSET}"), &names)
    });
    Check::new(category, "other-agent", "no other agent of Linkerd is installed", verdict)
}

fn describe(daemonset: &Value, namespace: &str) -> String {
    let [own_namespace, name] = ["namespace", "name"].map(|key| text(&daemonset["metadata"][key]));
    let is_upstream = admin_port(pod_spec(daemonset)).is_none();
    let whose = if is_upstream { "upstream's chart" } else { "this chart" };
    let what = match own_namespace == namespace {
        true if is_upstream => {
            "helm upgrade, or scripts/install-cni | kubectl apply -f -, replaces it"
        }
        true => {
            "upgrade with helm upgrade, or scripts/install-cni | kubectl apply -f -, and use \
             linkerd cni check without --pre"
        }
        false => "uninstall it: two agents would share the nodes' files",
    };
    format!("{own_namespace}/{name} of {whose}: {what}")
}

/// Checks that Cilium neither disables the plugin's network config nor bypasses the redirect rules.
pub fn cilium(api: &dyn Api, category: &'static str) -> Check {
    let maps = list(api, "/api/v1/configmaps", "fieldSelector=metadata.name%3Dcilium-config");
    let verdict = readable(&maps, "the ConfigMaps cilium-config").and_then(|maps| {
        let problems: Vec<String> = maps.iter().flat_map(cilium_problems).collect();
        Severity::Warning.if_any("Cilium's settings conflict with the plugin", &problems)
    });
    Check::new(category, "cilium", "Cilium, if installed, leaves the plugin in place", verdict)
}

fn cilium_problems(map: &Value) -> Vec<String> {
    let data = &map["data"];
    let namespace = text(&map["metadata"]["namespace"]);
    let mut problems = Vec::new();
    // Cilium's default is true.
    if data["cni-exclusive"] != "false" {
        problems.push(format!(
            "{namespace}/cilium-config: cni-exclusive is not \"false\", so Cilium disables the network \
             configs of other plugins; install Cilium with cni.exclusive=false"
        ));
    }
    if data["kube-proxy-replacement"] == "true" && data["bpf-lb-sock-hostns-only"] != "true" {
        problems.push(format!(
            "{namespace}/cilium-config: with kube-proxy-replacement, Cilium resolves Services before \
             the proxy sees them; install Cilium with socketLB.hostNamespaceOnly=true"
        ));
    }
    problems
}

/// Checks that Pod Security Admission admits the agent's pods. `has_pods`: it has admitted some.
pub fn pod_security(
    api: &dyn Api,
    category: &'static str,
    namespace: &str,
    has_pods: bool,
) -> Check {
    // A missing namespace passes: the installation creates the namespace with the label.
    let found = find(api, &namespace_path(namespace));
    let verdict = readable(&found, &format!("namespace {namespace}")).and_then(|found| {
        found.as_ref().map_or(Ok(()), |found| admits(namespace, found, has_pods))
    });
    let description = format!("namespace {namespace} admits the agent's pods");
    Check::new(category, "namespace", description, verdict)
}

fn admits(name: &str, namespace: &Value, has_pods: bool) -> Verdict {
    let remedy = format!("kubectl label --overwrite namespace {name} {ENFORCE}=privileged");
    match namespace["metadata"]["labels"][ENFORCE].as_str() {
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
