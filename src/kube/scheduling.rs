//! The fields of DaemonSets and Nodes that decide where a DaemonSet runs.
//!
//! As in [`super::types`], `null` stands for a field that is not there.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::types::{Metadata, given};

#[derive(Clone, Debug, Deserialize)]
pub struct DaemonSet {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "given")]
    pub spec: DaemonSetSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    #[serde(deserialize_with = "given")]
    pub template: PodTemplate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    #[serde(deserialize_with = "given")]
    pub spec: Placement,
}

/// The fields of a pod's spec that choose its node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    #[serde(deserialize_with = "given")]
    pub node_name: String,
    #[serde(deserialize_with = "given")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "given")]
    pub affinity: Affinity,
    #[serde(deserialize_with = "given")]
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    #[serde(deserialize_with = "given")]
    pub node_affinity: NodeAffinity,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    #[serde(deserialize_with = "given")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    /// About the node's labels.
    #[serde(deserialize_with = "given")]
    pub match_expressions: Vec<Requirement>,
    /// About the node's fields, of which Kubernetes knows `metadata.name`.
    #[serde(deserialize_with = "given")]
    pub match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Requirement {
    pub key: String,
    pub operator: String,
    #[serde(deserialize_with = "given")]
    pub values: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Toleration {
    #[serde(deserialize_with = "given")]
    pub key: String,
    #[serde(deserialize_with = "given")]
    pub operator: String,
    #[serde(deserialize_with = "given")]
    pub value: String,
    #[serde(deserialize_with = "given")]
    pub effect: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    pub metadata: Metadata,
    #[serde(default, deserialize_with = "given")]
    pub spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    #[serde(deserialize_with = "given")]
    pub taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    #[serde(deserialize_with = "given")]
    pub value: String,
    pub effect: String,
}
