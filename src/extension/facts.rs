//! The objects on which the checks are based, fetched from the API server.

use serde_json::Value;

use super::agents::{Agent, DAEMONSET, SELECTOR, ask_agents};
use super::cluster_node::ClusterNode;
use super::objects::{event_time, text};
use super::report::{Problem, Severity, fail_to_read};
use super::requests::{Api, Error, get_list, get_object, get_optional};
use crate::cni::object::Object;
use crate::config::Config;
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::daemonset_path;

/// Key of the ConfigMap with the template of the plugin entry.
const ENTRY_KEY: &str = "cni_network_config";
/// Remedy for a missing object of the chart.
pub const INSTALL: &str = "install the chart (helm upgrade --install, or scripts/install-cni | kubectl \
                           apply -f -), or name its namespace with --cni-namespace";

/// The objects that several checks need.
pub struct Facts {
    pub nodes: Result<Vec<ClusterNode>, Error>,
    pub agents: Result<Vec<Agent>, Error>,
    /// Warning Events in the DaemonSet's namespace, oldest first.
    pub events: Vec<Value>,
}

/// Fetches the objects that several checks need. Asks the agents until `end`. If a request fails,
/// the others are still sent.
pub fn fetch(api: &dyn Api, namespace: &str, end: Deadline) -> Facts {
    let events = list_warnings(api, namespace);
    let nodes = get_list(api, "/api/v1/nodes", "");
    let agents = ask_agents(api, namespace, end);
    Facts { nodes, agents, events }
}

/// Returns the Warning Events in the namespace, oldest first. No Events if they cannot be read.
fn list_warnings(api: &dyn Api, namespace: &str) -> Vec<Value> {
    let path = format!("{}/events", namespace_path(namespace));
    let mut events: Vec<Value> =
        get_list(api, &path, "fieldSelector=type%3DWarning").unwrap_or_default();
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    events
}

/// Returns the namespace with the DaemonSet: `preferred`, or if `preferred` has no DaemonSet, the
/// only other namespace that has one.
pub fn find_namespace(api: &dyn Api, preferred: &str) -> String {
    let found = get_optional::<Value>(api, &daemonset_path(preferred, DAEMONSET));
    let is_missing = matches!(found, Ok(None));
    if !is_missing {
        return preferred.to_owned();
    }
    match daemonsets(api).as_deref() {
        Ok([only]) => text(&only["metadata"]["namespace"]).to_owned(),
        _ => preferred.to_owned(),
    }
}

/// Returns the DaemonSets of the chart in all namespaces.
pub fn daemonsets(api: &dyn Api) -> Result<Vec<Value>, Error> {
    get_list(api, "/apis/apps/v1/daemonsets", SELECTOR)
}

/// Returns a fact that was read. Otherwise fails, so that the result of the check is unknown.
pub fn require_readable<'f, T>(fact: &'f Result<T, Error>, what: &str) -> Result<&'f T, Problem> {
    match fact {
        Ok(fact) => Ok(fact),
        Err(error) => fail_to_read(what, error),
    }
}

/// Returns an object that must exist. If the object is missing, the problem names `what` and the
/// remedy. If the object cannot be read, the result is unknown, because the object may exist.
pub fn require_existing<T>(
    found: Result<Option<T>, Error>,
    what: &str,
    remedy: &str,
) -> Result<T, Problem> {
    match found {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Severity::Error.fail(format!("{what} does not exist; {remedy}")),
        Err(error) => fail_to_read(what, &error),
    }
}

/// Reads the plugin entry from the chart's ConfigMap.
pub fn read_config(api: &dyn Api, namespace: &str) -> Result<Config, Problem> {
    let name = format!("ConfigMap {namespace}/linkerd-cni-config");
    let path = format!("{}/configmaps/linkerd-cni-config", namespace_path(namespace));
    let map: Value = require_existing(get_optional(api, &path), &name, INSTALL)?;
    match parse_entry(&map["data"][ENTRY_KEY]) {
        Ok(config) => Ok(config),
        Err(reason) => Severity::Error.fail(format!("{name}: {ENTRY_KEY}: {reason}")),
    }
}

fn parse_entry(entry: &Value) -> Result<Config, String> {
    let Some(text) = entry.as_str() else {
        return Err("the key is missing".to_owned());
    };
    let object: Object = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Config::read(&object).map_err(|error| format!("{}; {}", error.msg, error.details))
}

/// Reads `cniEnabled` from the values that Linkerd's chart keeps in a ConfigMap. `None` if the
/// ConfigMap is missing, because there is no control plane, or cannot be read.
pub fn control_plane_uses_cni(api: &dyn Api, linkerd_namespace: &str) -> Option<bool> {
    let path = format!("{}/configmaps/linkerd-config", namespace_path(linkerd_namespace));
    let map: Value = get_object(api, &path).ok()?;
    let values = map["data"]["values"].as_str()?;
    Some(values.lines().any(|line| line == "cniEnabled: true"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::extension::fake::Cluster;

    const LIST: &str = "/apis/apps/v1/daemonsets";

    fn daemonset(namespace: &str) -> Value {
        json!({"metadata": {"name": "linkerd-cni", "namespace": namespace,
            "labels": {"k8s-app": "linkerd-cni"}}})
    }

    #[test]
    fn find_namespace_falls_back_to_the_only_namespace_with_a_daemonset() {
        let mut cluster = Cluster::healthy();
        assert_eq!(find_namespace(&cluster, "linkerd-cni"), "linkerd-cni");
        // The healthy cluster has one in linkerd-cni.
        assert_eq!(find_namespace(&cluster, "elsewhere"), "linkerd-cni");
        cluster.set(LIST, "/items", json!([daemonset("linkerd-cni"), daemonset("other")]));
        assert_eq!(find_namespace(&cluster, "elsewhere"), "elsewhere");
        assert_eq!(find_namespace(&cluster, "other"), "other");
        cluster.put(LIST, json!(403));
        assert_eq!(find_namespace(&cluster, "elsewhere"), "elsewhere");
    }
}
