//! URL paths of the API requests for pods. Pure.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::stranded_pod::StrandedPod;

/// Path of one pod.
pub fn pod_path(pod: &StrandedPod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// Path of the list of the node's pods in all namespaces.
///
/// The pods are not selected by the label that the proxy injector sets, as upstream's controller
/// does: the plugin also redirects a pod whose author added the proxy. It decides by the containers
/// and annotations, for which the API has no selector.
///
/// `resourceVersion=0` accepts any version, so that every supported API server reads
/// from its watch cache, which has an index by node. Without `resourceVersion=0`,
/// API servers before 1.31 read all pods of the cluster from etcd. Later API servers do so if
/// the request has a `limit`.
pub fn list_path(node: &str) -> String {
    format!("/api/v1/pods?{}&resourceVersion=0", selector(node))
}

/// Path of a watch of the node's pods. The watch starts at `resource_version`, and
/// the API server ends it after `time`, in whole seconds.
pub fn watch_path(node: &str, resource_version: &str, time: Duration) -> String {
    format!(
        "/api/v1/pods?{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={}",
        selector(node),
        time.as_secs(),
        encode(resource_version)
    )
}

/// Query that selects the pods of the node.
fn selector(node: &str) -> String {
    format!("fieldSelector={}", encode(&format!("spec.nodeName={node}")))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_and_watch_select_all_pods_of_the_node() {
        let selector = "fieldSelector=spec%2EnodeName%3Dnode%2D1";
        let list = format!("/api/v1/pods?{selector}&resourceVersion=0");
        assert_eq!(list_path("node-1"), list);
        let watch = format!(
            "/api/v1/pods?{selector}&watch=true&allowWatchBookmarks=true&timeoutSeconds=301\
             &resourceVersion=42"
        );
        let time = Duration::from_secs(301);
        assert_eq!(watch_path("node-1", "42", time), watch);
    }
}
