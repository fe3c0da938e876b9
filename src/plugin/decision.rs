//! What can be decided about a pod without asking the API server. Pure.

use std::collections::BTreeMap;

use crate::cni::args::PodRef;
use crate::cni::object::Object;
use crate::config::{Annotations, Config, Detection};

/// What a runtime calls the annotations that it hands over, when the plugin's entry in
/// the conflist declares the capability (containerd 1.5, CRI-O 1.29).
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// Names of the agent's pods start like this: its DaemonSet's name is fixed.
const AGENT_POD: &str = "linkerd-cni-";
const INJECT: &str = "linkerd.io/inject";

/// Why a pod is none of ours, in words for logs; `None`: ask the API server.
pub fn passes(
    pod: &PodRef,
    config: &Config,
    annotations: Option<&Annotations>,
) -> Option<&'static str> {
    if config.exclude_namespaces.contains(&pod.namespace) {
        return Some("its namespace is excluded");
    }
    if pod.namespace == config.agent_namespace && pod.name.starts_with(AGENT_POD) {
        return Some("it is the agent's own pod");
    }
    if config.detection == Detection::Api {
        return None;
    }
    let marked = annotations?
        .iter()
        .any(|(key, value)| is_marker(key, value));
    (!marked).then_some("it has no annotation of Linkerd")
}

/// The injector leaves annotations of its own on each pod. Any annotation of Linkerd's
/// counts, so that a pod of another version's injector is rather asked for once too
/// often than started bare; only `linkerd.io/inject: disabled` says the opposite.
fn is_marker(key: &str, value: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_linkerds = domain == "linkerd.io" || domain.ends_with(".linkerd.io");
    is_linkerds && !(key == INJECT && value == "disabled")
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
            ("ns", "linkerd-cni-x7x4z", None),
        ];
        for (namespace, name, wanted) in cases {
            let annotations = handed_over(r#"{"linkerd.io/proxy-version":"x"}"#);
            let got = passes(&pod(namespace, name), &config, annotations.as_ref());
            assert_eq!(got, wanted, "{namespace}/{name}");
        }
    }
}
