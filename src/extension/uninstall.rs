//! `linkerd cni uninstall`: a manifest of the chart's objects in the cluster for `kubectl delete`,
//! whichever flags of `scripts/install-cni` or `linkerd install-cni` created them.

use std::fmt::Write as _;

use serde_json::json;

use super::api::{Api, Error as RequestError, list};
use super::objects::{AnyObject, RELEASE, RELEASE_NAMESPACE};

/// Label of each object of the chart, also of Linkerd's.
const LABEL: &str = "linkerd.io/cni-resource=true";
const LABEL_SELECTOR: &str = "labelSelector=linkerd.io%2Fcni-resource%3Dtrue";

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const PROMETHEUS: &str = "monitoring.coreos.com/v1";

/// Kinds of the chart's objects: API version, kind, and resource. The DaemonSet comes first, so that
/// the agents see that it is deleted while they still have their rights.
pub const KINDS: [(&str, &str, &str); 15] = [
    ("apps/v1", "DaemonSet", "daemonsets"),
    (ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    (ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    (PROMETHEUS, "PodMonitor", "podmonitors"),
    (PROMETHEUS, "PrometheusRule", "prometheusrules"),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ("v1", "ResourceQuota", "resourcequotas"),
    ("v1", "ConfigMap", "configmaps"),
    (RBAC, "RoleBinding", "rolebindings"),
    (RBAC, "Role", "roles"),
    (RBAC, "ClusterRoleBinding", "clusterrolebindings"),
    (RBAC, "ClusterRole", "clusterroles"),
    ("v1", "ServiceAccount", "serviceaccounts"),
    ("v1", "Namespace", "namespaces"),
];

/// Why no manifest is printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no object with the label {LABEL} exists in the cluster, so there is nothing to delete; check --context"
    )]
    Nothing,
    #[error(
        "{object} belongs to the Helm release {release} in namespace {namespace}; run helm uninstall \
         {release} -n {namespace}"
    )]
    Helm { object: String, release: String, namespace: String },
    #[error(
        "cannot list {resource} of all namespaces: {why}. Without this right, delete the output of \
         scripts/install-cni with the flags of the installation"
    )]
    List { resource: &'static str, why: RequestError },
}

/// Returns the manifest of the objects in the cluster.
///
/// # Errors
/// If there is no object, an object belongs to a Helm release, or a list fails: a part of the objects
/// would leave the others behind.
pub fn uninstall(api: &dyn Api) -> Result<String, Error> {
    let mut text = String::new();
    for (version, kind, resource) in KINDS {
        let group = if version == "v1" { "/api" } else { "/apis" };
        let path = format!("{group}/{version}/{resource}");
        let found: Vec<AnyObject> = match list(api, &path, LABEL_SELECTOR) {
            // The cluster does not have this kind.
            Err(error) if error.is_not_found() => continue,
            found => found.map_err(|why| Error::List { resource, why })?,
        };
        for object in found {
            refuse_release(kind, &object)?;
            // Writing to a String cannot fail.
            let _ = write!(text, "{}", manifest(version, kind, &object));
        }
    }
    if text.is_empty() { Err(Error::Nothing) } else { Ok(text) }
}

/// Fails for an object of a Helm release, which would stay behind without its objects.
fn refuse_release(kind: &str, object: &AnyObject) -> Result<(), Error> {
    let metadata = &object.metadata;
    let Some(release) = metadata.annotations.get(RELEASE) else {
        return Ok(());
    };
    let namespace = metadata.annotations.get(RELEASE_NAMESPACE);
    Err(Error::Helm {
        object: format!("{kind} {}", metadata.name),
        release: release.clone(),
        namespace: namespace.cloned().unwrap_or_default(),
    })
}

/// Returns what kubectl needs for the deletion. A text in JSON is YAML too.
fn manifest(version: &str, kind: &str, object: &AnyObject) -> String {
    let metadata = &object.metadata;
    let namespace = match metadata.namespace.as_str() {
        "" => String::new(),
        namespace => format!("  namespace: {}\n", json!(namespace)),
    };
    let name = json!(metadata.name);
    format!("---\napiVersion: {version}\nkind: {kind}\nmetadata:\n  name: {name}\n{namespace}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::extension::fake::Cluster;

    /// A cluster whose lists are empty, except those in `lists`.
    fn cluster(lists: &[(&str, Value)]) -> Cluster {
        let mut cluster = Cluster(BTreeMap::new());
        for path in ["/apis/apps/v1/daemonsets", "/api/v1/namespaces", "/api/v1/configmaps"] {
            cluster.put(path, json!({"items": []}));
        }
        for (path, list) in lists {
            cluster.put(path, list.clone());
        }
        cluster
    }

    fn daemonset(annotations: Value) -> Value {
        let metadata =
            json!({"name": "linkerd-cni", "namespace": "cni", "annotations": annotations});
        json!({"items": [{"metadata": metadata}]})
    }

    const DAEMONSETS: &str = "/apis/apps/v1/daemonsets";

    #[test]
    fn each_object_with_the_label_is_printed_and_the_namespace_last() {
        let namespaces = json!({"items": [{"metadata": {"name": "a\n---\nkind: Node"}}]});
        let api =
            cluster(&[(DAEMONSETS, daemonset(json!({}))), ("/api/v1/namespaces", namespaces)]);
        let wanted = "---\napiVersion: apps/v1\nkind: DaemonSet\nmetadata:\n  name: \"linkerd-cni\"\n  \
                      namespace: \"cni\"\n---\napiVersion: v1\nkind: Namespace\nmetadata:\n  \
                      name: \"a\\n---\\nkind: Node\"\n";
        assert_eq!(uninstall(&api).unwrap(), wanted);
    }

    #[test]
    fn objects_of_a_helm_release_are_left_to_helm() {
        let release = json!({RELEASE: "cni", RELEASE_NAMESPACE: "net"});
        let error =
            uninstall(&cluster(&[(DAEMONSETS, daemonset(release))])).unwrap_err().to_string();
        let wanted = "DaemonSet linkerd-cni belongs to the Helm release cni in namespace net; run helm \
                      uninstall cni -n net";
        assert_eq!(error, wanted);
    }

    #[test]
    fn without_objects_or_without_the_right_to_list_them_nothing_is_printed() {
        assert!(matches!(uninstall(&cluster(&[])), Err(Error::Nothing)));
        let denied = [(DAEMONSETS, daemonset(json!({}))), ("/api/v1/configmaps", json!(403))];
        let error = uninstall(&cluster(&denied)).unwrap_err().to_string();
        assert!(error.starts_with("cannot list configmaps of all namespaces: "), "{error}");
    }
}
