//! Annotations that the plugin reads: those that change a pod's redirect rules, and those of the
//! proxy injector.

use std::collections::BTreeMap;

use crate::cni::Error;
use crate::failure::Failure;
use crate::quote::quote;

pub type Annotations = BTreeMap<String, String>;

pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
/// Proposed in <https://github.com/linkerd/linkerd2/pull/15496>, as is [`SKIP_OUTBOUND_SUBNETS`].
pub const SKIP_INBOUND_SUBNETS: &str = "config.linkerd.io/skip-inbound-subnets";
pub const SKIP_OUTBOUND_SUBNETS: &str = "config.linkerd.io/skip-outbound-subnets";
pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";

/// Annotations with the ports of the proxy. The proxy container states the ports too, so a pod
/// without these annotations does not cause a request for its namespace.
pub const PROXY_PORTS: [&str; 4] = [INBOUND_PORT, OUTBOUND_PORT, CONTROL_PORT, ADMIN_PORT];

/// Enables or disables the proxy injector for a pod.
pub const INJECT: &str = "linkerd.io/inject";
/// The program that wrote the pod or its template, and its version.
pub const CREATED_BY: &str = "linkerd.io/created-by";
/// Start of [`CREATED_BY`] on pods with the injector's mark. A blank and the version follow.
pub const INJECTOR: &str = "linkerd/proxy-injector";

const PROXY_VERSION: &str = "linkerd.io/proxy-version";
const TRUST_ROOT: &str = "linkerd.io/trust-root-sha256";

/// Annotations that the namespace may have for its pods. If the pod lacks one, the namespace's
/// value applies. Upstream's plugin reads them too, except [`SKIP_INBOUND_SUBNETS`] and
/// [`SKIP_OUTBOUND_SUBNETS`].
pub const INHERITED_KEYS: [&str; 7] = [
    SKIP_OUTBOUND_PORTS,
    SKIP_INBOUND_PORTS,
    SKIP_SUBNETS,
    SKIP_INBOUND_SUBNETS,
    SKIP_OUTBOUND_SUBNETS,
    PROXY_UID,
    PROXY_GID,
];

/// Whether the author disabled the proxy injector for the pod.
pub fn is_disabled(annotations: &Annotations) -> bool {
    annotations.get(INJECT).is_some_and(|value| value == "disabled")
}

/// Whether the pod has an annotation that only pods with a proxy have.
///
/// In Linkerd 2.12 and later, each program that adds a proxy sets `linkerd.io/proxy-version`:
///
/// - the injector and `linkerd inject --manual`, with `trust-root-sha256` and [`CREATED_BY`]:
///   `injectObjectMeta` in <https://github.com/linkerd/linkerd2/blob/main/pkg/inject/inject.go>,
///   and `cli/cmd/inject.go`;
/// - the control plane's chart, with `trust-root-sha256`: `partials.proxy.annotations` in
///   <https://github.com/linkerd/linkerd2/blob/main/charts/partials/templates/_metadata.tpl>.
///
/// Each of these annotations counts alone, so that a pod that lost one is not skipped. Annotations
/// that pods without proxy have, too, do not count:
///
/// - `config.linkerd.io/opaque-ports`: the injector sets it on pods that it does not inject
///   (`CreateOpaquePortsPatch` in `inject.go`), from their ports or from the namespace;
/// - `linkerd.io/inject` and other `config.linkerd.io` keys: authors write them on pods that the
///   injector skips, such as host-network pods;
/// - [`CREATED_BY`] that does not name the injector: charts set it on all their pods.
pub fn has_proxy_annotation(annotations: &Annotations) -> bool {
    annotations.iter().any(|(key, value)| match key.as_str() {
        PROXY_VERSION | TRUST_ROOT => true,
        CREATED_BY => value.starts_with(INJECTOR),
        _ => false,
    })
}

/// Whether the pod has the proxy injector's mark: [`CREATED_BY`] names the injector, and injection
/// is not disabled. The author of a pod can copy the mark.
///
/// The injector copies each of [`INHERITED_KEYS`] that it knows from the namespace to the pod when
/// it sets [`CREATED_BY`], so the namespace is read only if the pod has an empty value. A disabled
/// pod with the mark is a copy of an injected pod, because the injector skips disabled pods.
pub fn is_injected(annotations: &Annotations) -> bool {
    if is_disabled(annotations) {
        return false;
    }
    let created_by = annotations.get(CREATED_BY).map_or("", String::as_str);
    match created_by.strip_prefix(INJECTOR) {
        Some(version) => version.is_empty() || version.starts_with(' '),
        None => false,
    }
}

/// Returns the error for an invalid value of an annotation.
pub fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(Failure::InvalidAnnotation, format!("annotation {key}: {}: {problem}", quote(value)))
}
