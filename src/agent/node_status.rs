//! The body of `/status`: what the last reconcile pass found on the node. `linkerd cni` reads it through
//! the API server. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// What the last reconcile pass found.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// Name of the network config through which the runtime calls the plugin. `None`: the runtime does
    /// not call the plugin.
    pub conflist: Option<String>,
    /// When the token in the kubeconfig expires, if it does.
    pub token_expires: Option<SystemTime>,
    /// Whether another writer keeps overwriting a file of the agent.
    pub contention: bool,
    /// Problems and warnings, by subject.
    pub problems: BTreeMap<String, String>,
}

/// The JSON object of `/status`. A missing key has its default value, so that agents and `linkerd cni`
/// of different versions understand each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusBody {
    /// Version of the agent.
    pub version: String,
    pub ready: bool,
    /// Why the node is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// What `/ready` adds to a response of 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Name of the network config through which the runtime calls the plugin. Missing: the runtime does
    /// not call the plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflist: Option<String>,
    /// Expiry of the token in the kubeconfig, in seconds since 1970. Missing: unknown, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_expires: Option<u64>,
    pub contention: bool,
    /// Problems and warnings of the last pass, by subject.
    pub problems: BTreeMap<String, String>,
}

impl NodeStatus {
    /// Renders the JSON object. `not_ready` and `note` are those of `/ready`.
    pub fn render(self, not_ready: Option<String>, note: Option<String>) -> String {
        let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
        let body = StatusBody {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: not_ready.is_none(),
            not_ready,
            note,
            conflist: self.conflist,
            token_expires: self.token_expires.and_then(since_1970).map(|time| time.as_secs()),
            contention: self.contention,
            problems: self.problems,
        };
        // Maps with text keys cannot fail to serialize.
        serde_json::to_string(&body).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_body_says_what_the_last_pass_found_and_reads_back() {
        let node = NodeStatus {
            conflist: Some("10-calico.conflist".into()),
            token_expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)),
            contention: true,
            problems: BTreeMap::from([("kubeconfig token".into(), "it \"expired\"".into())]),
        };
        let text = node.render(Some("kubeconfig token: it \"expired\"".into()), None);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                r#"{{"version":"{version}","ready":false,"notReady":"kubeconfig token: it \"expired\"","#
            ) + r#""conflist":"10-calico.conflist","tokenExpires":1800000000,"#
                + r#""contention":true,"problems":{"kubeconfig token":"it \"expired\""}}"#
        );
        let body: StatusBody = serde_json::from_str(&text).unwrap();
        assert_eq!(body.token_expires, Some(1_800_000_000));
        assert!(body.contention && !body.ready);
    }

    #[test]
    fn a_body_with_unknown_and_missing_keys_is_read() {
        let body: StatusBody = serde_json::from_str(r#"{"ready":true,"later":[1]}"#).unwrap();
        assert_eq!(body, StatusBody { ready: true, ..StatusBody::default() });
    }
}
