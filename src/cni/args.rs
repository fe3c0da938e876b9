//! Reads the pod's namespace, name and UID from `CNI_ARGS`.

use std::fmt;

use super::error::Error;
use crate::failure::Failure;
use crate::quote::quote;

const NAMESPACE: &str = "K8S_POD_NAMESPACE";
const NAME: &str = "K8S_POD_NAME";
const UID: &str = "K8S_POD_UID";
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

/// Namespace, name and UID of a pod. They contain only ASCII letters, digits, `-` and `.`, so they
/// are safe in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    /// Empty if the UID is unknown. For a static pod, the hash of its manifest or the UID that the
    /// manifest sets.
    pub uid: String,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The values of `CNI_ARGS` that Kubernetes sets.
#[derive(Default)]
struct KubernetesArgs<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    ignore_unknown: bool,
    /// Pairs with any other key.
    unknown: Vec<&'a str>,
}

/// Reads the pod from `CNI_ARGS`, a list of `key=value` pairs separated by `;`. Fails on unknown
/// keys unless `IgnoreUnknown` is set, as `pkg/types` does.
///
/// Returns `None` if the caller is not Kubernetes: the args contain no pod, or a name that no pod
/// can have, for example podman's `nifty_pasteur`.
pub fn parse_pod(args: &str) -> Result<Option<PodRef>, Error> {
    let args = parse_args(args)?;
    if !args.unknown.is_empty() && !args.ignore_unknown {
        let problem = format!("unknown args {}", quote(&args.unknown.join(";")));
        return Err(invalid(problem).with_details(
            "configure the runtime to send IgnoreUnknown=1 in CNI_ARGS, or not to send these args",
        ));
    }
    if !is_namespace_name(args.namespace) || !is_pod_name(args.name) {
        return Ok(None);
    }
    // The manifest of a static pod may set any text as the UID. Treat a text that is not safe in a
    // URL as an unknown UID.
    let uid = if is_name(args.uid) { args.uid } else { "" };
    Ok(Some(PodRef {
        namespace: args.namespace.to_owned(),
        name: args.name.to_owned(),
        uid: uid.to_owned(),
    }))
}

fn parse_args(args: &str) -> Result<KubernetesArgs<'_>, Error> {
    let mut parsed = KubernetesArgs::default();
    if args.is_empty() {
        return Ok(parsed);
    }
    for pair in args.split(';') {
        match pair.split_once('=') {
            Some((_, value)) if value.contains('=') => return Err(invalid_pair(pair)),
            None => return Err(invalid_pair(pair)),
            Some((NAMESPACE, value)) => parsed.namespace = value,
            Some((NAME, value)) => parsed.name = value,
            // The UID may be missing, because not all runtimes send it.
            Some((UID, value)) => parsed.uid = value,
            Some((IGNORE_UNKNOWN, value)) => {
                parsed.ignore_unknown = parse_bool(value).ok_or_else(|| {
                    invalid(format!("{} is not 1, true, 0 or false", quote(pair)))
                })?;
            }
            Some(_) => parsed.unknown.push(pair),
        }
    }
    Ok(parsed)
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn invalid_pair(pair: &str) -> Error {
    invalid(format!("invalid pair {}", quote(pair)))
}

fn invalid(problem: String) -> Error {
    Error::new(Failure::InvalidEnvironment, format!("CNI_ARGS: {problem}"))
}

/// Returns true if a namespace can have this name: at most 63 lower-case letters, digits and `-`,
/// not starting or ending with `-`
/// ([`NameIsDNSLabel`](https://github.com/kubernetes/apimachinery/blob/v0.34.0/pkg/api/validation/generic.go)).
fn is_namespace_name(text: &str) -> bool {
    text.len() <= 63 && is_label(text)
}

/// Returns true if a pod, static pods included, can have this name: at most 253 characters in
/// labels separated by dots
/// ([`NameIsDNSSubdomain`](https://github.com/kubernetes/apimachinery/blob/v0.34.0/pkg/api/validation/generic.go)).
fn is_pod_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Returns true if `text` can be the name of a Kubernetes object and is safe in a URL path: at most
/// 253 ASCII letters of either case, digits, `-` and `.`, not starting with a dot.
pub fn is_name(text: &str) -> bool {
    text.len() <= 253
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// A row of `args.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Row {
        args: String,
        /// Namespace, name and UID.
        pod: Option<[String; 3]>,
        error: Option<String>,
    }

    #[test]
    fn keys_may_have_any_order_and_errors_quote_the_invalid_pair() {
        for (name, row) in testkit::table::rows::<Row>(include_str!("args.yaml")) {
            let (pod, error) = match parse_pod(&row.args) {
                Ok(pod) => (pod.map(|pod| [pod.namespace, pod.name, pod.uid]), None),
                Err(error) => (None, Some(format!("code {}: {}", error.failure.code(), error.msg))),
            };
            assert_eq!((pod, error), (row.pod, row.error), "{name}");
        }
    }
}
