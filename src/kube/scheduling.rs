//! Decides whether a node is in a DaemonSet's scope. Pure.
//!
//! The rules are those of Kubernetes' DaemonSet controller (`NodeShouldRunDaemonPod` in
//! `pkg/controller/daemon`, with the matching of `k8s.io/component-helpers/scheduling/corev1`). The
//! agent must not uninstall by mistake, so there are two differences:
//! - an unknown operator or an invalid value counts as a match;
//! - taints of Kubernetes itself never count, whatever their effect. The controller tolerates most
//!   of them, and the others are removed when the node's condition ends.
//!
//! As in [`super::types`], a `null` field is read as missing.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::types::{Object, null_as_default, objects};

/// Prefix of the taints that Kubernetes adds and removes with the node's conditions.
const CONDITION_TAINT: &str = "node.kubernetes.io/";

/// The terms of the required node affinity. Preferences exclude no node.
const AFFINITY_TERMS: &str =
    "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

pub type DaemonSet = Object<DaemonSetSpec>;

pub type Node = Object<NodeSpec>;

pub fn daemonset_path(namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
}

objects! {
    pub struct DaemonSetSpec {
        pub template: PodTemplate,
    }

    pub struct PodTemplate {
        pub spec: Placement,
    }

    pub struct Placement {
        pub node_name: String,
        pub node_selector: BTreeMap<String, String>,
        pub affinity: Value,
        pub tolerations: Vec<Toleration>,
    }

    pub struct NodeSelectorTerm {
        pub match_expressions: Vec<Requirement>,
        /// Requirements on the node's fields. Kubernetes supports only `metadata.name`.
        pub match_fields: Vec<Requirement>,
    }

    pub struct Requirement {
        pub key: String,
        pub operator: String,
        pub values: Vec<String>,
    }

    /// Lets a pod run on nodes with a matching taint. An empty `key` matches any key with the operator
    /// `Exists`, and an empty `effect` any effect.
    pub struct Toleration {
        pub key: String,
        pub operator: String,
        pub value: String,
        pub effect: String,
    }

    pub struct NodeSpec {
        pub taints: Vec<Taint>,
    }

    pub struct Taint {
        pub key: String,
        pub value: String,
        pub effect: String,
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
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
    // The node has to match one term. Kubernetes rejects an empty list.
    let terms = template.affinity.pointer(AFFINITY_TERMS).cloned().unwrap_or_default();
    let terms: Vec<NodeSelectorTerm> = serde_json::from_value(terms).unwrap_or_default();
    if !terms.is_empty() && terms.iter().all(|term| mismatches(term, node)) {
        return not_selected("the node does not match the required node affinity".into());
    }
    let mut taints = node.spec.taints.iter();
    let taint = taints.find(|taint| repels(taint, template))?;
    let Taint { key, value, effect } = taint;
    Some(Exclusion::Tainted(format!("taint {key}={value}:{effect} is not tolerated")))
}

/// The requirements of a term are ANDed, and a term without requirements matches no node.
fn mismatches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let NodeSelectorTerm { match_expressions, match_fields } = term;
    let label = |key: &String| node.metadata.labels.get(key).map(String::as_str);
    let name = Some(node.metadata.name.as_str());
    let mut names = match_fields.iter().filter(|field| field.key == "metadata.name");
    (match_expressions.is_empty() && match_fields.is_empty())
        || match_expressions.iter().any(|required| fails(required, label(&required.key)))
        || names.any(|required| fails(required, name))
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
    let [bound] = &requirement.values[..] else { return None };
    let bound: i64 = bound.parse().ok()?;
    let Some(found) = found else { return Some(false) };
    Some(found.parse::<i64>().ok()?.cmp(&bound) == side)
}

fn repels(taint: &Taint, template: &Placement) -> bool {
    let mut tolerations = template.tolerations.iter();
    matches!(taint.effect.as_str(), "NoExecute" | "NoSchedule")
        && !taint.key.starts_with(CONDITION_TAINT)
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
