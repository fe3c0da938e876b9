//! `linkerd cni explain`: what the plugin decides for one pod, by the same code, from the objects as they
//! are now.

#[cfg(test)]
mod tests;
mod text;

pub use text::render;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::agents::{Agent, agent_on};
use super::api::{Api, Error, encoded, find, get};
use super::checks::plugin_entry;
use super::facts::{config_path, events};
use super::objects::{self, event_time};
use crate::cni::Error as CniError;
use crate::cni::args::{PodRef, is_name};
use crate::config::bypass::Bypass;
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Namespace, Pod, Service};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{self, ClusterLookup};
use crate::quote::{one_line, quote};
use crate::record::Record;

/// Largest part of the agent's log that is read, in lines.
const LOG_LINES: usize = 5000;
/// Number of log lines and of Events that are shown.
const SHOWN: usize = 5;

/// What the plugin decides for a pod, from which objects, and what the pod's node reports.
#[derive(Debug)]
pub struct Explanation {
    pub pod: Pod,
    pub config: Config,
    /// The decision for an ADD, or the error with which the pod cannot start. `None`: the runtime calls no
    /// plugin for a pod in the node's network namespace.
    pub decision: Option<Result<Decision<ResolvedRedirect>, CniError>>,
    /// The paths around the proxy. Empty if they are unknown, as the pod cannot start.
    pub bypasses: Vec<Bypass>,
    pub report: NodeReport,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The agent's pod, and `ready` or why not.
    pub agent: Option<(String, String)>,
    /// Lines of the agent's log about the pod, oldest first.
    pub records: Vec<String>,
    /// Events on the pod from Linkerd's CNI, and failed attempts to create its network.
    pub events: Vec<String>,
}

/// Answers the plugin's look-ups from objects that are each read once.
pub struct Lookup<'a> {
    api: &'a dyn Api,
    namespaces: BTreeMap<String, Annotations>,
    service: Option<Result<Service, CniError>>,
}

impl<'a> Lookup<'a> {
    /// `namespaces` are the annotations of namespaces that were read already.
    pub fn new(api: &'a dyn Api, namespaces: BTreeMap<String, Annotations>) -> Self {
        Lookup { api, namespaces, service: None }
    }
}

impl ClusterLookup for Lookup<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, CniError> {
        if let Some(known) = self.namespaces.get(name) {
            return Ok(known.clone());
        }
        let found: Namespace = get(self.api, &namespace_path(name)).map_err(unreadable)?;
        let annotations = found.metadata.annotations;
        self.namespaces.insert(name.to_owned(), annotations.clone());
        Ok(annotations)
    }

    fn api_service(&mut self) -> Result<Service, CniError> {
        let read = || get(self.api, API_SERVICE).map_err(unreadable);
        self.service.get_or_insert_with(read).clone()
    }
}

/// Decides as the plugin does for an ADD if it knows the pod's containers.
/// Fails with the plugin's error, with which the pod cannot start.
fn decide(
    config: &Config,
    object: &Pod,
    lookup: &mut Lookup<'_>,
) -> Result<Decision<ResolvedRedirect>, CniError> {
    let pod = PodRef::from(&object.metadata);
    if let Some(reason) = config.filter.skip_reason(&pod) {
        return Ok(Decision::Skip(reason));
    }
    let facts = match facts::facts(object.clone(), &pod, lookup)? {
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
        Decision::Redirect(facts) => facts,
    };
    let resolved = config.resolve(&facts)?;
    match config.refusal(&resolved) {
        Some(error) => Err(error),
        None => Ok(Decision::Redirect(resolved)),
    }
}

/// Fetches everything about the pod. `cni_namespace` has the agent's DaemonSet.
/// Fails if the pod or the plugin entry cannot be read, with object and remedy.
pub fn fetch(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: &str,
    name: &str,
) -> Result<Explanation, String> {
    for text in [cni_namespace, namespace, name] {
        if !is_name(text) {
            return Err(format!("{} is not the name of a pod or namespace", quote(text)));
        }
    }
    let pod: Pod = existing(
        api,
        &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        &format!("pod {namespace}/{name}"),
        "name its namespace with --namespace",
    )?;
    let config = existing_config(api, cni_namespace)?;
    let mut lookup = Lookup::new(api, BTreeMap::new());
    let decision = (!pod.spec.host_network).then(|| decide(&config, &pod, &mut lookup));
    let bypasses = match config.bypasses_of(pod.clone(), &mut lookup) {
        Ok(Decision::Redirect(found)) => found,
        _ => Vec::new(),
    };
    let report = report(api, cni_namespace, &pod);
    Ok(Explanation { pod, config, decision, bypasses, report })
}

/// Reads the plugin entry of the chart in this namespace.
/// The error names the ConfigMap and the remedy.
pub fn existing_config(api: &dyn Api, cni_namespace: &str) -> Result<Config, String> {
    let map: Value = existing(
        api,
        &config_path(cni_namespace),
        &format!("ConfigMap {cni_namespace}/linkerd-cni-config"),
        "install the chart, or name its namespace with --cni-namespace",
    )?;
    plugin_entry(&map).map_err(|why| format!("ConfigMap {cni_namespace}/linkerd-cni-config: {why}"))
}

/// Reads an object that must exist. The error names `what` and the remedy for a missing object.
fn existing<T: DeserializeOwned>(
    api: &dyn Api,
    path: &str,
    what: &str,
    remedy: &str,
) -> Result<T, String> {
    match find(api, path) {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(format!("{what} does not exist; {remedy}")),
        Err(error) => Err(format!("cannot read {what}: {error}")),
    }
}

/// The error of a failed request, as the plugin would report it.
fn unreadable(error: Error) -> CniError {
    CniError::new(Failure::ApiError, error.to_string())
}

/// Returns what the node's agent and Events say about the pod. What cannot be read is left out.
fn report(api: &dyn Api, cni_namespace: &str, pod: &Pod) -> NodeReport {
    let metadata = &pod.metadata;
    let uid = encoded(&metadata.uid);
    let found = events(api, &metadata.namespace, &format!("involvedObject.uid%3D{uid}"));
    let events = found.iter().flatten().filter_map(event_line).collect();
    let agent = agent_on(api, cni_namespace, &pod.spec.node_name);
    let records = agent.as_ref().map(|agent| records(api, cni_namespace, agent, pod));
    NodeReport {
        agent: agent.map(|agent| {
            let state = match agent.not_ready(&[]) {
                Some(why) => format!("not ready: {}", one_line(&why)),
                None => "ready".to_owned(),
            };
            (agent.name().to_owned(), state)
        }),
        records: records.unwrap_or_default(),
        events: newest(events),
    }
}

fn records(api: &dyn Api, cni_namespace: &str, agent: &Agent, pod: &Pod) -> Vec<String> {
    let name = agent.name();
    let path = format!(
        "/api/v1/namespaces/{cni_namespace}/pods/{name}/log?container=install-cni&tailLines={LOG_LINES}"
    );
    let log = api.request("GET", &path, "").unwrap_or_default();
    let [add, check] = Record::line_starts(&pod.metadata.namespace, &pod.metadata.name);
    let lines = log.lines().filter(|line| line.contains(&add) || line.contains(&check));
    newest(lines.map(one_line).collect())
}

fn newest(mut lines: Vec<String>) -> Vec<String> {
    lines.split_off(lines.len().saturating_sub(SHOWN))
}

/// Returns the line for an Event of Linkerd's CNI, or of a sandbox that could not be created.
fn event_line(event: &Value) -> Option<String> {
    let [reason, message] = ["reason", "message"].map(|key| objects::text(&event[key]));
    let is_about_cni = reason.starts_with("LinkerdCNI") || reason == "FailedCreatePodSandBox";
    is_about_cni.then(|| one_line(&format!("{} {reason}: {message}", event_time(event))))
}
