//! Annotations that the plugin reads: those that change a pod's redirect rules, and those of the
//! proxy injector.

use std::collections::BTreeMap;

use crate::cni::error::{Error, code};
use crate::quote::quote;

/// Annotation keys and values.
pub type Annotations = BTreeMap<String, String>;

pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";

/// Annotations with the ports of the proxy. The proxy container states the ports too, so a pod
/// without these annotations does not cause a request for its namespace.
pub const PROXY_PORTS: [&str; 4] = [INBOUND_PORT, OUTBOUND_PORT, CONTROL_PORT, ADMIN_PORT];

/// Annotation that enables or disables the proxy injector for a pod.
pub const INJECT: &str = "linkerd.io/inject";
/// Annotation with the program that wrote the pod or its template, and its version.
pub const CREATED_BY: &str = "linkerd.io/created-by";
/// Start of the value of [`CREATED_BY`] on pods with the injector's mark. A blank and the version
/// follow.
pub const INJECTOR: &str = "linkerd/proxy-injector";

/// Annotations that upstream's plugin reads. If the pod lacks one, the namespace's value
/// applies.
pub const UPSTREAM_KEYS: [&str; 5] =
    [SKIP_OUTBOUND_PORTS, SKIP_INBOUND_PORTS, SKIP_SUBNETS, PROXY_UID, PROXY_GID];

/// Whether the pod's author disabled the proxy injector.
pub fn is_disabled(annotations: &Annotations) -> bool {
    annotations.get(INJECT).is_some_and(|value| value == "disabled")
}

/// Whether the pod has the proxy injector's mark: [`CREATED_BY`] names the injector, and injection
/// is not disabled. The author of a pod can copy the mark.
///
/// The injector copies each of [`UPSTREAM_KEYS`] from the namespace to the pod when it sets
/// [`CREATED_BY`], so the namespace is read only if the pod has an empty value. A disabled pod with
/// the mark is a copy of an injected pod, because the injector skips disabled pods.
pub fn is_injected(annotations: &Annotations) -> bool {
    let mark = annotations.get(CREATED_BY).and_then(|value| value.strip_prefix(INJECTOR));
    mark.is_some_and(|version| version.is_empty() || version.starts_with(' '))
        && !is_disabled(annotations)
}

/// Error for the invalid `value` of the annotation `key`.
pub(super) fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(code::ANNOTATION, format!("annotation {key}: {}: {problem}", quote(value)))
        .with_details("correct the annotation on the pod or on its namespace")
}
