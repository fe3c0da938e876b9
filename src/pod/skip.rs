//! Decides which pods the plugin skips because of their name or annotations, without looking at
//! their containers. Pure.

use serde::{Deserialize, Serialize};

use super::annotation::{Annotations, has_proxy_annotation, is_disabled};
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::pod::reasons;

/// CNI capability through which a runtime passes the pod's annotations to the plugin, if the plugin
/// entry declares it (containerd since 1.5, CRI-O since 1.29).
const ANNOTATIONS_CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

reasons! {
    /// Why the plugin skips a pod.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum SkipReason {
        /// `CNI_ARGS` contain no pod, so the caller is not Kubernetes.
        NoPod "no_pod" "skipped: no pod in CNI_ARGS"
        ExcludedNamespace "excluded_namespace" "skipped: excluded namespace"
        AgentPod "agent_pod" "skipped: agent pod"
        NoProxyAnnotation "no_proxy_annotation" "skipped: not meshed (no annotation of a proxy)"
        /// `linkerd.io/inject` is `disabled`, and the pod has no annotation of a proxy.
        InjectionDisabled "injection_disabled" "skipped: not meshed (linkerd.io/inject: disabled)"
        NoProxy "no_proxy" "skipped: no linkerd-proxy container"
        /// The init container `linkerd-init` installs the redirect rules.
        ProxyInit "proxy_init" "skipped: linkerd-init container"
    }
}

/// The settings of the plugin entry that skip pods by namespace or name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// Pods in these namespaces are never redirected.
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the agent's DaemonSet. The agent's pods are skipped, because they install the
    /// credential that an API request needs.
    pub agent_namespace: String,
    pub agent_daemonset: String,
}

impl PodFilter {
    /// Returns why the pod is skipped by its namespace and name. `None`: the pod may be meshed.
    pub fn skip_reason(&self, pod: &PodRef) -> Option<SkipReason> {
        if self.exclude_namespaces.contains(&pod.namespace) {
            return Some(SkipReason::ExcludedNamespace);
        }
        if self.is_agent_pod(pod, &self.agent_namespace) {
            return Some(SkipReason::AgentPod);
        }
        None
    }

    /// Returns true if the name of the pod is one that the agent's DaemonSet in `namespace`
    /// generates. A DaemonSet appends a dash and a suffix without a dash. A Deployment
    /// `linkerd-cni-web` does not match, because the names of its pods contain more dashes.
    pub fn is_agent_pod(&self, pod: &PodRef, namespace: &str) -> bool {
        if pod.namespace != namespace {
            return false;
        }
        let Some(rest) = pod.name.strip_prefix(&self.agent_daemonset) else { return false };
        let Some(suffix) = rest.strip_prefix('-') else { return false };
        !suffix.is_empty() && !suffix.contains('-')
    }
}

/// Returns why a pod with these annotations is skipped if its containers are unknown. `None`: the
/// pod may be meshed.
pub fn skipped_by_annotations(annotations: &Annotations) -> Option<SkipReason> {
    if has_proxy_annotation(annotations) {
        None
    } else if is_disabled(annotations) {
        Some(SkipReason::InjectionDisabled)
    } else {
        Some(SkipReason::NoProxyAnnotation)
    }
}

/// Returns the pod's annotations from the network config. `None`: the runtime does not pass them.
pub fn runtime_annotations(config: &Object) -> Option<Annotations> {
    let runtime_config = config.non_null("runtimeConfig")?;
    let capabilities: Object = serde_json::from_str(runtime_config.get()).ok()?;
    let annotations = capabilities.non_null(ANNOTATIONS_CAPABILITY)?;
    serde_json::from_str(annotations.get()).ok()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};
    use testkit::table::rows_of;

    use super::*;

    const TABLES: &str = include_str!("tests.yaml");

    /// A row of `annotations` in `tests.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct AnnotationsRow {
        passed: Value,
        skipped: Option<String>,
    }

    /// A row of `names` in `tests.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NamesRow {
        agent: Option<String>,
        pod: String,
        skipped: Option<String>,
    }

    #[test]
    fn pods_without_a_proxy_annotation_are_skipped() {
        for (name, row) in rows_of::<AnnotationsRow>(TABLES, "annotations") {
            let text = json!({"runtimeConfig": {ANNOTATIONS_CAPABILITY: row.passed}}).to_string();
            let annotations = runtime_annotations(&serde_json::from_str(&text).unwrap());
            let found = annotations.as_ref().and_then(skipped_by_annotations);
            assert_eq!(json!(found), json!(row.skipped), "{name}");
        }
    }

    #[test]
    fn agent_pods_and_pods_in_excluded_namespaces_are_skipped_by_name() {
        for (row_name, row) in rows_of::<NamesRow>(TABLES, "names") {
            let agent = row.agent.as_deref().unwrap_or("cni/linkerd-cni");
            let (agent_namespace, agent_daemonset) = agent.split_once('/').unwrap();
            let filter = PodFilter {
                exclude_namespaces: vec!["kube-system".to_owned()],
                agent_namespace: agent_namespace.to_owned(),
                agent_daemonset: agent_daemonset.to_owned(),
            };
            let (namespace, name) = row.pod.split_once('/').unwrap();
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let pod = PodRef { namespace, name, uid: String::new() };
            assert_eq!(json!(filter.skip_reason(&pod)), json!(row.skipped), "{row_name}");
        }
    }
}
