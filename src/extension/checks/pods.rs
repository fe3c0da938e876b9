//! Checks that meshed pods are redirected.

use serde_json::Value;

use super::agent_states::AgentStates;
use super::{PODS, sandboxes};
use crate::agent::status_body::StatusBody;
use crate::extension::facts::{Facts, require_readable};
use crate::extension::node_programs::Audits;
use crate::extension::release::is_called_by_multus;
use crate::extension::repair_events::{RepairReports, read_reports};
use crate::extension::report::{Check, CheckResult, Severity};
use crate::extension::requests::{Api, Error, for_each_item};
use crate::kube::types::Pod;
use crate::pod::mesh::is_meshed;
use crate::pod::multus::is_attached;
use crate::repair::find::stranded::{FoundBy, StrandedPod};
use crate::verdict::reason::Reason;

/// Query for the pods that have not ended. Phase `Pending` would leave stranded pods out: a pod
/// that ran before a reboot stays in phase `Running`, even while its validator fails (`getPhase` in
/// <https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/kubelet/kubelet_pods.go>).
const NOT_ENDED_QUERY: &str =
    "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

/// Pods that the checks report, found in one pass over all pods.
#[derive(Default)]
struct PodFindings {
    /// Pods without redirect rules: those whose validator exited with 95, and those that an audit
    /// found.
    bare: Vec<String>,
    /// Meshed pods for which Multus does not call the plugin.
    unattached: Vec<String>,
    /// Pods and nodes whose redirect rules no audit could read.
    unaudited: Vec<String>,
    /// Why not all pods were read.
    unread: Vec<String>,
}

pub fn checks(api: &dyn Api, daemonset: &Value, facts: &Facts) -> Vec<Check> {
    let states = AgentStates::new(facts);
    let findings = read_pods(api, facts);
    let compared = "a repair controller compares the redirect rules of running pods";
    let all_redirected = "no validator and no audit finds a meshed pod without redirect rules";
    let not_shared = "no container is known to run as the proxy's user";
    let all_families = "all IP families of the cluster are redirected";
    let mut checks = vec![
        check("pod-network", "no pod waits for its network", sandboxes::check_sandboxes(api)),
        check("audits", compared, check_audited(facts)),
        check("stranded", all_redirected, check_redirected(&findings)),
        check("proxy-user", not_shared, check_proxy_users(&states)),
        check("ipv6", all_families, check_ipv6(&states)),
    ];
    if is_called_by_multus(daemonset) {
        let called = "Multus calls the plugin for all meshed pods";
        checks.push(check("multus", called, check_attached(&findings)));
    }
    checks
}

fn check(hint: &'static str, description: &str, result: CheckResult) -> Check {
    Check::new(PODS, hint, description, result)
}

/// Reads all pods, whatever their labels, because only the containers show whether a pod is meshed.
fn read_pods(api: &dyn Api, facts: &Facts) -> PodFindings {
    let mut findings = PodFindings::default();
    let reports = match read_reports(api, "/api/v1") {
        Ok(reports) => reports,
        Err(error) => {
            findings.unaudited.push(format!("what audits found: cannot read the Events: {error}"));
            RepairReports::default()
        }
    };
    let result: Result<(), Error> =
        for_each_item(api, "/api/v1/pods", NOT_ENDED_QUERY, |pod: Pod| {
            findings.bare.extend(describe_bare_pod(&pod, &reports));
            findings.unaudited.extend(describe_unaudited_pod(&pod, &reports));
            findings.unattached.extend(name_unattached_pod(&pod));
        });
    if let Err(error) = result {
        findings.unread.push(format!("cannot read the pods: {error}"));
    }
    findings.unaudited.extend(describe_unaudited_nodes(facts, &reports));
    findings
}

/// Describes a pod without redirect rules, with its node and how it was found: by its validator, or
/// by an audit, whose Event says why the pod is not repaired.
fn describe_bare_pod(pod: &Pod, reports: &RepairReports) -> Option<String> {
    if StrandedPod::from_object(pod, FoundBy::Validator).is_some() {
        return Some(format!("{}: its validator exited with 95", name_with_node(pod)));
    }
    let note = reports.missing_rules(pod)?;
    Some(format!("{}: {note}", name_with_node(pod)))
}

/// Describes a pod whose redirect rules an audit could not read.
fn describe_unaudited_pod(pod: &Pod, reports: &RepairReports) -> Option<String> {
    let note = reports.unknown_rules(pod)?;
    Some(format!("{}: {note}", name_with_node(pod)))
}

/// Describes the nodes with a report that audits fail, or that evictions by audits are suspended.
fn describe_unaudited_nodes(facts: &Facts, reports: &RepairReports) -> Vec<String> {
    let mut nodes = Vec::new();
    for node in facts.nodes.iter().flatten() {
        if let Some(note) = reports.unknown_rules_on_node(node.name()) {
            nodes.push(format!("{}: {note}", node.name()));
        }
    }
    nodes
}

fn name_with_node(pod: &Pod) -> String {
    format!("{} on {}", pod_name(pod), pod.spec.node_name)
}

fn pod_name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

/// Names a pod that needs redirect rules, but for which Multus does not call the plugin.
fn name_unattached_pod(pod: &Pod) -> Option<String> {
    let needs_rules = is_meshed(pod) && !pod.spec.host_network;
    if !needs_rules || is_attached(pod) {
        return None;
    }
    Some(pod_name(pod))
}

/// Warns of nodes on which no repair controller compares rules, as its settings say. Whether the
/// controller is ready is the subject of another check.
fn check_audited(facts: &Facts) -> CheckResult {
    let agents = require_readable(&facts.agents, "the agents' pods")?;
    let mut unaudited = Vec::new();
    for agent in agents {
        if let Some(reason) = Audits::of(&agent.pod).why_none() {
            unaudited.push(format!("{}: {reason}", agent.node()));
        }
    }
    let summary = "nodes on which nobody notices that a running pod lacks redirect rules; linkerd \
                   cni bypass lists these pods as rules-unknown";
    Severity::Warning.fail_if_any(summary, &unaudited)
}

fn check_redirected(findings: &PodFindings) -> CheckResult {
    let summary = "pods without redirect rules: they started before the plugin was installed on \
                   their node, or lost rules; delete them, or enable repairController";
    let unknown = [findings.unread.as_slice(), &findings.unaudited].concat();
    Severity::Error.fail_if_any_or_unknown(summary, &findings.bare, &unknown)
}

fn check_attached(findings: &PodFindings) -> CheckResult {
    let summary = "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, \
                   so without redirect rules; add it to their workloads, or set \
                   networkAttachmentDefinition.annotatePods and restart them";
    Severity::Error.fail_if_any_or_unknown(summary, &findings.unattached, &findings.unread)
}

fn check_proxy_users(states: &AgentStates<'_>) -> CheckResult {
    let summary = "pods with a container that bypasses the proxy; linkerd cni bypass names them";
    check_bypass_count(states, Reason::ProxyUser, summary)
}

fn check_ipv6(states: &AgentStates<'_>) -> CheckResult {
    let summary = "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart \
                   and in the control plane, and restart the pods";
    check_bypass_count(states, Reason::Ipv6, summary)
}

/// Warns of nodes with pods that bypass the proxy for this reason. Takes the numbers from the
/// agents, which know the namespaces and the plugin entry of their pods.
fn check_bypass_count(states: &AgentStates<'_>, reason: Reason, summary: &str) -> CheckResult {
    states.judge_with_unknown(
        Severity::Warning,
        summary,
        |body| describe_pod_count(body, reason),
        incomplete_count_reason,
    )
}

fn describe_pod_count(body: &StatusBody, reason: Reason) -> Option<String> {
    let count = pod_count(body, reason)?;
    Some(format!("{count} pods"))
}

fn pod_count(body: &StatusBody, reason: Reason) -> Option<usize> {
    let pod_copy = body.pod_copy.as_ref()?;
    let bypasses = pod_copy.bypasses.as_ref()?;
    bypasses.get(reason.label()).copied()
}

/// Returns why the agent's numbers do not cover all pods of its node.
fn incomplete_count_reason(body: &StatusBody) -> Option<String> {
    let Some(pod_copy) = &body.pod_copy else {
        let reason =
            "its agent does not watch the pods (watchPods: false); linkerd cni bypass reads them";
        return Some(reason.to_owned());
    };
    if !pod_copy.current {
        return Some("its agent's list of the pods is not current".to_owned());
    }
    if pod_copy.bypasses.is_none() {
        let reason =
            "its agent has another version and does not count them; linkerd cni bypass does";
        return Some(reason.to_owned());
    }
    let unknown = pod_count(body, Reason::Unknown)?;
    Some(format!("{unknown} pods; linkerd cni bypass says why"))
}
