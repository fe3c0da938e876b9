//! Everything that the checks before the installation look at, fetched from the API server.

use serde_json::{Value, json};

use super::facts::{Lookup, RBAC, cilium, daemonsets, lookup};
use super::kubectl::{Api, decode, get};
use super::objects::{AgentDaemonSet, AnyObject, ConfigMap};

/// What the checks before the installation look at.
#[derive(Clone, Debug)]
pub struct PreFacts {
    pub namespace: String,
    /// Version of the API server, e.g. `v1.34.1`, or why it cannot be read.
    pub version: Result<String, String>,
    pub namespace_object: Lookup<AnyObject>,
    /// Kinds that the chart creates, and whether the user may create them.
    pub rights: Vec<(&'static str, Result<bool, String>)>,
    /// DaemonSets of this chart or Linkerd's in any namespace.
    pub daemonsets: Result<Vec<AgentDaemonSet>, String>,
    pub cilium: Result<Vec<ConfigMap>, String>,
}

/// Fetches the facts for the checks before the installation.
pub fn fetch_pre(api: &dyn Api, namespace: &str) -> PreFacts {
    let version = get::<Value>(api, "/version").map(|version| {
        let text = version["gitVersion"].as_str();
        text.unwrap_or_default().to_owned()
    });
    PreFacts {
        namespace: namespace.to_owned(),
        version: version.map_err(|error| error.to_string()),
        namespace_object: lookup(api, &format!("/api/v1/namespaces/{namespace}")),
        rights: CREATED.iter().map(|right| (right.0, may_create(api, namespace, right))).collect(),
        daemonsets: daemonsets(api),
        cilium: cilium(api),
    }
}

/// Kinds that the chart creates: kind, API group, resource, and whether it is namespaced.
type Right = (&'static str, &'static str, &'static str, bool);

const CREATED: [Right; 8] = [
    ("Namespaces", "", "namespaces", false),
    ("ClusterRoles", RBAC, "clusterroles", false),
    ("ClusterRoleBindings", RBAC, "clusterrolebindings", false),
    ("Roles", RBAC, "roles", true),
    ("RoleBindings", RBAC, "rolebindings", true),
    ("ServiceAccounts", "", "serviceaccounts", true),
    ("ConfigMaps", "", "configmaps", true),
    ("DaemonSets", "apps", "daemonsets", true),
];

fn may_create(
    api: &dyn Api,
    namespace: &str,
    &(_, group, resource, is_namespaced): &Right,
) -> Result<bool, String> {
    const PATH: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let namespace = if is_namespaced { namespace } else { "" };
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "verb": "create", "group": group, "resource": resource, "namespace": namespace,
        }},
    });
    let response = api.post(PATH, &review.to_string()).and_then(|body| decode(PATH, &body));
    let response: Value = response.map_err(|error| error.to_string())?;
    Ok(response["status"]["allowed"] == true)
}
