//! Versions of what the node runs, as the node reports them.

use serde_json::{Value, json};

use super::families::setting;
use super::kubectl::list;

pub fn of_node() -> Value {
    let nodes = list("nodes");
    let info = &nodes[0]["status"]["nodeInfo"];
    json!({
        "nodes": nodes.len(), "kubernetes": info["kubeletVersion"],
        "runtime": info["containerRuntimeVersion"],
        "kernel": info["kernelVersion"], "system": info["osImage"],
        "network": setting("CLUSTER_NETWORK"), "families": setting("CLUSTER_FAMILIES"),
        "proxy_mode": setting("CLUSTER_PROXY_MODE"),
    })
}
