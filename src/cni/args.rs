//! Reads the pod's namespace, name and UID from `CNI_ARGS`.

use std::fmt;

use super::error::Error;
use crate::failure::Failure;
use crate::quote::quote;

const NAMESPACE: &str = "K8S_POD_NAMESPACE";
const NAME: &str = "K8S_POD_NAME";

/// Namespace, name and UID of a pod. All have only ASCII letters, digits, `-` and `.`, so they are safe
/// in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    /// Empty if it is unknown. For a static pod: the hash of its manifest, or the UID in it.
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `CNI_ARGS` are pairs `key=value`, separated by `;`. Returns `None` if they name no pod: the caller is
/// not Kubernetes. Fails on unknown keys unless `IgnoreUnknown` is set, as `pkg/types` does.
pub fn parse_pod(args: &str) -> Result<Option<PodRef>, Error> {
    let (mut namespace, mut name, mut uid) = ("", "", "");
    let (mut ignore_unknown, mut unknown) = (false, Vec::new());
    for pair in args.split(';').filter(|_| !args.is_empty()) {
        let parts = pair.split_once('=').filter(|(_, value)| !value.contains('='));
        let (key, value) = parts.ok_or_else(|| invalid(format!("invalid pair {}", quote(pair))))?;
        match key {
            NAMESPACE => namespace = value,
            NAME => name = value,
            // Optional: not all runtimes send the UID.
            "K8S_POD_UID" => uid = value,
            "IgnoreUnknown" => match value.to_ascii_lowercase().as_str() {
                "1" | "true" => ignore_unknown = true,
                "0" | "false" => ignore_unknown = false,
                _ => return Err(invalid(format!("{} is not 1, true, 0 or false", quote(pair)))),
            },
            _ => unknown.push(pair),
        }
    }
    if !unknown.is_empty() && !ignore_unknown {
        return Err(invalid(format!("unknown args {}", quote(&unknown.join(";")))).with_details(
            "configure the runtime to send IgnoreUnknown=1 in CNI_ARGS, or not to send these args",
        ));
    }
    if namespace.is_empty() || name.is_empty() {
        return Ok(None);
    }
    // The manifest of a static pod may set any text as the UID.
    let uid = if is_name(uid) { uid } else { "" };
    for (key, value) in [(NAMESPACE, namespace), (NAME, name)] {
        if !is_name(value) {
            return Err(invalid(format!("{key}={} is not a Kubernetes name", quote(value))));
        }
    }
    Ok(Some(PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() }))
}

fn invalid(problem: String) -> Error {
    Error::new(Failure::InvalidEnvironment, format!("CNI_ARGS: {problem}"))
}

/// Whether `text` can be a Kubernetes object name and is safe in a URL path: at most 253 ASCII
/// letters, digits, `-` and `.`, not starting with a dot. Also accepts upper case.
pub fn is_name(text: &str) -> bool {
    text.len() <= 253
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pod_is_read_in_any_order_of_keys_and_an_error_quotes_the_invalid_pair() {
        for case in testkit::chart::yaml(include_str!("args.yaml")).as_array().unwrap() {
            let found = match parse_pod(case[0].as_str().unwrap()) {
                Ok(pod) => json!(pod.map(|pod| [pod.namespace, pod.name, pod.uid])),
                Err(error) => json!(format!("code {}: {}", error.failure.code(), error.msg)),
            };
            assert_eq!(found, case[1], "{case}");
        }
    }
}
