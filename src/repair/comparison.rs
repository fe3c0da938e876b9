//! The result of [`super::compare`], which `linkerd cni compare` reads. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a comparison of a node's pods found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Number of pods whose packets all go where they would go.
    pub equal: usize,
    /// The packets that would go elsewhere, by `namespace/name` of the pod.
    pub differ: BTreeMap<String, Vec<String>>,
    /// Why a pod cannot be compared, by its name, or the pods of a node, by the node's name.
    pub unknown: BTreeMap<String, String>,
}
