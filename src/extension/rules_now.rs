//! The state of the redirect rules of running pods, for `linkerd cni explain` and `linkerd cni
//! bypass`. It is read from the reports of the repair controllers, and unknown on nodes where no
//! repair controller compares the rules.

use std::collections::BTreeMap;

use serde_json::Value;

use super::agents::SELECTOR;
use super::node_programs::{Audits, NodePrograms};
use super::repair_events::{RepairReports, read_reports};
use super::requests::{Api, Error, get_list};
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::skip::skipped_by_annotations;
use crate::repair::find::stranded::{FoundBy, StrandedPod};

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

/// Why a pod may start without redirect rules although it is meshed.
const MAY_BE_SKIPPED: &str = "the plugin may skip this pod, which has no annotation of a proxy: \
                              the agent does not watch the pods (watchPods: false)";

#[derive(Debug)]
pub struct RulesNow {
    /// What the repair controllers report, or why that cannot be read.
    reports: Result<RepairReports, String>,
    /// The agents and repair controllers by node, or why their pods cannot be read.
    programs: Result<BTreeMap<String, NodePrograms>, String>,
}

impl RulesNow {
    /// Reads the reports on the pods of `parent`, which is the API path of one namespace or of all
    /// namespaces. If a request fails, the rules are unknown.
    pub fn fetch(api: &dyn Api, cni_namespace: &str, parent: &str) -> RulesNow {
        let reports =
            read_reports(api, parent).map_err(|error| format!("cannot read the Events: {error}"));
        let programs = read_programs(api, cni_namespace)
            .map_err(|error| format!("cannot read the pods of {cni_namespace}: {error}"));
        RulesNow { reports, programs }
    }

    /// Returns whether rules are missing in the pod, as far as its status and the reports say.
    pub fn pod_rules(&self, pod: &Pod) -> PodRules {
        if let Some(reason) = self.missing_reason(pod) {
            return PodRules::Missing(reason);
        }
        // A pod that does not run has no rules to report.
        if !is_audited(pod) {
            return PodRules::NotReported;
        }
        match self.unknown_reason(pod) {
            Some(reason) => PodRules::Unknown(reason),
            None => PodRules::NotReported,
        }
    }

    /// Returns why rules of the pod are missing, if its validator or a repair controller says so.
    fn missing_reason(&self, pod: &Pod) -> Option<String> {
        if is_stranded(pod) {
            let reason =
                "its linkerd-network-validator exited with 95: the pod has no redirect rules";
            return Some(reason.to_owned());
        }
        let Ok(reports) = &self.reports else { return None };
        reports.missing_rules(pod).cloned()
    }

    /// Returns why it is unknown whether a running pod has its rules. `None` if a repair controller
    /// would report a missing rule.
    fn unknown_reason(&self, pod: &Pod) -> Option<String> {
        let node = &pod.spec.node_name;
        let reports = match &self.reports {
            Ok(reports) => reports,
            Err(reason) => return Some(reason.clone()),
        };
        if let Some(note) = reports.unknown_rules(pod) {
            return Some(note.clone());
        }
        if let Some(note) = reports.unknown_rules_on_node(node) {
            return Some(note.clone());
        }
        match self.programs_of(node) {
            Ok(programs) => uncompared_reason(pod, programs),
            Err(reason) => Some(reason),
        }
    }

    /// Returns why it is unknown whether the plugin is called for a pod that has not started, or
    /// whether the plugin skips the pod. `None` if the pod has started or has no node yet.
    pub fn unknown_call_reason(&self, pod: &Pod) -> Option<String> {
        let node = &pod.spec.node_name;
        let has_started = is_audited(pod) || is_stranded(pod);
        if node.is_empty() || has_started {
            return None;
        }
        let programs = match self.programs_of(node) {
            Ok(programs) => programs,
            Err(reason) => return Some(reason),
        };
        if !programs.is_agent_ready {
            return Some(format!(
                "no agent is ready on node {node}, so the container runtime may not call the plugin"
            ));
        }
        if may_be_skipped(pod, programs) {
            return Some(format!("on node {node}, {MAY_BE_SKIPPED}"));
        }
        None
    }

    fn programs_of(&self, node: &str) -> Result<NodePrograms, String> {
        match &self.programs {
            Ok(programs) => Ok(programs.get(node).copied().unwrap_or_default()),
            Err(reason) => Err(reason.clone()),
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

/// Returns why nobody compares the rules of a running pod. `None` if a repair controller does, or
/// did when it started.
fn uncompared_reason(pod: &Pod, programs: NodePrograms) -> Option<String> {
    let node = &pod.spec.node_name;
    if !programs.is_controller_ready {
        return Some(format!("no repair controller is ready on node {node}"));
    }
    if let Some(why) = programs.audits.why_none() {
        return Some(format!("on node {node}, {why}"));
    }
    // Audits end once each pod has its rules, so no audit finds a pod that started later.
    if programs.audits == Audits::AfterStart && may_be_skipped(pod, programs) {
        return Some(format!("on node {node}, {MAY_BE_SKIPPED}"));
    }
    None
}

/// Whether the plugin may skip a pod because nothing tells the plugin that the pod has a proxy.
fn may_be_skipped(pod: &Pod, programs: NodePrograms) -> bool {
    programs.lacks_pod_copy && skipped_by_annotations(&pod.metadata.annotations).is_some()
}

fn read_programs(api: &dyn Api, namespace: &str) -> Result<BTreeMap<String, NodePrograms>, Error> {
    let pods: Vec<Value> = get_list(api, &format!("{}/pods", namespace_path(namespace)), SELECTOR)?;
    Ok(NodePrograms::by_node(&pods))
}
