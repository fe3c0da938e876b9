//! Decides from a pod's name, annotations and containers whether the plugin redirects the pod, and
//! collects the facts on which the redirect depends. Pure.

pub mod annotation;
pub mod containers;
pub mod facts;
pub mod mesh;
pub mod skip;

use serde::{Deserialize, Serialize};

use skip::SkipReason;

/// Whether the plugin redirects a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision<T> {
    Skip(SkipReason),
    /// The pod is meshed. `T` is what is known for its redirect.
    Redirect(T),
}
