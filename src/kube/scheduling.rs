//! The fields of DaemonSets and Nodes that decide on which nodes a DaemonSet runs.
//!
//! As in [`super::types`], a `null` field is read as missing.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::types::{Object, null_as_default};

/// A DaemonSet, reduced to its pod template.
pub type DaemonSet = Object<DaemonSetSpec>;

/// The `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub template: PodTemplate,
}

/// The template from which a DaemonSet makes its pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    #[serde(deserialize_with = "null_as_default")]
    pub spec: Placement,
}

/// The fields of a pod's spec that choose its node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    #[serde(deserialize_with = "null_as_default")]
    pub node_name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_as_default")]
    pub affinity: Affinity,
    #[serde(deserialize_with = "null_as_default")]
    pub tolerations: Vec<Toleration>,
}

/// A pod's affinity, reduced to that for nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    #[serde(deserialize_with = "null_as_default")]
    pub node_affinity: NodeAffinity,
}

/// Affinity for nodes, reduced to the required part. Preferences exclude no node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// Selects the nodes that match at least one term.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    #[serde(deserialize_with = "null_as_default")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Selects the nodes that meet all requirements.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// Requirements on the node's labels.
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<Requirement>,
    /// Requirements on the node's fields. Kubernetes supports only `metadata.name`.
    #[serde(deserialize_with = "null_as_default")]
    pub match_fields: Vec<Requirement>,
}

/// A requirement on one label or field of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Requirement {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<String>,
}

/// Lets a pod run on nodes with a matching taint. An empty `key` matches any key with the operator
/// `Exists`, and an empty `effect` any effect.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    #[serde(deserialize_with = "null_as_default")]
    pub key: String,
    #[serde(deserialize_with = "null_as_default")]
    pub operator: String,
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    #[serde(deserialize_with = "null_as_default")]
    pub effect: String,
}

/// A node, reduced to its metadata and taints.
pub type Node = Object<NodeSpec>;

/// The `spec` of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
}

/// A taint: only pods with a matching toleration may run on the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    pub effect: String,
}
