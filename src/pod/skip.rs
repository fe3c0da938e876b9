//! Decides which pods are skipped by name or by annotations, without a look at their containers. Pure.

use std::collections::BTreeMap;

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
        /// The annotation `linkerd.io/inject` is `disabled`, and no annotation is that of a proxy.
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
    if is_of_a_proxy(annotations) {
        return None;
    }
    let is_disabled = is_disabled(annotations);
    Some(if is_disabled { SkipReason::InjectionDisabled } else { SkipReason::NoProxyAnnotation })
}

pub fn runtime_annotations(config: &Object) -> Option<Annotations> {
    let runtime: Object = serde_json::from_str(config.non_null("runtimeConfig")?.get()).ok()?;
    let annotations: BTreeMap<String, String> =
        serde_json::from_str(runtime.non_null(ANNOTATIONS_CAPABILITY)?.get()).ok()?;
    Some(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_runtime(annotations: &str) -> Option<Annotations> {
        let text = format!(r#"{{"runtimeConfig":{{"{ANNOTATIONS_CAPABILITY}":{annotations}}}}}"#);
        runtime_annotations(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn a_pod_without_an_annotation_that_only_pods_with_a_proxy_have_is_skipped() {
        let none = Some(SkipReason::NoProxyAnnotation);
        let disabled = Some(SkipReason::InjectionDisabled);
        // Keys without a prefix are those of `linkerd.io`.
        for (annotations, wanted) in [
            ("{}", none),
            (r#"{"kubernetes.io/config.source":"api"}"#, none),
            (r#"{"inject":"disabled"}"#, disabled),
            (r#"{"notlinkerd.io/inject":"enabled"}"#, none),
            (r#"{"inject":"enabled"}"#, none),
            // The injector writes it on pods that it does not inject, from their ports or the namespace.
            (r#"{"config.linkerd.io/opaque-ports":"3306"}"#, none),
            (r#"{"config.linkerd.io/opaque-ports":"3306","inject":"disabled"}"#, disabled),
            // On host-network pods, and where the injector was not called.
            (r#"{"config.linkerd.io/opaque-ports":"3306","inject":"enabled"}"#, none),
            (r#"{"inject":"disabled","proxy-version":"x"}"#, None),
            (r#"{"inject":"disabled","created-by":"linkerd/helm v1.7.0"}"#, disabled),
            (
                r#"{"inject":"disabled","created-by":"linkerd/cli v1","checksum/config":"x"}"#,
                disabled,
            ),
            // Charts set `created-by` from their value `cliVersion`, which may be any text.
            (r#"{"inject":"disabled","created-by":"foo"}"#, disabled),
            (r#"{"inject":"disabled","created-by":"linkerd/proxy-injector edge-1"}"#, None),
            (r#"{"inject":"disabled","created-by":"linkerd/cli v1","proxy-version":"x"}"#, None),
            (r#"{"inject":"disabled","config.linkerd.io/proxy-uid":"1"}"#, disabled),
            (r#"{"inject":"enabled","created-by":"linkerd/helm v1"}"#, none),
            (r#"{"created-by":"linkerd/cli v1"}"#, none),
            (r#"{"created-by":"linkerd/helm v1"}"#, none),
            (r#"{"created-by":"linkerd/proxy-injector edge-1"}"#, None),
            (r#"{"created-by":"linkerd/cli v1","proxy-version":"x"}"#, None),
            (r#"{"proxy-version":"x"}"#, None),
            (r#"{"trust-root-sha256":"x"}"#, None),
            (r#"{"inject":"disabled","trust-root-sha256":"x"}"#, None),
            (r#"{"config.linkerd.io/skip-inbound-ports":"1"}"#, none),
            (r#"{"config.linkerd.io/proxy-cpu-request":"1"}"#, none),
            ("null", None),
            ("[]", None),
            (r#"{"a":1}"#, None),
        ] {
            let mut annotations = annotations.to_owned();
            for key in ["inject", "created-by", "proxy-version", "trust-root-sha256"] {
                annotations =
                    annotations.replace(&format!("\"{key}\":"), &format!("\"linkerd.io/{key}\":"));
            }
            let got = from_runtime(&annotations).as_ref().and_then(skipped_by_annotations);
            assert_eq!(got, wanted, "{annotations:?}");
        }
    }

    #[test]
    fn the_agents_pod_and_pods_of_excluded_namespaces_are_skipped_by_name() {
        let filter = |agent_namespace: &str, agent_daemonset: &str| PodFilter {
            agent_namespace: agent_namespace.to_owned(),
            agent_daemonset: agent_daemonset.to_owned(),
            exclude_namespaces: vec!["kube-system".to_owned()],
        };
        let usual = filter("cni", "linkerd-cni");
        let renamed = filter("mesh", "mesh-cni");
        let own = Some(SkipReason::AgentPod);
        for (filter, namespace, name, wanted) in [
            (&usual, "kube-system", "any", Some(SkipReason::ExcludedNamespace)),
            (&usual, "cni", "linkerd-cni-x7x4z", own),
            (&usual, "cni", "web", None),
            (&usual, "cni", "linkerd-cni", None),
            (&usual, "cni", "linkerd-cni-", None),
            (&usual, "cni", "linkerd-cni-web-6d4cf56db6-x7x4z", None),
            (&usual, "cni", "linkerd-cnix-x7x4z", None),
            (&usual, "ns", "linkerd-cni-x7x4z", None),
            (&usual, "linkerd-cni", "linkerd-cni-x7x4z", None),
            (&usual, "mesh", "mesh-cni-x7x4z", None),
            (&renamed, "mesh", "mesh-cni-x7x4z", own),
            (&renamed, "mesh", "linkerd-cni-x7x4z", None),
        ] {
            let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: "".into() };
            assert_eq!(filter.skip_reason(&pod), wanted, "{filter:?} {namespace}/{name}");
        }
    }
}
