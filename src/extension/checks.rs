//! The checks of `linkerd cni check`.

mod nodes;
mod pre;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::agents::DAEMONSET;
use super::facts::{self, Facts, readable};
use super::objects::{is_attached, pod_spec, variable};
use super::report::{Check, CheckResult, Problem, Severity};
use super::requests::{Api, Error, encoded, find, for_each_item};
use crate::agent::status_body::StatusBody;
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::daemonset_path;
use crate::kube::types::Pod;
use crate::pod::mesh::is_meshed;
use crate::repair::find::stranded::{FoundBy, INJECTED_LABEL, StrandedPod};
use crate::verdict::bypass_paths::Reason;

pub use pre::checks as before_install;

/// Headings of the groups of checks.
const CHART: &str = "linkerd-cni";
const NODES: &str = "linkerd-cni-nodes";
const PODS: &str = "linkerd-cni-pods";

/// Path of the API of roles and bindings.
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

/// Checks the chart that is installed in `namespace`. Without a DaemonSet, other checks would only
/// repeat that. The control plane is in `linkerd_namespace`. Agents are asked until `end`.
///
/// `linkerd check` runs these checks on every cluster, also on those that do not use the plugin.
pub fn installed(
    api: &dyn Api,
    namespace: &str,
    linkerd_namespace: &str,
    end: Deadline,
) -> Vec<Check> {
    let found = find::<Value>(api, &daemonset_path(namespace, DAEMONSET));
    let is_missing = matches!(found, Ok(None));
    if is_missing && facts::control_plane_uses_cni(api, linkerd_namespace) == Some(false) {
        let unused = "not installed, and not needed: cniEnabled of the control plane is false";
        return vec![Check::new(CHART, "daemonset", unused, Ok(()))];
    }
    let name = format!("DaemonSet {namespace}/{DAEMONSET}");
    let exists = "linkerd-cni DaemonSet exists";
    let daemonset = match facts::existing(found, Severity::Error, &name, facts::INSTALL) {
        Ok(daemonset) => daemonset,
        Err(problem) => return vec![Check::new(CHART, "daemonset", exists, Err(problem))],
    };
    let facts = facts::fetch(api, namespace, end);
    let mut checks = vec![Check::new(CHART, "daemonset", exists, Ok(()))];
    checks.extend(chart(api, namespace, &daemonset, &facts));
    checks.extend(nodes::checks(&facts, &daemonset));
    checks.push(pre::cilium(api, NODES));
    checks.extend(pods(api, &daemonset, &facts));
    checks
}

/// Checks the objects of the chart, and the rollout of its DaemonSet.
fn chart(api: &dyn Api, namespace: &str, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let has_pods = facts.agents.as_ref().is_ok_and(|agents| !agents.is_empty());
    let entry = "linkerd-cni-config ConfigMap has a valid plugin entry";
    let mut checks = vec![
        pre::pod_security(api, CHART, namespace, has_pods),
        Check::new(CHART, "configmap", entry, facts::read_config(api, namespace).map(drop)),
    ];
    checks.extend(objects(api, namespace, daemonset));
    checks.push(pre::other_agents(api, CHART, namespace, |daemonset| {
        daemonset["metadata"]["namespace"] != *namespace
    }));
    let state = rollout(&format!("{namespace}/{DAEMONSET}"), daemonset);
    checks.push(Check::new(CHART, "rollout", "linkerd-cni DaemonSet is rolled out", state));
    checks
}

/// Checks that the objects exist that agent and plugin need, in the words of `linkerd check`.
fn objects(api: &dyn Api, namespace: &str, daemonset: &Value) -> Vec<Check> {
    let mut checks = vec![
        cluster_object(api, "ClusterRole", "clusterroles"),
        cluster_object(api, "ClusterRoleBinding", "clusterrolebindings"),
    ];
    let accounts = format!("{}/serviceaccounts", namespace_path(namespace));
    if let Some(agent) = pod_spec(daemonset)["serviceAccountName"].as_str() {
        checks.push(object(api, "ServiceAccount", namespace, agent, &accounts));
    }
    // Upstream's chart has none of these.
    if let Some(plugin) = variable(daemonset, "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT") {
        let roles = format!("{RBAC}/namespaces/{namespace}/roles");
        let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
        checks.push(object(api, "ServiceAccount", namespace, plugin, &accounts));
        checks.push(object(api, "Role", namespace, "linkerd-cni-agent", &roles));
        checks.push(object(api, "RoleBinding", namespace, "linkerd-cni-agent", &bindings));
    }
    checks
}

/// Checks that an object without a namespace exists, which the charts call `linkerd-cni`.
fn cluster_object(api: &dyn Api, kind: &str, resource: &str) -> Check {
    let name = "linkerd-cni";
    let found = find(api, &format!("{RBAC}/{resource}/{name}"));
    existence(kind, name, &format!("{kind} {name}"), found)
}

/// Checks that an object of `namespace` exists. `path` is that of all objects of its kind.
fn object(api: &dyn Api, kind: &str, namespace: &str, name: &str, path: &str) -> Check {
    let found = find(api, &format!("{path}/{name}"));
    existence(kind, name, &format!("{kind} {namespace}/{name}"), found)
}

fn existence(kind: &str, name: &str, object: &str, found: Result<Option<Value>, Error>) -> Check {
    let found = facts::existing(found, Severity::Warning, object, REINSTALL);
    Check::new(CHART, "objects", format!("{name} {kind} exists"), found.map(drop))
}

/// Fails until all nodes in the scope of the DaemonSet have a pod of its newest revision.
pub fn rollout(name: &str, daemonset: &Value) -> CheckResult {
    let status = &daemonset["status"];
    if number(&status["observedGeneration"]) < number(&daemonset["metadata"]["generation"]) {
        return Severity::Pending
            .because(format!("Kubernetes has not processed the newest change of {name} yet"));
    }
    let nodes = number(&status["desiredNumberScheduled"]);
    let updated = number(&status["updatedNumberScheduled"]);
    if nodes == 0 {
        return Severity::Error.because(format!(
            "no node is in the scope of {name}; check its nodeSelector, affinity and tolerations"
        ));
    }
    if updated < nodes {
        return Severity::Pending.because(format!(
            "{updated} of {nodes} nodes have a pod of the newest revision of {name}"
        ));
    }
    Ok(())
}

/// Returns a number of a status; the API server omits numbers that are 0.
fn number(field: &Value) -> u64 {
    field.as_u64().unwrap_or_default()
}

/// Checks that meshed pods are redirected.
fn pods(api: &dyn Api, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let shared = counted(
        facts,
        Reason::ProxyUser,
        "pods with a container that bypasses the proxy; linkerd cni bypass names them",
    );
    let ipv6 = counted(
        facts,
        Reason::Ipv6,
        "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart \
         and in the control plane, and restart the pods",
    );
    let all_redirected = "no meshed pod started without redirect rules";
    let all_families = "all IP families of the cluster are redirected";
    let mut checks = vec![
        Check::new(PODS, "stranded", all_redirected, stranded(api)),
        Check::new(PODS, "proxy-user", "no container runs as the proxy's user", shared),
        Check::new(PODS, "ipv6", all_families, ipv6),
    ];
    if variable(daemonset, "LINKERD_CNI_CHAINED") == Some("false") {
        let called = "Multus calls the plugin for all injected pods";
        checks.push(Check::new(PODS, "multus", called, attached(api)));
    }
    checks
}

/// Warns of nodes with pods that bypass the proxy for this reason. Uses the counts of the agents:
/// reading all pods of the cluster would cost too much.
fn counted(facts: &Facts, reason: Reason, summary: &str) -> CheckResult {
    let bodies = nodes::status_bodies(facts);
    nodes::judge_bodies(&bodies, Severity::Warning, summary, |body| bypassing_pods(body, reason))
}

fn bypassing_pods(body: &StatusBody, reason: Reason) -> Option<String> {
    let count = body.pod_copy.as_ref()?.bypasses.get(reason.label())?;
    Some(format!("{count} pods"))
}

/// Fails with the injected pods for which Multus does not call the plugin.
fn attached(api: &dyn Api) -> CheckResult {
    let lacking = injected(api, "", "the injected pods", unattached)?;
    Severity::Error.if_any(
        "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, so \
         without redirect rules; add it to their workloads, or set \
         networkAttachmentDefinition.annotatePods and restart them",
        &lacking,
    )
}

/// Returns namespace and name of a pod that needs redirect rules, and for which Multus does not
/// call the plugin.
fn unattached(pod: &Pod) -> Option<String> {
    let needs_rules = is_meshed(pod) && !pod.status.has_ended() && !pod.spec.host_network;
    if !needs_rules || is_attached(pod) {
        return None;
    }
    Some(format!("{}/{}", pod.metadata.namespace, pod.metadata.name))
}

/// Fails with the stranded pods, which are in phase Pending.
fn stranded(api: &dyn Api) -> CheckResult {
    let pending = "&fieldSelector=status.phase%3DPending";
    let stranded = injected(api, pending, "the pods in phase Pending", stranded_pod)?;
    Severity::Error.if_any(
        "pods that started before the plugin was installed on their node; delete them, or enable \
         repairController",
        &stranded,
    )
}

/// Returns namespace, name and node of a stranded pod.
fn stranded_pod(pod: &Pod) -> Option<String> {
    let found = StrandedPod::from_object(pod, FoundBy::Validator)?.found;
    Some(format!("{}/{} on {}", found.namespace, found.name, pod.spec.node_name))
}

/// Returns the problems of the injected pods.
fn injected(
    api: &dyn Api,
    query: &str,
    what: &str,
    problem: fn(&Pod) -> Option<String>,
) -> Result<Vec<String>, Problem> {
    let mut problems = Vec::new();
    let query = format!("labelSelector={}{query}", encoded(INJECTED_LABEL));
    let read = for_each_item(api, "/api/v1/pods", &query, |pod| problems.extend(problem(&pod)));
    readable(&read, what)?;
    Ok(problems)
}
