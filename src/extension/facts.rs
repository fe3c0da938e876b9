//! Everything that the checks of an installed chart look at, fetched from the API server.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::SystemTime;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::agents::{Agent, Asking, DAEMONSET, agents};
use super::kubectl::{Api, find, get};
use super::lists::list;
use super::objects::{AgentDaemonSet, AnyObject, ConfigMap, EventObject, NodeObject};
use crate::kube::types::Pod;
use crate::repair::stranded_pod::INJECTED_LABEL;

/// API group of roles and bindings.
pub(super) const RBAC: &str = "rbac.authorization.k8s.io";
/// The result of reading an object: the object, `None` if it does not exist, or why it cannot be
/// read.
pub type Lookup<T> = Result<Option<T>, String>;

/// An object of the chart that the checks look for.
#[derive(Clone, Debug)]
pub struct ChartObject {
    pub kind: &'static str,
    pub name: String,
    pub found: Lookup<()>,
}

/// What the checks of an installed chart look at.
#[derive(Clone, Debug)]
pub struct Facts {
    pub now: SystemTime,
    /// Namespace of the DaemonSet.
    pub namespace: String,
    pub namespace_object: Lookup<AnyObject>,
    pub config: Lookup<ConfigMap>,
    pub daemonset: Lookup<AgentDaemonSet>,
    pub objects: Vec<ChartObject>,
    pub nodes: Result<Vec<NodeObject>, String>,
    pub agents: Result<Vec<Agent>, String>,
    /// Warning Events in the DaemonSet's namespace, oldest first.
    pub events: Vec<EventObject>,
    /// Injected pods that have not started.
    pub pending_pods: Result<Vec<Pod>, String>,
    /// Cilium's ConfigMaps.
    pub cilium: Result<Vec<ConfigMap>, String>,
    /// `cniEnabled` of the control plane. `None` if there is no control plane, or it is unreadable.
    pub control_plane_uses_cni: Option<bool>,
}

/// Returns the namespace with the DaemonSet: `wanted`, or if that has none, the only other one.
pub fn find_namespace(api: &dyn Api, wanted: &str) -> String {
    let path = format!("/apis/apps/v1/namespaces/{wanted}/daemonsets/{DAEMONSET}");
    if !matches!(find::<AnyObject>(api, &path), Ok(None)) {
        return wanted.to_owned();
    }
    match daemonsets(api).as_deref() {
        Ok([only]) => only.metadata.namespace.clone(),
        _ => wanted.to_owned(),
    }
}

pub(super) fn daemonsets(api: &dyn Api) -> Result<Vec<AgentDaemonSet>, String> {
    list(api, "/apis/apps/v1/daemonsets", &format!("labelSelector=k8s-app%3D{DAEMONSET}"))
}

/// Fetches the facts for the checks of an installed chart. A failed request does not stop the
/// others. The control plane is in `linkerd_namespace`.
pub fn fetch(
    api: &dyn Api,
    namespace: &str,
    linkerd_namespace: &str,
    asking: &Asking<'_>,
) -> Facts {
    thread::scope(|scope| {
        // A request takes as long as a start of kubectl, so independent ones run at the same time.
        let agents = scope.spawn(|| agents(api, namespace, asking));
        let objects = scope.spawn(|| {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{DAEMONSET}");
            let daemonset: Lookup<AgentDaemonSet> = lookup(api, &path);
            let known = daemonset.as_ref().ok().and_then(Option::as_ref);
            (chart_objects(api, namespace, known), daemonset)
        });
        let cluster =
            scope.spawn(|| (list(api, "/api/v1/nodes", ""), pending_pods(api), cilium(api)));
        let namespace_object = lookup(api, &format!("/api/v1/namespaces/{namespace}"));
        let config = lookup(api, &config_path(namespace));
        let events = events(api, namespace, "type%3DWarning").unwrap_or_default();
        let control_plane_uses_cni = control_plane_uses_cni(api, linkerd_namespace);
        let (objects, daemonset) = joined(objects);
        let (nodes, pending_pods, cilium) = joined(cluster);
        Facts {
            now: SystemTime::now(),
            namespace: namespace.to_owned(),
            namespace_object,
            config,
            daemonset,
            objects,
            nodes,
            agents: joined(agents),
            events,
            pending_pods,
            cilium,
            control_plane_uses_cni,
        }
    })
}

/// Returns the result of a thread. A panic goes on in the caller.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Reads `cniEnabled` from the values that Linkerd's chart keeps in a ConfigMap.
fn control_plane_uses_cni(api: &dyn Api, linkerd_namespace: &str) -> Option<bool> {
    let path = format!("/api/v1/namespaces/{linkerd_namespace}/configmaps/linkerd-config");
    let map: ConfigMap = get(api, &path).ok()?;
    let values = map.data.get("values")?;
    Some(values.lines().any(|line| line == "cniEnabled: true"))
}

/// Returns the path of the ConfigMap with the plugin entry.
pub fn config_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/linkerd-cni-config")
}

/// Looks for the objects without which the agent or the plugin does not work.
fn chart_objects(
    api: &dyn Api,
    namespace: &str,
    daemonset: Option<&AgentDaemonSet>,
) -> Vec<ChartObject> {
    let rbac = format!("/apis/{RBAC}/v1");
    let mut wanted = vec![
        ("ClusterRole", "linkerd-cni", format!("{rbac}/clusterroles")),
        ("ClusterRoleBinding", "linkerd-cni", format!("{rbac}/clusterrolebindings")),
    ];
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    if let Some(daemonset) = daemonset {
        let spec = &daemonset.spec.template.spec;
        if !spec.service_account_name.is_empty() {
            wanted.push(("ServiceAccount", &spec.service_account_name, accounts.clone()));
        }
        // Upstream's chart has none of these.
        if let Some(plugin) = spec.variable("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT") {
            wanted.push(("ServiceAccount", plugin, accounts));
            let roles = format!("{rbac}/namespaces/{namespace}");
            wanted.push(("Role", "linkerd-cni-agent", format!("{roles}/roles")));
            wanted.push(("RoleBinding", "linkerd-cni-agent", format!("{roles}/rolebindings")));
        }
    }
    wanted
        .into_iter()
        .map(|(kind, name, path)| {
            let found = lookup::<AnyObject>(api, &format!("{path}/{name}"));
            ChartObject { kind, name: name.to_owned(), found: found.map(|found| found.map(|_| ())) }
        })
        .collect()
}

/// Lists the Events of a namespace that match `fields`, oldest first.
pub fn events(api: &dyn Api, namespace: &str, fields: &str) -> Result<Vec<EventObject>, String> {
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let mut events: Vec<EventObject> = list(api, &path, &format!("fieldSelector={fields}"))?;
    events.sort_by(|a, b| a.time().cmp(b.time()));
    Ok(events)
}

/// Lists the injected pods in phase Pending, which stranded pods are in.
fn pending_pods(api: &dyn Api) -> Result<Vec<Pod>, String> {
    let label = utf8_percent_encode(INJECTED_LABEL, NON_ALPHANUMERIC);
    list(
        api,
        "/api/v1/pods",
        &format!("labelSelector={label}&fieldSelector=status.phase%3DPending"),
    )
}

pub(super) fn cilium(api: &dyn Api) -> Result<Vec<ConfigMap>, String> {
    list(api, "/api/v1/configmaps", "fieldSelector=metadata.name%3Dcilium-config")
}

pub(super) fn lookup<T: DeserializeOwned>(api: &dyn Api, path: &str) -> Lookup<T> {
    find(api, path).map_err(|error| error.to_string())
}
