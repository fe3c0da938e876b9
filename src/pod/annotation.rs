//! The annotations that the plugin reads. Some change a pod's redirect rules. Others come from the
//! proxy injector and tell whether the pod is meshed.

use std::collections::BTreeMap;

use crate::cni::Error;
use crate::failure::Failure;
use crate::quote::quote;

pub type Annotations = BTreeMap<String, String>;

/// An annotation that changes a pod's redirect rules. `docs/annotations.md` describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectAnnotation {
    pub key: &'static str,
    pub value: ValueKind,
}

/// The type of a [`RedirectAnnotation`]'s value. It determines how an invalid value is handled, and
/// whether the plugin reads the namespace of a pod that lacks the annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Ports and port ranges. Invalid elements are ignored and reported.
    PortList,
    /// Subnets. An invalid element fails the pod.
    SubnetList,
    /// Names of interfaces inside the pod. Invalid elements are ignored and reported.
    InterfaceList,
    /// A user ID or group ID. An invalid value fails the pod.
    Id,
    /// A port of the proxy. An invalid value is ignored and reported. The plugin does not request
    /// the namespace if the annotation is missing, because the proxy container sets its ports too.
    ProxyPort,
}

/// Declares a constant for each annotation's key, and [`TABLE`] of all annotations.
macro_rules! redirect_annotations {
    ($($(#[$doc:meta])* $name:ident $key:literal $value:ident)*) => {
        $($(#[$doc])* pub const $name: &str = $key;)*

        /// All annotations that change a pod's redirect rules. The node's copy of a pod contains
        /// only these annotations.
        pub const TABLE: &[RedirectAnnotation] = &[
            $(RedirectAnnotation { key: $name, value: ValueKind::$value }),*
        ];
    };
}

redirect_annotations! {
    SKIP_OUTBOUND_PORTS "config.linkerd.io/skip-outbound-ports" PortList
    SKIP_INBOUND_PORTS "config.linkerd.io/skip-inbound-ports" PortList
    SKIP_SUBNETS "config.linkerd.io/skip-subnets" SubnetList
    /// Proposed in <https://github.com/linkerd/linkerd2/pull/15496>, as is
    /// [`SKIP_OUTBOUND_SUBNETS`].
    SKIP_INBOUND_SUBNETS "config.linkerd.io/skip-inbound-subnets" SubnetList
    SKIP_OUTBOUND_SUBNETS "config.linkerd.io/skip-outbound-subnets" SubnetList
    PROXY_UID "config.linkerd.io/proxy-uid" Id
    PROXY_GID "config.linkerd.io/proxy-gid" Id
    INBOUND_PORT "config.linkerd.io/inbound-port" ProxyPort
    OUTBOUND_PORT "config.linkerd.io/outbound-port" ProxyPort
    CONTROL_PORT "config.linkerd.io/control-port" ProxyPort
    ADMIN_PORT "config.linkerd.io/admin-port" ProxyPort
    /// Upstream has no such annotation. Istio's is `istio.io/reroute-virtual-interfaces`.
    INNER_INTERFACES "config.linkerd.io/inner-interfaces" InterfaceList
}

/// Returns the row of [`TABLE`] for `key`.
pub fn redirect_annotation(key: &str) -> Option<&'static RedirectAnnotation> {
    TABLE.iter().find(|row| row.key == key)
}

/// Returns the annotations that a pod may inherit from its namespace. If the pod lacks one of them,
/// the plugin may have to read the namespace. Upstream's plugin inherits them too, except
/// [`SKIP_INBOUND_SUBNETS`], [`SKIP_OUTBOUND_SUBNETS`] and [`INNER_INTERFACES`].
pub fn inherited_keys() -> impl Iterator<Item = &'static str> {
    let inherited = TABLE.iter().filter(|row| row.value != ValueKind::ProxyPort);
    inherited.map(|row| row.key)
}

/// Enables or disables the proxy injector for a pod.
pub const INJECT: &str = "linkerd.io/inject";
/// Names the program that created the pod or its template, followed by the program's version.
pub const CREATED_BY: &str = "linkerd.io/created-by";
/// Prefix of [`CREATED_BY`] on injected pods. A space and the injector's version follow.
pub const INJECTOR: &str = "linkerd/proxy-injector";

const PROXY_VERSION: &str = "linkerd.io/proxy-version";
const TRUST_ROOT: &str = "linkerd.io/trust-root-sha256";

/// Returns true if the pod's author disabled the proxy injector.
pub fn is_disabled(annotations: &Annotations) -> bool {
    annotations.get(INJECT).is_some_and(|value| value == "disabled")
}

/// Returns true if the pod has an annotation that only pods with a proxy have.
///
/// In Linkerd 2.12 and later, every program that adds a proxy sets `linkerd.io/proxy-version`:
///
/// - the injector and `linkerd inject --manual`, with `trust-root-sha256` and [`CREATED_BY`]:
///   `injectObjectMeta` in <https://github.com/linkerd/linkerd2/blob/main/pkg/inject/inject.go>,
///   and `cli/cmd/inject.go`;
/// - the control plane's chart, with `trust-root-sha256`: `partials.proxy.annotations` in
///   <https://github.com/linkerd/linkerd2/blob/main/charts/partials/templates/_metadata.tpl>.
///
/// Any one of these annotations is enough, so a pod that lost the others is not skipped. The
/// following do not count, because pods without a proxy can have them:
///
/// - `config.linkerd.io/opaque-ports`: the injector sets it on pods that it does not inject
///   (`CreateOpaquePortsPatch` in `inject.go`), from their ports or from the namespace;
/// - `linkerd.io/inject` and other `config.linkerd.io` keys: authors write them on pods that the
///   injector skips, such as host-network pods;
/// - [`CREATED_BY`] that names another program: charts set it on all their pods.
pub fn has_proxy_annotation(annotations: &Annotations) -> bool {
    annotations.iter().any(|(key, value)| match key.as_str() {
        PROXY_VERSION | TRUST_ROOT => true,
        CREATED_BY => value.starts_with(INJECTOR),
        _ => false,
    })
}

/// Returns true if the annotations say that the proxy injector injected the pod: [`CREATED_BY`]
/// names the injector, and injection is not disabled. The annotations are not proof, because the
/// author of a pod can copy them.
///
/// The injector skips a pod whose injection is disabled. If [`CREATED_BY`] of such a pod names the
/// injector, the pod is a copy of an injected pod.
pub fn is_injected(annotations: &Annotations) -> bool {
    if is_disabled(annotations) {
        return false;
    }
    let Some(created_by) = annotations.get(CREATED_BY) else { return false };
    let Some(version) = created_by.strip_prefix(INJECTOR) else { return false };
    version.is_empty() || version.starts_with(' ')
}

/// Returns the error for an invalid value of an annotation.
pub fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(Failure::InvalidAnnotation, format!("annotation {key}: {}: {problem}", quote(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_page_documents_exactly_the_annotations_of_the_table() {
        let page = include_str!("../../docs/annotations.md");
        let section = page.split("\n## ").next().unwrap();
        let mut documented = Vec::new();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let (names, value) = row[2..].split_once(" | ").unwrap();
            for name in names.split('`').skip(1).step_by(2) {
                let key = format!("config.linkerd.io/{name}");
                documented.push((key, value.split([' ', ',']).next().unwrap()));
            }
        }
        let mut expected = Vec::new();
        for row in TABLE {
            // First word of the page's description of the value.
            let value = match row.value {
                ValueKind::PortList => "port",
                ValueKind::SubnetList => "CIDRs",
                ValueKind::InterfaceList => "names",
                ValueKind::Id | ValueKind::ProxyPort => "a",
            };
            expected.push((row.key.to_owned(), value));
        }
        documented.sort();
        expected.sort();
        assert_eq!(documented, expected);
    }
}
