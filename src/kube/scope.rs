//! Decides whether a node is in a DaemonSet's scope. Pure.
//!
//! The rules are those of Kubernetes' DaemonSet controller (`NodeShouldRunDaemonPod` in
//! `pkg/controller/daemon`, with the matching of `k8s.io/component-helpers/scheduling/corev1`). The
//! agent must not uninstall by mistake, so there are two differences:
//! - an unknown operator or an invalid value counts as a match;
//! - taints for node conditions never count, whatever their effect. The controller tolerates most
//!   of them, and the others are removed when the condition ends.

use std::cmp::Ordering;

use super::scheduling::{Node, NodeSelectorTerm, Placement, Requirement, Taint, Toleration};

const NO_EXECUTE: &str = "NoExecute";
const NO_SCHEDULE: &str = "NoSchedule";

/// Taints that Kubernetes adds and removes with the node's conditions.
const CONDITION_TAINTS: [&str; 7] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/unschedulable",
];

/// Why no pod of a template can run on a node, in words for logs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    /// By the template's node name, node selector or affinity.
    #[error("{0}")]
    NotSelected(String),
    #[error("{0}")]
    Tainted(String),
}

/// Returns why no pod of this template can run on the node; `None` if a pod can or may run there.
pub fn exclusion(template: &Placement, node: &Node) -> Option<Exclusion> {
    let not_selected = |why: String| Some(Exclusion::NotSelected(why));
    let name = &template.node_name;
    if !name.is_empty() && *name != node.metadata.name {
        return not_selected(format!("the DaemonSet runs on node {name} only"));
    }
    for (key, value) in &template.node_selector {
        if node.metadata.labels.get(key) != Some(value) {
            return not_selected(format!("the node lacks the label {key}={value}"));
        }
    }
    if let Some(required) = &template.affinity.node_affinity.required {
        let terms = &required.node_selector_terms;
        // Kubernetes rejects an empty list of terms. An empty list here means that `required` has
        // only fields unknown to this code, so the node counts as matching.
        if !terms.is_empty() && terms.iter().all(|term| mismatches(term, node)) {
            return not_selected("the node does not match the required node affinity".into());
        }
    }
    let mut taints = node.spec.taints.iter();
    let taint = taints.find(|taint| repels(taint, template))?;
    let Taint { key, value, effect } = taint;
    Some(Exclusion::Tainted(format!("taint {key}={value}:{effect} is not tolerated")))
}

/// The requirements of a term are ANDed, and a term without requirements matches no node.
fn mismatches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let expressions = &term.match_expressions;
    let fields = &term.match_fields;
    let name = Some(node.metadata.name.as_str());
    (expressions.is_empty() && fields.is_empty())
        || expressions
            .iter()
            .any(|requirement| fails(requirement, labels.get(&requirement.key).map(String::as_str)))
        || fields
            .iter()
            .any(|requirement| requirement.key == "metadata.name" && fails(requirement, name))
}

/// Whether `found`, the value of the label or field, certainly does not meet the requirement.
fn fails(requirement: &Requirement, found: Option<&str>) -> bool {
    let is_listed = |found| requirement.values.iter().any(|value| value == found);
    match requirement.operator.as_str() {
        "In" => !requirement.values.is_empty() && !found.is_some_and(is_listed),
        "NotIn" => found.is_some_and(is_listed),
        "Exists" => found.is_none(),
        "DoesNotExist" => found.is_some(),
        "Gt" => compares(requirement, found, Ordering::Greater) == Some(false),
        "Lt" => compares(requirement, found, Ordering::Less) == Some(false),
        _ => false,
    }
}

/// Whether `found` is on this side of the bound; `None` if either is not a whole number. A missing
/// label never matches.
fn compares(requirement: &Requirement, found: Option<&str>, side: Ordering) -> Option<bool> {
    let [bound] = &requirement.values[..] else {
        return None;
    };
    let bound: i64 = bound.parse().ok()?;
    match found {
        Some(found) => Some(found.parse::<i64>().ok()?.cmp(&bound) == side),
        None => Some(false),
    }
}

fn repels(taint: &Taint, template: &Placement) -> bool {
    let mut tolerations = template.tolerations.iter();
    [NO_EXECUTE, NO_SCHEDULE].contains(&taint.effect.as_str())
        && !CONDITION_TAINTS.contains(&taint.key.as_str())
        && !tolerations.any(|toleration| tolerates(toleration, taint))
}

/// Whether the toleration matches the taint. An empty effect or key matches all. An operator that
/// is unknown here counts as a match, such as `Lt` and `Gt` of Kubernetes 1.35.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let fits = |expected: &str, found: &str| expected.is_empty() || expected == found;
    fits(&toleration.effect, &taint.effect)
        && fits(&toleration.key, &taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            _ => true,
        }
}

#[cfg(test)]
mod tests;
