//! The checks of `linkerd cni check`.

mod agent_states;
mod nodes;
mod pods;
mod pre;
mod rollout;
mod sandboxes;
mod states;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::agents::DAEMONSET;
use super::facts::{self, Facts};
use super::objects::{agent_variable, pod_spec};
use super::report::Check;
use super::requests::{Api, Error, get_optional};
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::daemonset_path;

pub use pre::checks as check_before_install;
pub use rollout::check_rollout;
use rollout::check_rollout_progress;

/// Headings of the groups of checks.
const CHART: &str = "linkerd-cni";
const NODES: &str = "linkerd-cni-nodes";
const PODS: &str = "linkerd-cni-pods";

/// Path of the API of roles and bindings.
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

const REINSTALL: &str = "install the chart again (helm upgrade, or scripts/install-cni | kubectl \
                         apply -f -), which creates missing objects";

/// Checks the chart that is installed in `namespace`. If the DaemonSet is missing, returns only
/// that result, because the other checks would fail for the same reason. The control plane is in
/// `linkerd_namespace`. Asks the agents for their state until `end`.
///
/// `linkerd check` runs these checks on every cluster, also on those that do not use the plugin. So
/// a missing DaemonSet is no failure if the control plane has `cniEnabled: false`.
pub fn check_installed_chart(
    api: &dyn Api,
    namespace: &str,
    linkerd_namespace: &str,
    end: Deadline,
) -> Vec<Check> {
    let found = get_optional::<Value>(api, &daemonset_path(namespace, DAEMONSET));
    let is_missing = matches!(found, Ok(None));
    if is_missing && !is_needed(api, linkerd_namespace) {
        let unused = "not installed, and not needed: cniEnabled of the control plane is false";
        return vec![Check::new(CHART, "daemonset", unused, Ok(()))];
    }
    let name = format!("DaemonSet {namespace}/{DAEMONSET}");
    let exists = "linkerd-cni DaemonSet exists";
    let daemonset = match facts::require_existing(found, &name, facts::INSTALL) {
        Ok(daemonset) => daemonset,
        Err(problem) => return vec![Check::new(CHART, "daemonset", exists, Err(problem))],
    };
    let facts = facts::fetch(api, namespace, end);
    let mut checks = vec![Check::new(CHART, "daemonset", exists, Ok(()))];
    checks.extend(check_chart(api, namespace, &daemonset, &facts));
    checks.extend(nodes::checks(&facts, &daemonset));
    checks.extend(states::checks(&facts, &daemonset));
    checks.push(pre::check_cilium(api, NODES));
    checks.extend(pods::checks(api, &daemonset, &facts));
    checks
}

/// Whether the cluster needs the plugin: if a DaemonSet is installed in another namespace, unless
/// the control plane does without the plugin. True if that is unknown.
fn is_needed(api: &dyn Api, linkerd_namespace: &str) -> bool {
    let Ok(daemonsets) = facts::daemonsets(api) else { return true };
    if !daemonsets.is_empty() {
        return true;
    }
    facts::control_plane_uses_cni(api, linkerd_namespace).unwrap_or(true)
}

/// Checks the objects of the chart, and the rollout of its DaemonSet.
fn check_chart(api: &dyn Api, namespace: &str, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let has_pods = match &facts.agents {
        Ok(agents) => !agents.is_empty(),
        Err(_) => false,
    };
    let entry = "linkerd-cni-config ConfigMap has a valid plugin entry";
    let mut checks = vec![
        pre::check_pod_security(api, CHART, namespace, has_pods),
        Check::new(CHART, "configmap", entry, facts::read_config(api, namespace).map(drop)),
    ];
    checks.extend(check_objects(api, namespace, daemonset));
    checks.push(pre::check_other_agents(api, CHART, namespace, |daemonset| {
        daemonset["metadata"]["namespace"] != *namespace
    }));
    let state = check_rollout_progress(&format!("{namespace}/{DAEMONSET}"), daemonset, facts);
    checks.push(Check::new(CHART, "rollout", "linkerd-cni DaemonSet is rolled out", state));
    checks
}

/// Checks that the objects that agent and plugin need exist, in the words of `linkerd check`.
fn check_objects(api: &dyn Api, namespace: &str, daemonset: &Value) -> Vec<Check> {
    let mut checks = vec![
        check_cluster_object(api, "ClusterRole", "clusterroles"),
        check_cluster_object(api, "ClusterRoleBinding", "clusterrolebindings"),
    ];
    let accounts = format!("{}/serviceaccounts", namespace_path(namespace));
    if let Some(agent) = pod_spec(daemonset)["serviceAccountName"].as_str() {
        checks.push(check_object(api, "ServiceAccount", namespace, agent, &accounts));
    }
    // Upstream's chart has neither the variable nor these objects.
    if let Some(plugin) = agent_variable(daemonset, "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT") {
        let role = "linkerd-cni-agent";
        let roles = format!("{RBAC}/namespaces/{namespace}/roles");
        let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
        checks.push(check_object(api, "ServiceAccount", namespace, plugin, &accounts));
        checks.push(check_object(api, "Role", namespace, role, &roles));
        checks.push(check_object(api, "RoleBinding", namespace, role, &bindings));
    }
    checks
}

/// Checks that a cluster-wide object exists, which both charts call `linkerd-cni`.
fn check_cluster_object(api: &dyn Api, kind: &str, resource: &str) -> Check {
    let name = "linkerd-cni";
    let found = get_optional(api, &format!("{RBAC}/{resource}/{name}"));
    check_existence(kind, name, &format!("{kind} {name}"), found)
}

/// Checks that an object of `namespace` exists. `path` is the API path of all objects of this kind.
fn check_object(api: &dyn Api, kind: &str, namespace: &str, name: &str, path: &str) -> Check {
    let found = get_optional(api, &format!("{path}/{name}"));
    check_existence(kind, name, &format!("{kind} {namespace}/{name}"), found)
}

fn check_existence(
    kind: &str,
    name: &str,
    object: &str,
    found: Result<Option<Value>, Error>,
) -> Check {
    let found = facts::require_existing(found, object, REINSTALL);
    Check::new(CHART, "objects", format!("{name} {kind} exists"), found.map(drop))
}
