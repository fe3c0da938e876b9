//! Decides which pods are skipped by name or by annotations, without a look at their containers. Pure.

use serde::{Deserialize, Serialize};

use super::annotation::{Annotations, is_disabled, is_of_a_proxy};
use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::pod::reasons;

/// Capability with which a runtime passes the pod's annotations to the plugin, if the plugin entry
/// declares it (containerd since 1.5, CRI-O since 1.29).
const ANNOTATIONS_CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

reasons! {
    /// Why the plugin skips a pod.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    pub enum SkipReason {
        /// `CNI_ARGS` name no pod, so the runtime does not act for Kubernetes.
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

/// The settings of the plugin entry that skip pods by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// Pods in these namespaces are never redirected.
    pub exclude_namespaces: Vec<String>,
    /// Namespace of the agent's DaemonSet. Its pods are skipped: they install the credential that an
    /// API request needs.
    pub agent_namespace: String,
    pub agent_daemonset: String,
}

impl PodFilter {
    /// `None`: the pod may be meshed.
    pub fn skip_reason(&self, pod: &PodRef) -> Option<SkipReason> {
        if self.exclude_namespaces.contains(&pod.namespace) {
            return Some(SkipReason::ExcludedNamespace);
        }
        self.is_agent_pod(pod, &self.agent_namespace).then_some(SkipReason::AgentPod)
    }

    /// Whether the pod belongs to the agent's DaemonSet in `namespace`, by its name. The suffix that
    /// a DaemonSet gives its pods has no dash. In the name of a pod of a Deployment `linkerd-cni-web`,
    /// the part after `linkerd-cni-` has dashes.
    pub fn is_agent_pod(&self, pod: &PodRef, namespace: &str) -> bool {
        let suffix =
            pod.name.strip_prefix(&self.agent_daemonset).and_then(|rest| rest.strip_prefix('-'));
        pod.namespace == namespace
            && suffix.is_some_and(|suffix| !suffix.is_empty() && !suffix.contains('-'))
    }
}

/// Returns why a pod is skipped if its containers stay unknown. `None`: the pod may be meshed.
pub fn skipped_by_annotations(annotations: &Annotations) -> Option<SkipReason> {
    match is_disabled(annotations) {
        _ if is_of_a_proxy(annotations) => None,
        true => Some(SkipReason::InjectionDisabled),
        false => Some(SkipReason::NoProxyAnnotation),
    }
}

pub fn runtime_annotations(config: &Object) -> Option<Annotations> {
    let runtime: Object = serde_json::from_str(config.non_null("runtimeConfig")?.get()).ok()?;
    serde_json::from_str(runtime.non_null(ANNOTATIONS_CAPABILITY)?.get()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::chart::yaml;

    use super::*;

    #[test]
    fn a_pod_without_an_annotation_that_only_pods_with_a_proxy_have_is_skipped() {
        for case in yaml(include_str!("tests.yaml"))["annotations"].as_array().unwrap() {
            let text = json!({"runtimeConfig": {ANNOTATIONS_CAPABILITY: case[0]}}).to_string();
            let annotations = runtime_annotations(&serde_json::from_str(&text).unwrap());
            let found = annotations.as_ref().and_then(skipped_by_annotations);
            assert_eq!(json!(found), case[1], "{case}");
        }
    }

    #[test]
    fn the_agents_pod_and_pods_of_excluded_namespaces_are_skipped_by_name() {
        for case in yaml(include_str!("tests.yaml"))["names"].as_array().unwrap() {
            let [agent_namespace, agent_daemonset, namespace, name] =
                [0, 1, 2, 3].map(|index| case[index].as_str().unwrap().to_owned());
            let exclude_namespaces = vec!["kube-system".to_owned()];
            let filter = PodFilter { exclude_namespaces, agent_namespace, agent_daemonset };
            let pod = PodRef { namespace, name, uid: String::new() };
            assert_eq!(json!(filter.skip_reason(&pod)), case[4], "{case}");
        }
    }
}
