//! Checks that meshed pods are redirected.

use serde_json::Value;

use super::agent_states::AgentStates;
use super::{PODS, sandboxes};
use crate::agent::status_body::StatusBody;
use crate::extension::facts::{Facts, readable};
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
const NOT_ENDED: &str = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

/// Pods that the checks report, found in one pass over all pods.
#[derive(Default)]
struct SeenPods {
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
    let seen = look_at_pods(api, facts);
    let shared = counted(
        &states,
        Reason::ProxyUser,
        "pods with a container that bypasses the proxy; linkerd cni bypass names them",
    );
    let ipv6 = counted(
        &states,
        Reason::Ipv6,
        "pods whose IPv6 traffic bypasses the proxy; set disableIPv6=false in this chart \
         and in the control plane, and restart the pods",
    );
    let compared = "a repair controller compares the redirect rules of running pods";
    let all_redirected = "no validator and no audit finds a meshed pod without redirect rules";
    let not_shared = "no container is known to run as the proxy's user";
    let all_families = "all IP families of the cluster are redirected";
    let mut checks = vec![
        Check::new(PODS, "pod-network", "no pod waits for its network", sandboxes::awaited(api)),
        Check::new(PODS, "audits", compared, audited(facts)),
        Check::new(PODS, "stranded", all_redirected, redirected(&seen)),
        Check::new(PODS, "proxy-user", not_shared, shared),
        Check::new(PODS, "ipv6", all_families, ipv6),
    ];
    if is_called_by_multus(daemonset) {
        let called = "Multus calls the plugin for all meshed pods";
        checks.push(Check::new(PODS, "multus", called, attached(&seen)));
    }
    checks
}

/// Reads all pods, whatever their labels, because only the containers show whether a pod is meshed.
fn look_at_pods(api: &dyn Api, facts: &Facts) -> SeenPods {
    let mut seen = SeenPods::default();
    let reports = match read_reports(api, "/api/v1") {
        Ok(reports) => reports,
        Err(why) => {
            seen.unaudited.push(format!("what audits found: cannot read the Events: {why}"));
            RepairReports::default()
        }
    };
    let read: Result<(), Error> = for_each_item(api, "/api/v1/pods", NOT_ENDED, |pod: Pod| {
        seen.bare.extend(bare_pod(&pod, &reports));
        seen.unaudited.extend(unaudited_pod(&pod, &reports));
        seen.unattached.extend(unattached_pod(&pod));
    });
    if let Err(why) = read {
        seen.unread.push(format!("cannot read the pods: {why}"));
    }
    seen.unaudited.extend(unaudited_nodes(facts, &reports));
    seen
}

/// Describes a pod without redirect rules, with its node and how it was found: by its validator, or
/// by an audit, whose Event says why the pod is not repaired.
fn bare_pod(pod: &Pod, reports: &RepairReports) -> Option<String> {
    if StrandedPod::from_object(pod, FoundBy::Validator).is_some() {
        return Some(format!("{}: its validator exited with 95", on_node(pod)));
    }
    let note = reports.missing_in(pod)?;
    Some(format!("{}: {note}", on_node(pod)))
}

/// Describes a pod whose redirect rules an audit could not read.
fn unaudited_pod(pod: &Pod, reports: &RepairReports) -> Option<String> {
    let note = reports.unknown_in(pod)?;
    Some(format!("{}: {note}", on_node(pod)))
}

/// Describes the nodes with a report that audits fail, or that evictions by audits are suspended.
fn unaudited_nodes(facts: &Facts, reports: &RepairReports) -> Vec<String> {
    let mut nodes = Vec::new();
    for node in facts.nodes.iter().flatten() {
        if let Some(note) = reports.unknown_on(node.name()) {
            nodes.push(format!("{}: {note}", node.name()));
        }
    }
    nodes
}

fn on_node(pod: &Pod) -> String {
    format!("{} on {}", name(pod), pod.spec.node_name)
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}

/// Names a pod that needs redirect rules, but for which Multus does not call the plugin.
fn unattached_pod(pod: &Pod) -> Option<String> {
    let needs_rules = is_meshed(pod) && !pod.spec.host_network;
    if needs_rules && !is_attached(pod) { Some(name(pod)) } else { None }
}

/// Warns of nodes on which no repair controller compares rules, as its settings say. Whether the
/// controller is ready is the subject of another check.
fn audited(facts: &Facts) -> CheckResult {
    let agents = readable(&facts.agents, "the agents' pods")?;
    let mut unaudited = Vec::new();
    for agent in agents {
        if let Some(why) = Audits::of(&agent.pod).why_none() {
            unaudited.push(format!("{}: {why}", agent.node()));
        }
    }
    let summary = "nodes on which nobody notices that a running pod lacks redirect rules; linkerd \
                   cni bypass lists these pods as rules-unknown";
    Severity::Warning.if_any(summary, &unaudited)
}

fn redirected(seen: &SeenPods) -> CheckResult {
    let summary = "pods without redirect rules: they started before the plugin was installed on \
                   their node, or lost rules; delete them, or enable repairController";
    let unknown = [seen.unread.as_slice(), &seen.unaudited].concat();
    Severity::Error.if_any_or_unknown(summary, &seen.bare, &unknown)
}

fn attached(seen: &SeenPods) -> CheckResult {
    let summary = "pods without the annotation k8s.v1.cni.cncf.io/networks that names linkerd-cni, \
                   so without redirect rules; add it to their workloads, or set \
                   networkAttachmentDefinition.annotatePods and restart them";
    Severity::Error.if_any_or_unknown(summary, &seen.unattached, &seen.unread)
}

/// Warns of nodes with pods that bypass the proxy for this reason. Takes the numbers from the
/// agents, which know the namespaces and the plugin entry of their pods.
fn counted(states: &AgentStates<'_>, reason: Reason, summary: &str) -> CheckResult {
    states.judge_known(
        Severity::Warning,
        summary,
        |body| Some(format!("{} pods", count(body, reason)?)),
        uncounted,
    )
}

fn count(body: &StatusBody, reason: Reason) -> Option<usize> {
    body.pod_copy.as_ref()?.bypasses.as_ref()?.get(reason.label()).copied()
}

/// Returns why the agent's numbers do not cover all pods of its node.
fn uncounted(body: &StatusBody) -> Option<String> {
    match &body.pod_copy {
        None => Some(
            "its agent does not watch the pods (watchPods: false); linkerd cni bypass reads them"
                .to_owned(),
        ),
        Some(pod_copy) if !pod_copy.current => {
            Some("its agent's list of the pods is not current".to_owned())
        }
        Some(pod_copy) if pod_copy.bypasses.is_none() => Some(
            "its agent has another version and does not count them; linkerd cni bypass does"
                .to_owned(),
        ),
        Some(_) => {
            let unknown = count(body, Reason::Unknown)?;
            Some(format!("{unknown} pods; linkerd cni bypass says why"))
        }
    }
}
