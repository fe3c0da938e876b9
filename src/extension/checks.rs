//! The checks of `linkerd cni check`.

mod nodes;
mod pre;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::agents::DAEMONSET;
use super::api::{Api, encoded, find, for_each};
use super::facts::{self, Facts, readable};
use super::objects::{is_attached, pod_spec, variable};
use super::report::{Check, Problem, Severity, Verdict};
use crate::agent::status_body::StatusBody;
use crate::config::bypass::Reason;
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::daemonset_path;
use crate::kube::types::Pod;
use crate::pod::mesh::is_meshed;
use crate::repair::stranded::{FoundBy, INJECTED_LABEL, StrandedPod};

pub use pre::checks as before_install;

/// Headings of the groups of checks.
const CHART: &str = "linkerd-cni";
const NODES: &str = "linkerd-cni-nodes";
const PODS: &str = "linkerd-cni-pods";

const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

/// Checks the chart that is installed in `namespace`. Without a DaemonSet, other checks would only repeat
/// that. The control plane is in `linkerd_namespace`. Agents are asked until `end`.
///
/// `linkerd check` runs these checks on every cluster, also on those that do not use the plugin.
pub fn installed(
    api: &dyn Api,
    namespace: &str,
    linkerd_namespace: &str,
    end: Deadline,
) -> Vec<Check> {
    let check = |description, verdict| Check::new(CHART, "daemonset", description, verdict);
    let found = find::<Value>(api, &daemonset_path(namespace, DAEMONSET));
    let is_missing = matches!(found, Ok(None));
    if is_missing && facts::control_plane_uses_cni(api, linkerd_namespace) == Some(false) {
        let unused = "not installed, and not needed: cniEnabled of the control plane is false";
        return vec![check(unused, Ok(()))];
    }
    let name = format!("DaemonSet {namespace}/{DAEMONSET}");
    let found = facts::existing(found, Severity::Error, &name, facts::INSTALL);
    let exists = found.as_ref().map(drop).map_err(Clone::clone);
    let mut checks = vec![check("linkerd-cni DaemonSet exists", exists)];
    if let Ok(daemonset) = &found {
        let facts = facts::fetch(api, namespace, end);
        checks.extend(chart(api, namespace, daemonset, &facts));
        checks.extend(nodes::checks(&facts, daemonset));
        checks.push(pre::cilium(api, NODES));
        checks.extend(pods(api, daemonset, &facts));
    }
    checks
}

fn chart(api: &dyn Api, namespace: &str, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let check = |hint, description: &str, verdict| Check::new(CHART, hint, description, verdict);
    let has_pods = facts.agents.as_ref().is_ok_and(|agents| !agents.is_empty());
    let config = facts::config(api, namespace).map(drop);
    let mut checks = vec![
        pre::pod_security(api, CHART, namespace, has_pods),
        check("configmap", "linkerd-cni-config ConfigMap has a valid plugin entry", config),
    ];
    checks.extend(objects(api, namespace, daemonset));
    let is_other = |daemonset: &Value| daemonset["metadata"]["namespace"] != *namespace;
    checks.push(pre::other_agents(api, CHART, namespace, is_other));
    let verdict = rollout(&format!("{namespace}/{DAEMONSET}"), daemonset);
    checks.push(check("rollout", "linkerd-cni DaemonSet is rolled out", verdict));
    checks
}

/// Checks that the objects exist that agent and plugin need, in the words of `linkerd check`.
fn objects(api: &dyn Api, namespace: &str, daemonset: &Value) -> Vec<Check> {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let mut wanted = vec![
        ("ClusterRole", "linkerd-cni", format!("{RBAC}/clusterroles")),
        ("ClusterRoleBinding", "linkerd-cni", format!("{RBAC}/clusterrolebindings")),
    ];
    let accounts = format!("{}/serviceaccounts", namespace_path(namespace));
    if let Some(agent) = pod_spec(daemonset)["serviceAccountName"].as_str() {
        wanted.push(("ServiceAccount", agent, accounts.clone()));
    }
    // Upstream's chart has none of these.
    if let Some(plugin) = variable(daemonset, "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT") {
        wanted.push(("ServiceAccount", plugin, accounts));
        let roles = format!("{RBAC}/namespaces/{namespace}");
        wanted.push(("Role", "linkerd-cni-agent", format!("{roles}/roles")));
        wanted.push(("RoleBinding", "linkerd-cni-agent", format!("{roles}/rolebindings")));
    }
    let check = |(kind, name, path): (&str, &str, String)| {
        let object = match kind.starts_with("Cluster") {
            true => format!("{kind} {name}"),
            false => format!("{kind} {namespace}/{name}"),
        };
        let found = find::<Value>(api, &format!("{path}/{name}"));
        let found = facts::existing(found, Severity::Warning, &object, REINSTALL);
        Check::new(CHART, "objects", format!("{name} {kind} exists"), found.map(drop))
    };
    wanted.into_iter().map(check).collect()
}

/// Fails until all nodes in the scope of the DaemonSet have a pod of its newest revision.
pub fn rollout(name: &str, daemonset: &Value) -> Verdict {
    let (metadata, status) = (&daemonset["metadata"], &daemonset["status"]);
    let number = |field: &Value| field.as_u64().unwrap_or_default();
    if number(&status["observedGeneration"]) < number(&metadata["generation"]) {
        return Severity::Pending
            .because(format!("Kubernetes has not processed the newest change of {name} yet"));
    }
    let numbers = ["desiredNumberScheduled", "updatedNumberScheduled"];
    match numbers.map(|name| number(&status[name])) {
        [0, _] => Severity::Error.because(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        )),
        [wanted, updated] if updated < wanted => Severity::Pending.because(format!(
            "{updated} of {wanted} nodes have a pod of the newest revision of {name}"
        )),
        _ => Ok(()),
    }
}

fn pods(api: &dyn Api, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let check = |hint, description, verdict| Check::new(PODS, hint, description, verdict);
    // Counts what the agents report: reading all pods of the cluster would cost too much.
    let counted = |reason: Reason, summary| {
        let count = |body: &StatusBody| {
            Some(format!("{} pods", body.pod_copy.as_ref()?.bypasses.get(reason.label())?))
        };
        nodes::each(&nodes::bodies(facts), Severity::Warning, summary, count)
    };
    let exempt = "pods with a container that bypasses the proxy; linkerd cni bypass names them";
    let shared = counted(Reason::ProxyUser, exempt);
    let ipv6 = "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart \
                and in the control plane, and restart the pods";
    let mut checks = vec![
        check("stranded", "no meshed pod started without redirect rules", stranded(api)),
        check("proxy-user", "no container runs as the proxy's user", shared),
        check("ipv6", "all IP families of the cluster are redirected", counted(Reason::Ipv6, ipv6)),
    ];
    if variable(daemonset, "LINKERD_CNI_CHAINED") == Some("false") {
        let called = "Multus calls the plugin for all injected pods";
        checks.push(check("multus", called, attached(api)));
    }
    checks
}

fn attached(api: &dyn Api) -> Verdict {
    let lacking = injected(api, "", "the injected pods", |pod| {
        let needs_one = is_meshed(pod) && !pod.status.has_ended() && !pod.spec.host_network;
        let name = || format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        (needs_one && !is_attached(pod)).then(name)
    })?;
    Severity::Error.if_any(
        "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, so without \
         redirect rules; add it to their workloads, or set networkAttachmentDefinition.annotatePods \
         and restart them",
        &lacking,
    )
}

/// Stranded pods are in phase Pending.
fn stranded(api: &dyn Api) -> Verdict {
    let pending = "&fieldSelector=status.phase%3DPending";
    let stranded = injected(api, pending, "the pods in phase Pending", |pod| {
        let pod = StrandedPod::found(pod, FoundBy::Validator)?;
        Some(format!("{}/{} on {}", pod.namespace, pod.name, pod.node))
    })?;
    Severity::Error.if_any(
        "pods that started before the plugin was installed on their node; delete them, or enable \
         repairController",
        &stranded,
    )
}

/// Returns the problems of the injected pods.
fn injected(
    api: &dyn Api,
    query: &str,
    what: &str,
    problem: impl Fn(&Pod) -> Option<String>,
) -> Result<Vec<String>, Problem> {
    let mut found = Vec::new();
    let query = format!("labelSelector={}{query}", encoded(INJECTED_LABEL));
    let read = for_each(api, "/api/v1/pods", &query, |pod| found.extend(problem(&pod)));
    readable(&read, what)?;
    Ok(found)
}
