//! Determines whether Multus calls the plugin for a pod. Pure.

use serde_json::Value;

use crate::kube::types::Pod;

/// Name of the NetworkAttachmentDefinition in the chart.
const NETWORK: &str = "linkerd-cni";

/// Returns true if the pod's annotation lists the plugin's network, so that Multus calls the
/// plugin.
pub fn is_attached(pod: &Pod) -> bool {
    let Some(networks) = pod.metadata.annotations.get("k8s.v1.cni.cncf.io/networks") else {
        return false;
    };
    // The annotation is either a JSON list or a comma-separated list of `namespace/name@interface`.
    match serde_json::from_str::<Vec<Value>>(networks) {
        Ok(list) => list.iter().any(|network| network["name"] == NETWORK),
        Err(_) => networks.split(',').any(|network| network_name(network) == NETWORK),
    }
}

/// Returns the name in `namespace/name@interface`. Namespace and interface are optional.
fn network_name(network: &str) -> &str {
    let network = network.trim();
    let path = match network.split_once('@') {
        Some((path, _interface)) => path,
        None => network,
    };
    match path.rsplit_once('/') {
        Some((_namespace, name)) => name,
        None => path,
    }
}
