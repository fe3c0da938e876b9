//! The objects on which the checks are based, fetched from the API server.

use serde_json::Value;

use super::agents::{Agent, DAEMONSET, SELECTOR, ask_agents};
use super::objects::{event_time, text};
use super::report::{Problem, Severity};
use super::requests::{Api, Error, find, get, get_list};
use crate::cni::object::Object;
use crate::config::Config;
use crate::deadline::Deadline;
use crate::kube::object_reader::namespace_path;
use crate::kube::scheduling::{Node, daemonset_path};

/// Key of the ConfigMap with the template of the plugin entry.
const ENTRY_KEY: &str = "cni_network_config";
/// Remedy for a missing object of the chart.
pub const INSTALL: &str = "install the chart (helm upgrade --install, or scripts/install-cni | kubectl \
                           apply -f -), or name its namespace with --cni-namespace";

/// The objects that several checks need.
pub struct Facts {
    pub nodes: Result<Vec<Node>, Error>,
    pub agents: Result<Vec<Agent>, Error>,
    /// Warning Events in the DaemonSet's namespace, oldest first.
    pub events: Vec<Value>,
}

/// Fetches the objects that several checks need. Asks the agents until `end`. A failed request does
/// not stop the others.
pub fn fetch(api: &dyn Api, namespace: &str, end: Deadline) -> Facts {
    let events = format!("{}/events", namespace_path(namespace));
    let mut events: Vec<Value> =
        get_list(api, &events, "fieldSelector=type%3DWarning").unwrap_or_default();
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    Facts {
        nodes: get_list(api, "/api/v1/nodes", ""),
        agents: ask_agents(api, namespace, end),
        events,
    }
}

/// Returns the namespace with the DaemonSet: `wanted`, or if that has none, the only other
/// namespace with one.
pub fn find_namespace(api: &dyn Api, wanted: &str) -> String {
    if !matches!(find::<Value>(api, &daemonset_path(wanted, DAEMONSET)), Ok(None)) {
        return wanted.to_owned();
    }
    match daemonsets(api).as_deref() {
        Ok([only]) => text(&only["metadata"]["namespace"]).to_owned(),
        _ => wanted.to_owned(),
    }
}

/// Returns the DaemonSets of the chart in all namespaces.
pub fn daemonsets(api: &dyn Api) -> Result<Vec<Value>, Error> {
    get_list(api, "/apis/apps/v1/daemonsets", SELECTOR)
}

/// Returns a fact. Fails with a warning if it cannot be read.
pub fn readable<'f, T>(fact: &'f Result<T, Error>, what: &str) -> Result<&'f T, Problem> {
    match fact {
        Ok(fact) => Ok(fact),
        Err(why) => Severity::Warning.unreadable(what, why),
    }
}

/// Returns an object that must exist. The error names `what` and the remedy for a missing object;
/// it has this severity if the object cannot be read.
pub fn existing<T>(
    found: Result<Option<T>, Error>,
    severity: Severity,
    what: &str,
    remedy: &str,
) -> Result<T, Problem> {
    match found {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Severity::Error.because(format!("{what} does not exist; {remedy}")),
        Err(why) => severity.unreadable(what, &why),
    }
}

/// Reads the plugin entry from the chart's ConfigMap.
pub fn read_config(api: &dyn Api, namespace: &str) -> Result<Config, Problem> {
    let name = format!("ConfigMap {namespace}/linkerd-cni-config");
    let path = format!("{}/configmaps/linkerd-cni-config", namespace_path(namespace));
    let map: Value = existing(find(api, &path), Severity::Warning, &name, INSTALL)?;
    match parse_entry(&map["data"][ENTRY_KEY]) {
        Ok(config) => Ok(config),
        Err(why) => Severity::Error.because(format!("{name}: {ENTRY_KEY}: {why}")),
    }
}

fn parse_entry(entry: &Value) -> Result<Config, String> {
    let Some(text) = entry.as_str() else {
        return Err("the key is missing".to_owned());
    };
    let object: Object = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Config::read(&object).map_err(|error| format!("{}; {}", error.msg, error.details))
}

/// Reads `cniEnabled` from the values that Linkerd's chart keeps in a ConfigMap. `None` if there
/// is no control plane, or it is unreadable.
pub fn control_plane_uses_cni(api: &dyn Api, linkerd_namespace: &str) -> Option<bool> {
    let path = format!("{}/configmaps/linkerd-config", namespace_path(linkerd_namespace));
    let map: Value = get(api, &path).ok()?;
    let values = map["data"]["values"].as_str()?;
    Some(values.lines().any(|line| line == "cniEnabled: true"))
}
