//! Checks that apply before the installation, and after it, too.

use serde_json::Value;

use crate::extension::agents::DAEMONSET;
use crate::extension::facts::{self, require_readable};
use crate::extension::objects::{admin_port, pod_spec, text};
use crate::extension::report::{Check, CheckResult, Severity};
use crate::extension::requests::{Api, Error, get_list, get_optional};
use crate::kube::object_reader::namespace_path;

const PRE: &str = "linkerd-cni-pre";
/// Label of a namespace with the Pod Security Standard that its pods must meet.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Checks whether the chart can be installed in `namespace`. If a request fails, the other checks
/// still run.
pub fn checks(api: &dyn Api, namespace: &str) -> Vec<Check> {
    vec![
        check_pod_security(api, PRE, namespace, false),
        check_other_agents(api, PRE, namespace, |_| true),
        check_cilium(api, PRE),
    ]
}

/// Checks that no other agent than the one in `namespace` is installed. Warns of the DaemonSets for
/// which `is_other` returns true.
pub fn check_other_agents(
    api: &dyn Api,
    category: &'static str,
    namespace: &str,
    is_other: impl Fn(&Value) -> bool,
) -> Check {
    let result = warn_of_other_agents(&facts::daemonsets(api), namespace, is_other);
    Check::new(category, "other-agent", "no other agent of Linkerd is installed", result)
}

/// Warns of the DaemonSets for which `is_other` returns true.
fn warn_of_other_agents(
    daemonsets: &Result<Vec<Value>, Error>,
    namespace: &str,
    is_other: impl Fn(&Value) -> bool,
) -> CheckResult {
    let mut others = Vec::new();
    for daemonset in require_readable(daemonsets, "the DaemonSets")? {
        if is_other(daemonset) {
            others.push(describe_daemonset(daemonset, namespace));
        }
    }
    Severity::Warning
        .fail_if_any(&format!("DaemonSets with the label k8s-app={DAEMONSET}"), &others)
}

/// Returns name, chart and remedy of another agent's DaemonSet.
fn describe_daemonset(daemonset: &Value, namespace: &str) -> String {
    let its_namespace = text(&daemonset["metadata"]["namespace"]);
    let name = text(&daemonset["metadata"]["name"]);
    let is_upstream = admin_port(pod_spec(daemonset)).is_none();
    let chart = if is_upstream { "upstream's chart" } else { "this chart" };
    let remedy = if its_namespace != namespace {
        "uninstall it: two agents would share the nodes' files"
    } else if is_upstream {
        "helm upgrade, or scripts/install-cni | kubectl apply -f -, replaces it"
    } else {
        "upgrade with helm upgrade, or scripts/install-cni | kubectl apply -f -, and use \
         linkerd cni check without --pre"
    };
    format!("{its_namespace}/{name} of {chart}: {remedy}")
}

/// Checks that Cilium neither disables the plugin's network config nor bypasses the redirect rules.
pub fn check_cilium(api: &dyn Api, category: &'static str) -> Check {
    let maps = get_list(api, "/api/v1/configmaps", "fieldSelector=metadata.name%3Dcilium-config");
    let result = warn_of_cilium_settings(&maps);
    Check::new(category, "cilium", "Cilium, if installed, leaves the plugin in place", result)
}

/// Warns of the settings of each installed Cilium that conflict with the plugin.
fn warn_of_cilium_settings(maps: &Result<Vec<Value>, Error>) -> CheckResult {
    let mut problems = Vec::new();
    for map in require_readable(maps, "the ConfigMaps cilium-config")? {
        problems.extend(cilium_problems(map));
    }
    Severity::Warning.fail_if_any("Cilium's settings conflict with the plugin", &problems)
}

/// Returns the problems with the settings in Cilium's ConfigMap `map`.
fn cilium_problems(map: &Value) -> Vec<String> {
    let data = &map["data"];
    let namespace = text(&map["metadata"]["namespace"]);
    let mut problems = Vec::new();
    // A missing key is a problem, too, because Cilium's default is true.
    if data["cni-exclusive"] != "false" {
        problems.push(format!(
            "{namespace}/cilium-config: cni-exclusive is not \"false\", so Cilium disables the \
             network configs of other plugins; install Cilium with cni.exclusive=false"
        ));
    }
    if has_socket_lb_in_pods(data) {
        problems.push(format!(
            "{namespace}/cilium-config: with its socket load balancer, which \
             kube-proxy-replacement and bpf-lb-sock turn on, Cilium resolves Services before the \
             proxy sees them; install Cilium with socketLB.hostNamespaceOnly=true"
        ));
    }
    problems
}

/// Whether Cilium's socket load balancer works in pods (`NewKPRConfig` in
/// <https://github.com/cilium/cilium/blob/main/pkg/kpr/kpr.go>). Before Cilium 1.14,
/// `kube-proxy-replacement` could also be `strict` or `probe`.
fn has_socket_lb_in_pods(data: &Value) -> bool {
    let replaces_kube_proxy =
        matches!(text(&data["kube-proxy-replacement"]), "true" | "strict" | "probe");
    let is_on = replaces_kube_proxy || data["bpf-lb-sock"] == "true";
    is_on && data["bpf-lb-sock-hostns-only"] != "true"
}

/// Checks that Pod Security Admission admits the agent's pods. `has_pods` says whether the
/// namespace has such pods already.
pub fn check_pod_security(
    api: &dyn Api,
    category: &'static str,
    namespace: &str,
    has_pods: bool,
) -> Check {
    let found = get_optional(api, &namespace_path(namespace));
    let result = check_admission(namespace, &found, has_pods);
    let description = format!("namespace {namespace} admits the agent's pods");
    Check::new(category, "namespace", description, result)
}

/// Fails if the namespace's label rejects the agent's pods. Warns if the namespace has no label and
/// has admitted no such pod yet.
fn check_admission(
    name: &str,
    found: &Result<Option<Value>, Error>,
    has_pods: bool,
) -> CheckResult {
    let Some(namespace) = require_readable(found, &format!("namespace {name}"))? else {
        // A missing namespace is no problem: the installation creates the namespace with the label.
        return Ok(());
    };
    let remedy = format!("kubectl label --overwrite namespace {name} {ENFORCE}=privileged");
    match namespace["metadata"]["labels"][ENFORCE].as_str() {
        Some("privileged") => Ok(()),
        Some(level) => Severity::Error.fail(format!(
            "the label {ENFORCE}={level} of namespace {name} rejects the agent's pods, which mount \
             directories of the node: {remedy}"
        )),
        None if has_pods => Ok(()),
        None => Severity::Warning.fail(format!(
            "namespace {name} has no label {ENFORCE}. If the cluster's default is baseline or \
             restricted, the agent's pods are rejected: {remedy}"
        )),
    }
}
