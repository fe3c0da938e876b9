//! Fetches the objects on which the decision for a pod depends, and what its node reports.

use serde::de::DeserializeOwned;

use super::{NodeReport, PodInputs};
use crate::cni::Error as CniError;
use crate::cni::args::is_name;
use crate::config::Config;
use crate::extension::agents::{Agent, agent_on};
use crate::extension::api::{Api, Error, encoded, find, get};
use crate::extension::checks::plugin_entry;
use crate::extension::facts::{config_path, events};
use crate::extension::objects::{ConfigMap, EventObject};
use crate::failure::Failure;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Namespace, Pod};
use crate::pod::annotation::Annotations;
use crate::quote::{one_line, quote};
use crate::record::Record;

/// Largest part of the agent's log that is read, in lines.
const LOG_LINES: usize = 5000;
/// Number of log lines and of Events that are shown.
const SHOWN: usize = 5;

/// Fetches everything about the pod. `cni_namespace` has the agent's DaemonSet.
///
/// # Errors
/// If the pod or the plugin entry cannot be read, with object and remedy.
pub fn fetch(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: &str,
    name: &str,
) -> Result<PodInputs, String> {
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
    let namespace_annotations: Result<Annotations, CniError> =
        get::<Namespace>(api, &namespace_path(namespace))
            .map(|found| found.metadata.annotations)
            .map_err(unreadable);
    let report = report(api, cni_namespace, &pod);
    let api_service = get(api, API_SERVICE).map_err(unreadable);
    Ok(PodInputs { pod, namespace_annotations, api_service, config, report })
}

/// Reads the plugin entry of the chart in this namespace.
///
/// # Errors
/// Names the ConfigMap and the remedy.
pub fn existing_config(api: &dyn Api, cni_namespace: &str) -> Result<Config, String> {
    let map: ConfigMap = existing(
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
pub fn unreadable(error: Error) -> CniError {
    CniError::new(Failure::ApiError, error.to_string())
}

/// Returns what the node's agent and Events say about the pod. What cannot be read is left out.
fn report(api: &dyn Api, cni_namespace: &str, pod: &Pod) -> NodeReport {
    let metadata = &pod.metadata;
    let uid = encoded(&metadata.uid);
    let found = events(api, &metadata.namespace, &format!("involvedObject.uid%3D{uid}"));
    let events: Vec<String> = found
        .unwrap_or_default()
        .iter()
        .filter(|event| is_about_cni(event))
        .map(event_line)
        .collect();
    let agent = agent_on(api, cni_namespace, &pod.spec.node_name);
    let records = agent.as_ref().map(|agent| records(api, cni_namespace, agent, pod));
    NodeReport {
        agent: agent.map(|agent| {
            let state = match agent.not_ready(&[]) {
                Some(why) => format!("not ready: {}", one_line(&why)),
                None => "ready".to_owned(),
            };
            (agent.pod.name, state)
        }),
        records: records.unwrap_or_default(),
        events: newest(events),
    }
}

fn records(api: &dyn Api, cni_namespace: &str, agent: &Agent, pod: &Pod) -> Vec<String> {
    let name = &agent.pod.name;
    let path = format!(
        "/api/v1/namespaces/{cni_namespace}/pods/{name}/log?container=install-cni&tailLines={LOG_LINES}"
    );
    let log = api.get(&path).unwrap_or_default();
    let [add, check] = Record::line_starts(&pod.metadata.namespace, &pod.metadata.name);
    let lines = log.lines().filter(|line| line.contains(&add) || line.contains(&check));
    newest(lines.map(one_line).collect())
}

fn newest(mut lines: Vec<String>) -> Vec<String> {
    lines.split_off(lines.len().saturating_sub(SHOWN))
}

fn is_about_cni(event: &EventObject) -> bool {
    event.reason.starts_with("LinkerdCNI") || event.reason == "FailedCreatePodSandBox"
}

fn event_line(event: &EventObject) -> String {
    one_line(&format!("{} {}: {}", event.time, event.reason, event.message))
}
