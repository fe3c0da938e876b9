//! What the checks look at, fetched from the API server.

use serde_json::Value;

use super::agents::{Agent, DAEMONSET, SELECTOR, agents};
use super::api::{Api, Error, find, get, list};
use super::objects::{event_time, pod_spec, text, variable};
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::{Node, daemonset_path};

pub const RBAC: &str = "rbac.authorization.k8s.io";

/// The result of reading an object: the object, `None` if it does not exist, or why it cannot be
/// read.
pub type OptionalObject = Result<Option<Value>, Error>;

/// The nodes and their agents.
pub struct Facts {
    pub nodes: Result<Vec<Node>, Error>,
    pub agents: Result<Vec<Agent>, Error>,
    /// Warning Events in the DaemonSet's namespace, oldest first.
    pub events: Vec<Value>,
}

/// Asks the agents until `end`. A failed request does not stop the others.
pub fn fetch(api: &dyn Api, namespace: &str, end: Deadline) -> Facts {
    Facts {
        nodes: list(api, "/api/v1/nodes", ""),
        agents: agents(api, namespace, end),
        events: warnings(api, namespace).unwrap_or_default(),
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

/// Reads `cniEnabled` from the values that Linkerd's chart keeps in a ConfigMap. `None` if there is no
/// control plane, or it is unreadable.
pub fn control_plane_uses_cni(api: &dyn Api, linkerd_namespace: &str) -> Option<bool> {
    let path = format!("{}/configmaps/linkerd-config", namespace_path(linkerd_namespace));
    let map: Value = get(api, &path).ok()?;
    let values = map["data"]["values"].as_str()?;
    Some(values.lines().any(|line| line == "cniEnabled: true"))
}

/// Looks for objects without which the agent or the plugin does not work. Returns each with the text of
/// its check, in the words of `linkerd check`, and its kind and name.
pub fn chart_objects(
    api: &dyn Api,
    namespace: &str,
    daemonset: &Value,
) -> Vec<(String, String, OptionalObject)> {
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
        let (text, object) = (format!("{name} {kind} exists"), format!("{kind} {parent}{name}"));
        (text, object, find(api, &format!("{path}/{name}")))
    };
    wanted.into_iter().map(look_up).collect()
}
