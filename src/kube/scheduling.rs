//! The fields of DaemonSets and Nodes that decide on which nodes a DaemonSet runs.
//!
//! As in [`super::types`], a `null` field is read as missing.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::types::{Object, null_as_default, objects};

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

    /// The fields of a pod's spec that choose its node.
    pub struct Placement {
        pub node_name: String,
        pub node_selector: BTreeMap<String, String>,
        pub affinity: Affinity,
        pub tolerations: Vec<Toleration>,
    }

    pub struct Affinity {
        pub node_affinity: NodeAffinity,
    }

    /// Affinity for nodes, reduced to the required part. Preferences exclude no node.
    pub struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        pub required: Option<NodeSelector>,
    }

    /// The node has to match one term.
    pub struct NodeSelector {
        pub node_selector_terms: Vec<NodeSelectorTerm>,
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
