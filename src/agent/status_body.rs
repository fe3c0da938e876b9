//! The body of `/status`, in which the agent reports its state. `linkerd cni` reads it through the
//! API server. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::subject::Subject;

/// The JSON object of `/status`. The agent and `linkerd cni` may have different versions, so a
/// missing key has its default value and an unknown key is ignored. What a missing key would say is
/// unknown: see [`StatusBody::missing_keys`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusBody {
    pub version: String,
    pub ready: bool,
    pub not_ready: Option<String>,
    /// Note that `/ready` adds to a response of 200.
    pub note: Option<String>,
    /// Name of the network config through which the runtime calls the plugin. `None` if it does not
    /// call the plugin.
    pub conflist: Option<String>,
    /// Expiry of the token in the kubeconfig, in seconds since 1970. `None` if this is unknown, or
    /// if the token never expires.
    pub token_expires: Option<u64>,
    /// A text for each file that another program keeps overwriting: the subject, and what to do.
    pub contended: Vec<String>,
    /// State of the node's copy of its pods. `None` if the agent does not watch the pods.
    pub pod_copy: Option<PodCopyStatus>,
    /// What the container runtime has shown of the chain. `None` if the plugin is not chained, or if
    /// the runtime calls it only for some pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,
    /// Problems and warnings of the last pass, by [`Subject::key`].
    pub problems: BTreeMap<String, String>,
    #[serde(flatten)]
    pub calls: PluginCounts,
}

impl StatusBody {
    /// Returns the problem or warning of the last pass about `subject`.
    pub fn problem(&self, subject: &Subject) -> Option<&str> {
        self.problems.get(&subject.key()).map(String::as_str)
    }

    /// Returns the keys that an agent of this version always reports, and that `body` lacks. The
    /// agent that wrote `body` does not report the state of which the key tells, so that its
    /// default says nothing.
    pub fn missing_keys(body: &Value) -> Vec<String> {
        let Value::Object(complete) = json!(StatusBody::default()) else {
            return Vec::new();
        };
        let mut missing = Vec::new();
        for (key, _) in complete {
            if body.get(&key).is_none() {
                missing.push(key);
            }
        }
        missing
    }
}

/// Returns `problems` by [`Subject::key`].
pub fn problems_by_key(problems: BTreeMap<Subject, String>) -> BTreeMap<String, String> {
    problems.into_iter().map(|(subject, why)| (subject.key(), why)).collect()
}

/// What `/status` says about the node's copy of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodCopyStatus {
    /// Number of pods that are published for the plugin.
    pub published: usize,
    /// Whether the plugin waits for a new pod to appear in the copy. It does if the pods were
    /// listed and the watch has not failed twice in a row since.
    pub current: bool,
    /// Why the copy is not current, or why a pod is not published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Number of pods with a path around the proxy, by the label of the reason for the path.
    /// `None`: the agent has another version and does not count them.
    pub bypasses: Option<BTreeMap<String, usize>>,
}

/// What `/status` says about the container runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuntimeStatus {
    pub chain: ChainProof,
    /// Why the chain is not proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Whether the container runtime has shown that it can run the plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChainProof {
    /// The runtime has not started a pod through the chain yet.
    Provisional,
    /// Like [`ChainProof::Provisional`], and the agent would not notice that the runtime cannot run
    /// the plugin.
    Unprovable,
    Proven,
    /// The agent has removed the plugin entry, because the runtime cannot run the plugin.
    Withdrawn,
    /// A value of a later version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What `/status` says about the plugin's calls since the agent started. Counts of zero are left
/// out of the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PluginCounts {
    /// Redirected pods by backend.
    pub redirects: BTreeMap<String, u64>,
    /// Failed calls by CNI error code, without pods that were deleted while they started.
    pub failures: BTreeMap<String, u64>,
    /// Pods redirected by annotations and plugin entry alone, by CNI error code.
    pub degraded: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_another_version_with_unknown_and_missing_keys_is_read() {
        let body: StatusBody = serde_json::from_str(r#"{"ready":true,"later":[1]}"#).unwrap();
        assert_eq!(body, StatusBody { ready: true, ..StatusBody::default() });
    }

    #[test]
    fn keys_that_an_agent_of_another_version_does_not_report_are_missing() {
        let complete = json!(StatusBody::default());
        assert_eq!(StatusBody::missing_keys(&complete), [""; 0]);
        for key in ["contended", "problems", "failures"] {
            let mut body = complete.clone();
            body.as_object_mut().unwrap().remove(key);
            assert_eq!(StatusBody::missing_keys(&body), [key]);
        }
    }

    /// `linkerd cni` may be of another version than the agent.
    #[test]
    fn keys_of_problems_do_not_depend_on_log_texts() {
        let text = r#"{"problems":{"networkConfig":"a","kubeconfigToken":"b","tokenRequest":"c",
            "mounts":"d","/etc/cni/net.d/x.conflist":"e"}}"#;
        let body: StatusBody = serde_json::from_str(text).unwrap();
        for (subject, why) in [
            (Subject::NetworkConfig, Some("a")),
            (Subject::KubeconfigToken, Some("b")),
            (Subject::TokenRequest, Some("c")),
            (Subject::Mounts, Some("d")),
            (Subject::File("/etc/cni/net.d/x.conflist".into()), Some("e")),
            (Subject::Kubeconfig, None),
        ] {
            assert_eq!(body.problem(&subject), why, "{subject:?}");
        }
    }
}
