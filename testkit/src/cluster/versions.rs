//! Versions of what the node runs, as the node reports them.

use serde_json::{Value, json};

use super::families::setting;
use super::pods::kubectl;

/// Versions and settings of the cluster's node.
pub fn of_node() -> Value {
    let nodes: Value = serde_json::from_str(&kubectl(&["get", "nodes", "-o", "json"])).unwrap();
    let info = &nodes["items"][0]["status"]["nodeInfo"];
    json!({
        "nodes": nodes["items"].as_array().map_or(0, Vec::len),
        "kubernetes": info["kubeletVersion"],
        "runtime": info["containerRuntimeVersion"],
        "kernel": info["kernelVersion"],
        "system": info["osImage"],
        "network": setting("CLUSTER_NETWORK"),
        "families": setting("CLUSTER_FAMILIES"),
        "proxy_mode": setting("CLUSTER_PROXY_MODE"),
    })
}
