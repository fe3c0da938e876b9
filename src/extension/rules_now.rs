//! What is known of the redirect rules that running pods have now, for `linkerd cni explain` and
//! `linkerd cni bypass`: what the repair controllers report, and on which nodes no repair
//! controller compares the rules.

use std::collections::BTreeMap;

use serde_json::Value;

use super::agents::{SELECTOR, is_ready};
use super::objects::{items, text};
use super::repair_events::{RepairReports, read_reports};
use super::requests::{Api, Error, get_list};
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::repair::find::stranded::{FoundBy, StrandedPod};

/// Name of the repair controller's container in the agents' pods.
const CONTROLLER: &str = "repair-controller";

/// What is known of the rules that a pod has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodRules {
    /// No rule is reported as missing, although a repair controller would report a missing rule.
    /// Also the state of a pod that does not run yet.
    NotReported,
    /// Why rules are missing.
    Missing(String),
    /// Why it is unknown whether rules are missing.
    Unknown(String),
}

#[derive(Debug)]
pub struct RulesNow {
    /// What the repair controllers report, or why that cannot be read.
    reports: Result<RepairReports, String>,
    /// Whether agent and repair controller are ready on each node with an agent, or why their pods
    /// cannot be read.
    programs: Result<BTreeMap<String, Programs>, String>,
}

/// Which containers of the agent's pod are ready on a node.
#[derive(Clone, Copy, Debug, Default)]
struct Programs {
    is_agent_ready: bool,
    is_controller_ready: bool,
}

impl RulesNow {
    /// Reads the reports on the pods of `parent`, which is the API path of one namespace or of all
    /// namespaces. If a request fails, the rules are unknown.
    pub fn fetch(api: &dyn Api, cni_namespace: &str, parent: &str) -> RulesNow {
        RulesNow {
            reports: match read_reports(api, parent) {
                Ok(reports) => Ok(reports),
                Err(error) => Err(format!("cannot read the Events: {error}")),
            },
            programs: match read_programs(api, cni_namespace) {
                Ok(programs) => Ok(programs),
                Err(error) => Err(format!("cannot read the pods of {cni_namespace}: {error}")),
            },
        }
    }

    /// Returns what is known of the pod's rules.
    pub fn of(&self, pod: &Pod) -> PodRules {
        if is_stranded(pod) {
            let why = "its linkerd-network-validator exited with 95: the pod has no redirect rules";
            return PodRules::Missing(why.to_owned());
        }
        let node = &pod.spec.node_name;
        let reports = match &self.reports {
            Ok(reports) => reports,
            Err(why) => return unknown_if_audited(pod, why.clone()),
        };
        if let Some(note) = reports.missing_in(pod) {
            return PodRules::Missing(note.clone());
        }
        if let Some(note) = reports.unknown_in(pod).or(reports.unknown_on(node)) {
            return unknown_if_audited(pod, note.clone());
        }
        match self.programs_of(node) {
            Ok(programs) if programs.is_controller_ready => PodRules::NotReported,
            Ok(_) => {
                let why = format!("no repair controller is ready on node {node}");
                unknown_if_audited(pod, why)
            }
            Err(why) => unknown_if_audited(pod, why),
        }
    }

    /// Returns why it is unknown whether the plugin is called for a pod that has not started.
    /// `None` if an agent is ready on the pod's node, or if the pod has started or has no node yet.
    pub fn why_call_is_unknown(&self, pod: &Pod) -> Option<String> {
        let node = &pod.spec.node_name;
        if node.is_empty() || is_audited(pod) || is_stranded(pod) {
            return None;
        }
        match self.programs_of(node) {
            Ok(programs) if programs.is_agent_ready => None,
            Ok(_) => Some(format!(
                "no agent is ready on node {node}, so the container runtime may not call the plugin"
            )),
            Err(why) => Some(why),
        }
    }

    fn programs_of(&self, node: &str) -> Result<Programs, String> {
        match &self.programs {
            Ok(programs) => Ok(programs.get(node).copied().unwrap_or_default()),
            Err(why) => Err(why.clone()),
        }
    }
}

fn is_stranded(pod: &Pod) -> bool {
    StrandedPod::from_object(pod, FoundBy::Validator).is_some()
}

/// Whether an audit judges the pod. An audit judges pods that run and are not being deleted.
fn is_audited(pod: &Pod) -> bool {
    StrandedPod::from_object(pod, FoundBy::Audit).is_some()
}

/// Returns the rules as unknown if the pod runs. A pod that does not run has no rules to report.
fn unknown_if_audited(pod: &Pod, why: String) -> PodRules {
    if is_audited(pod) { PodRules::Unknown(why) } else { PodRules::NotReported }
}

fn read_programs(api: &dyn Api, namespace: &str) -> Result<BTreeMap<String, Programs>, Error> {
    let pods: Vec<Value> = get_list(api, &format!("{}/pods", namespace_path(namespace)), SELECTOR)?;
    let mut by_node: BTreeMap<String, Programs> = BTreeMap::new();
    for pod in &pods {
        let node = text(&pod["spec"]["nodeName"]).to_owned();
        let programs = by_node.entry(node).or_default();
        // During a rollout a node may have two pods of the agent, of which one ready pod is enough.
        programs.is_agent_ready |= is_ready(pod);
        // If a node is gone, Kubernetes makes only the pod not ready. Its containers keep the status
        // that the kubelet reported last.
        let has_ready_controller = items(&pod["status"]["containerStatuses"])
            .any(|container| container["name"] == CONTROLLER && container["ready"] == true);
        programs.is_controller_ready |= is_ready(pod) && has_ready_controller;
    }
    Ok(by_node)
}
