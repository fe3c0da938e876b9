//! Everything that the checks look at, fetched from the API server.

use std::time::SystemTime;

use serde_json::Value;

use super::agents::{Agent, DAEMONSET, SELECTOR, agents};
use super::api::{Api, Error, encoded, find, get, list};
use super::objects::{InjectedPod, event_time, pod_spec, text, variable};
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::{Node, daemonset_path};
use crate::kube::types::Pod;
use crate::repair::stranded::INJECTED_LABEL;

pub const RBAC: &str = "rbac.authorization.k8s.io";

/// The result of reading an object: the object, `None` if it does not exist, or why it cannot be
/// read.
pub type OptionalObject = Result<Option<Value>, Error>;

#[derive(Clone, Debug)]
pub struct Facts {
    pub now: SystemTime,
    pub namespace: String,
    pub namespace_object: OptionalObject,
    pub config: OptionalObject,
    pub daemonset: OptionalObject,
    /// Objects without which the agent or the plugin does not work, by kind and name.
    pub objects: Vec<(String, OptionalObject)>,
    /// DaemonSets of this chart or Linkerd's in any namespace.
    pub daemonsets: Result<Vec<Value>, Error>,
    pub nodes: Result<Vec<Node>, Error>,
    pub agents: Result<Vec<Agent>, Error>,
    /// Warning Events in the DaemonSet's namespace, oldest first.
    pub events: Vec<Value>,
    /// Injected pods in phase Pending, which stranded pods are in.
    pub pending_pods: Result<Vec<Pod>, Error>,
    /// All injected pods, if Multus calls the plugin (`chained: false`).
    pub multus_pods: Option<Result<Vec<InjectedPod>, Error>>,
    pub cilium: Result<Vec<Value>, Error>,
    /// `cniEnabled` of the control plane. `None` if there is no control plane, or it is unreadable.
    pub control_plane_uses_cni: Option<bool>,
}

/// Fetches the facts for the checks of an installed chart. A failed request does not stop the
/// others. The control plane is in `linkerd_namespace`. Agents are asked until `end`.
pub fn fetch(api: &dyn Api, namespace: &str, linkerd_namespace: &str, end: Deadline) -> Facts {
    let daemonset: OptionalObject = find(api, &daemonset_path(namespace, DAEMONSET));
    let known = daemonset.as_ref().ok().and_then(Option::as_ref);
    let unchained = known.filter(|found| variable(found, "LINKERD_CNI_CHAINED") == Some("false"));
    let injected = format!("labelSelector={}", encoded(INJECTED_LABEL));
    let multus_pods = unchained.map(|_| list(api, "/api/v1/pods", &injected));
    let pending = format!("{injected}&fieldSelector=status.phase%3DPending");
    Facts {
        now: SystemTime::now(),
        namespace: namespace.to_owned(),
        namespace_object: find(api, &namespace_path(namespace)),
        config: find(api, &config_path(namespace)),
        objects: chart_objects(api, namespace, known),
        daemonset,
        daemonsets: daemonsets(api),
        nodes: list(api, "/api/v1/nodes", ""),
        events: warnings(api, namespace).unwrap_or_default(),
        pending_pods: list(api, "/api/v1/pods", &pending),
        cilium: cilium(api),
        control_plane_uses_cni: control_plane_uses_cni(api, linkerd_namespace),
        agents: agents(api, namespace, end),
        multus_pods,
    }
}

/// Returns the namespace with the DaemonSet: `wanted`, or if that has none, the only other one.
pub fn find_namespace(api: &dyn Api, wanted: &str) -> String {
    if !matches!(find::<Value>(api, &daemonset_path(wanted, DAEMONSET)), Ok(None)) {
        return wanted.to_owned();
    }
    match daemonsets(api).as_deref() {
        Ok([only]) => text(&only["metadata"]["namespace"]).to_owned(),
        _ => wanted.to_owned(),
    }
}

/// Lists the Warning Events of a namespace, oldest first.
fn warnings(api: &dyn Api, namespace: &str) -> Result<Vec<Value>, Error> {
    let path = format!("{}/events", namespace_path(namespace));
    let mut events = list(api, &path, "fieldSelector=type%3DWarning")?;
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    Ok(events)
}

pub fn config_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/linkerd-cni-config")
}

pub fn daemonsets(api: &dyn Api) -> Result<Vec<Value>, Error> {
    list(api, "/apis/apps/v1/daemonsets", SELECTOR)
}

pub fn cilium(api: &dyn Api) -> Result<Vec<Value>, Error> {
    list(api, "/api/v1/configmaps", "fieldSelector=metadata.name%3Dcilium-config")
}

/// Reads `cniEnabled` from the values that Linkerd's chart keeps in a ConfigMap.
fn control_plane_uses_cni(api: &dyn Api, linkerd_namespace: &str) -> Option<bool> {
    let path = format!("{}/configmaps/linkerd-config", namespace_path(linkerd_namespace));
    let map: Value = get(api, &path).ok()?;
    let values = map["data"]["values"].as_str()?;
    Some(values.lines().any(|line| line == "cniEnabled: true"))
}

fn chart_objects(
    api: &dyn Api,
    namespace: &str,
    daemonset: Option<&Value>,
) -> Vec<(String, OptionalObject)> {
    let Some(daemonset) = daemonset else { return Vec::new() };
    let rbac = format!("/apis/{RBAC}/v1");
    let mut wanted = vec![
        ("ClusterRole", "linkerd-cni", format!("{rbac}/clusterroles")),
        ("ClusterRoleBinding", "linkerd-cni", format!("{rbac}/clusterrolebindings")),
    ];
    let accounts = format!("{}/serviceaccounts", namespace_path(namespace));
    if let Some(agent) = pod_spec(daemonset)["serviceAccountName"].as_str() {
        wanted.push(("ServiceAccount", agent, accounts.clone()));
    }
    // Upstream's chart has none of these.
    if let Some(plugin) = variable(daemonset, "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT") {
        wanted.push(("ServiceAccount", plugin, accounts));
        let roles = format!("{rbac}/namespaces/{namespace}");
        wanted.push(("Role", "linkerd-cni-agent", format!("{roles}/roles")));
        wanted.push(("RoleBinding", "linkerd-cni-agent", format!("{roles}/rolebindings")));
    }
    let look_up = |(kind, name, path): (&str, &str, String)| {
        let parent = match kind.starts_with("Cluster") {
            true => String::new(),
            false => format!("{namespace}/"),
        };
        (format!("{kind} {parent}{name}"), find(api, &format!("{path}/{name}")))
    };
    wanted.into_iter().map(look_up).collect()
}
