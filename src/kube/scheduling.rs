//! Decides whether a node is in a DaemonSet's scope.
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

/// JSON pointer to the terms of the required node affinity. Preferred terms are not read, because
/// they exclude no node.
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

    /// Lets a pod run on nodes with a matching taint. An empty `key` matches any key with the
    /// operator `Exists`, and an empty `effect` any effect.
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

/// Why a node is out of a DaemonSet's scope.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    #[error("{0}")]
    NotSelected(String),
    #[error("{0}")]
    Tainted(String),
}

/// Returns why no pod of this template can run on the node; `None` if a pod can or may run there.
pub fn exclusion(template: &Placement, node: &Node) -> Option<Exclusion> {
    if let Some(reason) = selector_mismatch(template, node) {
        return Some(Exclusion::NotSelected(reason));
    }
    for taint in &node.spec.taints {
        if is_repelled(template, taint) {
            let Taint { key, value, effect } = taint;
            let reason = format!("taint {key}={value}:{effect} is not tolerated");
            return Some(Exclusion::Tainted(reason));
        }
    }
    None
}

/// Returns why node name, node selector or node affinity of the template exclude the node.
fn selector_mismatch(template: &Placement, node: &Node) -> Option<String> {
    let name = &template.node_name;
    if !name.is_empty() && *name != node.metadata.name {
        return Some(format!("the DaemonSet runs on node {name} only"));
    }
    for (key, value) in &template.node_selector {
        if node.metadata.labels.get(key) != Some(value) {
            return Some(format!("the node lacks the label {key}={value}"));
        }
    }
    // The node has to match at least one term. No terms means that the template has no required
    // affinity, because Kubernetes rejects an affinity with an empty list.
    let terms = template.affinity.pointer(AFFINITY_TERMS).cloned().unwrap_or_default();
    let terms: Vec<NodeSelectorTerm> = serde_json::from_value(terms).unwrap_or_default();
    if !terms.is_empty() && terms.iter().all(|term| is_mismatch(term, node)) {
        return Some("the node does not match the required node affinity".into());
    }
    None
}

/// Whether the node certainly does not match the term. The requirements of a term are ANDed, and a
/// term without requirements matches no node.
fn is_mismatch(term: &NodeSelectorTerm, node: &Node) -> bool {
    let NodeSelectorTerm { match_expressions, match_fields } = term;
    if match_expressions.is_empty() && match_fields.is_empty() {
        return true;
    }
    for required in match_expressions {
        let label = node.metadata.labels.get(&required.key);
        if is_unmet(required, label.map(String::as_str)) {
            return true;
        }
    }
    for required in match_fields {
        if required.key == "metadata.name" && is_unmet(required, Some(&node.metadata.name)) {
            return true;
        }
    }
    false
}

/// Whether `value`, the value of the label or field, certainly does not meet the requirement.
fn is_unmet(requirement: &Requirement, value: Option<&str>) -> bool {
    let Requirement { operator, values, .. } = requirement;
    let is_listed = values.iter().any(|listed| Some(listed.as_str()) == value);
    match operator.as_str() {
        "In" => !values.is_empty() && !is_listed,
        "NotIn" => is_listed,
        "Exists" => value.is_none(),
        "DoesNotExist" => value.is_some(),
        "Gt" => is_beyond_bound(requirement, value, Ordering::Greater) == Some(false),
        "Lt" => is_beyond_bound(requirement, value, Ordering::Less) == Some(false),
        _ => false,
    }
}

/// Whether the number `value` is on this `side` of the requirement's bound. `None` if the number or
/// the bound is not a whole number. A missing label is on neither side.
fn is_beyond_bound(requirement: &Requirement, value: Option<&str>, side: Ordering) -> Option<bool> {
    // Kubernetes rejects a bound that is not exactly one value.
    if requirement.values.len() != 1 {
        return None;
    }
    let bound: i64 = requirement.values[0].parse().ok()?;
    let Some(value) = value else {
        return Some(false);
    };
    let number: i64 = value.parse().ok()?;
    Some(number.cmp(&bound) == side)
}

/// Whether the taint certainly keeps pods of this template off the node.
fn is_repelled(template: &Placement, taint: &Taint) -> bool {
    matches!(taint.effect.as_str(), "NoExecute" | "NoSchedule")
        && !taint.key.starts_with(CONDITION_TAINT)
        && !template.tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

/// Whether the toleration matches the taint. An empty effect or key matches all. An operator that
/// is unknown here counts as a match, such as `Lt` and `Gt` of Kubernetes 1.35.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    if !toleration.effect.is_empty() && toleration.effect != taint.effect {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
