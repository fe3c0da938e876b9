//! What can be decided about a pod without asking the API server. Pure.

use std::collections::BTreeMap;

use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::{Annotations, Config, Detection};

/// What a runtime calls the annotations that it hands over, when the plugin's entry in
/// the conflist declares the capability (containerd 1.5, CRI-O 1.29).
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
const INJECT: &str = "linkerd.io/inject";
/// What wrote the pod, or its template: a program and its version.
const CREATED_BY: &str = "linkerd.io/created-by";
const INJECTOR: &str = "linkerd/proxy-injector";

/// Why a pod is none of ours, in words for logs; `None`: ask the API server.
pub fn passes(
    pod: &PodRef,
    config: &Config,
    annotations: Option<&Annotations>,
) -> Option<&'static str> {
    if config.exclude_namespaces.contains(&pod.namespace) {
        return Some("its namespace is excluded");
    }
    if is_agent(pod, config) {
        return Some("it is the agent's own pod");
    }
    if config.detection == Detection::Api {
        return None;
    }
    (!may_be_meshed(annotations?)).then_some("it has no annotation of Linkerd")
}

/// Whether a DaemonSet of this name made the pod. Pods of a Deployment whose name only
/// starts like the DaemonSet's have one more part in their names.
fn is_agent(pod: &PodRef, config: &Config) -> bool {
    let generated = pod
        .name
        .strip_prefix(&config.agent_daemonset)
        .and_then(|rest| rest.strip_prefix('-'));
    pod.namespace == config.agent_namespace
        && generated.is_some_and(|part| !part.is_empty() && !part.contains('-'))
}

/// Whether the pod has an annotation that a pod with a proxy has.
///
/// The injector, `linkerd inject --manual` and Linkerd's own charts leave several on each
/// pod. Any of Linkerd's counts, so that a pod of another version's injector rather costs
/// a request than starts bare, with two exceptions in pods that say `inject: disabled`:
/// that annotation itself, and a `created-by` that does not name the injector. The
/// DaemonSet's pods of upstream's chart and of ours have these two and no other.
/// `created-by` alone is no proof: charts write it on pods with a proxy as well.
fn may_be_meshed(annotations: &Annotations) -> bool {
    let is_disabled = annotations
        .get(INJECT)
        .is_some_and(|value| value == "disabled");
    annotations.iter().any(|(key, value)| match key.as_str() {
        INJECT => !is_disabled,
        CREATED_BY => !is_disabled || value.starts_with(INJECTOR),
        key => is_linkerds(key),
    })
}

fn is_linkerds(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "linkerd.io" || domain.ends_with(".linkerd.io")
}

/// The pod's annotations, if the runtime hands them over.
pub fn annotations(config: &Object) -> Option<Annotations> {
    let runtime: Object = serde_json::from_str(config.given("runtimeConfig")?.get()).ok()?;
    let annotations: BTreeMap<String, String> =
        serde_json::from_str(runtime.given(ANNOTATIONS)?.get()).ok()?;
    Some(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(linkerd: &str) -> Config {
        let text = format!(r#"{{"linkerd":{linkerd}}}"#);
        Config::read(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn handed_over(annotations: &str) -> Option<Annotations> {
        let text = format!(r#"{{"runtimeConfig":{{"{ANNOTATIONS}":{annotations}}}}}"#);
        super::annotations(&serde_json::from_str(&text).unwrap())
    }

    fn pod(namespace: &str, name: &str) -> PodRef {
        PodRef {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn a_pod_without_any_annotation_of_linkerd_passes() {
        let passing = Some("it has no annotation of Linkerd");
        let cases = [
            ("{}", passing),
            (r#"{"kubernetes.io/config.source":"api"}"#, passing),
            (r#"{"linkerd.io/inject":"disabled"}"#, passing),
            (r#"{"notlinkerd.io/inject":"enabled"}"#, passing),
            (r#"{"linkerd.io/inject":"enabled"}"#, None),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/proxy-version":"x"}"#,
                None,
            ),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"linkerd/helm v1.7.0"}"#,
                passing,
            ),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"linkerd/cli v1","checksum/config":"x"}"#,
                passing,
            ),
            (
                // `cliVersion` of the chart may be any text.
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"foo"}"#,
                passing,
            ),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"linkerd/proxy-injector edge-1"}"#,
                None,
            ),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"linkerd/cli v1","linkerd.io/proxy-version":"x"}"#,
                None,
            ),
            (
                r#"{"linkerd.io/inject":"disabled","linkerd.io/created-by":"linkerd/cli v1","config.linkerd.io/proxy-uid":"1"}"#,
                None,
            ),
            (
                r#"{"linkerd.io/inject":"enabled","linkerd.io/created-by":"linkerd/helm v1"}"#,
                None,
            ),
            (r#"{"linkerd.io/created-by":"linkerd/cli v1"}"#, None),
            (r#"{"linkerd.io/created-by":"linkerd/helm v1"}"#, None),
            (
                r#"{"linkerd.io/created-by":"linkerd/proxy-injector edge-1"}"#,
                None,
            ),
            (r#"{"linkerd.io/proxy-version":"x"}"#, None),
            (r#"{"config.linkerd.io/skip-inbound-ports":"1"}"#, None),
            ("null", None),
            ("[]", None),
            (r#"{"a":1}"#, None),
        ];
        for (annotations, wanted) in cases {
            let annotations = handed_over(annotations);
            let got = passes(&pod("ns", "web"), &config("{}"), annotations.as_ref());
            assert_eq!(got, wanted, "{annotations:?}");
        }
    }

    #[test]
    fn a_runtime_that_hands_over_nothing_leaves_it_to_the_api_server() {
        assert_eq!(passes(&pod("ns", "web"), &config("{}"), None), None);
        let api = config(r#"{"pod-detection":"api"}"#);
        let none = Annotations::new();
        assert_eq!(passes(&pod("ns", "web"), &api, Some(&none)), None);
    }

    #[test]
    fn the_agents_own_pod_is_told_by_the_namespace_and_the_daemonset_of_the_plugin_entry() {
        let own = Some("it is the agent's own pod");
        let usual = ("linkerd-cni", "linkerd-cni-x7x4z");
        let renamed = ("mesh", "mesh-cni-x7x4z");
        for (linkerd, (namespace, name), wanted) in [
            ("{}", usual, own),
            ("{}", renamed, None),
            (
                r#"{"agent-namespace":"mesh","agent-daemonset":"mesh-cni"}"#,
                renamed,
                own,
            ),
            (
                r#"{"agent-namespace":"mesh","agent-daemonset":"mesh-cni"}"#,
                ("mesh", "linkerd-cni-x7x4z"),
                None,
            ),
        ] {
            let got = passes(&pod(namespace, name), &config(linkerd), None);
            assert_eq!(got, wanted, "{linkerd} {namespace}/{name}");
        }
    }

    #[test]
    fn the_agents_own_pod_and_excluded_namespaces_pass_whatever_they_are() {
        let config = config(
            r#"{"exclude-namespaces":["kube-system"],"agent-namespace":"cni","pod-detection":"api"}"#,
        );
        let cases = [
            ("kube-system", "any", Some("its namespace is excluded")),
            (
                "cni",
                "linkerd-cni-x7x4z",
                Some("it is the agent's own pod"),
            ),
            ("cni", "web", None),
            ("cni", "linkerd-cni", None),
            ("cni", "linkerd-cni-", None),
            ("cni", "linkerd-cni-web-6d4cf56db6-x7x4z", None),
            ("cni", "linkerd-cnix-x7x4z", None),
            ("ns", "linkerd-cni-x7x4z", None),
            ("linkerd-cni", "linkerd-cni-x7x4z", None),
        ];
        for (namespace, name, wanted) in cases {
            let annotations = handed_over(r#"{"linkerd.io/proxy-version":"x"}"#);
            let got = passes(&pod(namespace, name), &config, annotations.as_ref());
            assert_eq!(got, wanted, "{namespace}/{name}");
        }
    }
}
