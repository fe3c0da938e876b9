//! Annotations of a pod or its namespace that change the pod's redirect rules.

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

/// Ports of the proxy. The proxy container also states them, so a pod without them does
/// not cause a request for its namespace.
pub const PROXY_PORTS: [&str; 4] = [INBOUND_PORT, OUTBOUND_PORT, CONTROL_PORT, ADMIN_PORT];

/// Annotations that upstream's plugin reads. If the pod lacks one, the namespace's value
/// applies.
pub const UPSTREAM_KEYS: [&str; 5] =
    [SKIP_OUTBOUND_PORTS, SKIP_INBOUND_PORTS, SKIP_SUBNETS, PROXY_UID, PROXY_GID];

/// Error for the invalid `value` of the annotation `key`.
pub(super) fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(code::ANNOTATION, format!("annotation {key}: {}: {problem}", quote(value)))
        .with_details("correct the annotation on the pod or on its namespace")
}
