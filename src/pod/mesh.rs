//! Determines from a pod's containers whether the pod is meshed, and reads the settings of its
//! proxy container. Pure.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Decision;
use super::skip::SkipReason;
use crate::kube::types::{Container, Pod};

pub const PROXY: &str = "linkerd-proxy";
/// Linkerd's init container, which installs the redirect rules itself.
const PROXY_INIT: &str = "linkerd-init";

/// UID and ports from the container `linkerd-proxy`. `None`: the container does not set the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proxy {
    pub uid: Option<i64>,
    pub inbound_port: Option<u16>,
    pub outbound_port: Option<u16>,
    pub control_port: Option<u16>,
    pub admin_port: Option<u16>,
    /// Whether the proxy listens for inbound or for outbound connections on IPv4 addresses only.
    /// False if its addresses are unknown.
    pub is_ipv4_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object has no spec.containers")]
pub struct NotAPod;

/// Returns true if the plugin redirects a pod with these containers.
pub fn is_meshed(pod: &Pod) -> bool {
    matches!(find_proxy(pod), Ok(Decision::Redirect(_)))
}

/// Returns why the plugin skips a pod with these containers. `None`: the pod is meshed, or the
/// object has no containers.
pub fn skip_reason(pod: &Pod) -> Option<SkipReason> {
    match find_proxy(pod) {
        Ok(Decision::Skip(reason)) => Some(reason),
        Ok(Decision::Redirect(_)) | Err(NotAPod) => None,
    }
}

/// Returns the proxy of a meshed pod, or why the plugin skips the pod.
pub fn find_proxy(pod: &Pod) -> Result<Decision<Proxy>, NotAPod> {
    let containers = pod.spec.containers.as_ref().ok_or(NotAPod)?;
    let init_containers = &pod.spec.init_containers;
    if init_containers.iter().any(|container| container.name == PROXY_INIT) {
        return Ok(Decision::Skip(SkipReason::ProxyInit));
    }
    let mut all = containers.iter().chain(init_containers);
    match all.find(|container| container.name == PROXY) {
        Some(container) => Ok(Decision::Redirect(read_proxy(container))),
        None => Ok(Decision::Skip(SkipReason::NoProxy)),
    }
}

/// Reads the settings of the container `linkerd-proxy`.
fn read_proxy(container: &Container) -> Proxy {
    let inbound = listen_addresses(container, &["LINKERD2_PROXY_INBOUND_LISTEN_ADDR"]);
    let outbound = listen_addresses(
        container,
        &["LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR"],
    );
    let control = listen_addresses(container, &["LINKERD2_PROXY_CONTROL_LISTEN_ADDR"]);
    let admin = listen_addresses(container, &["LINKERD2_PROXY_ADMIN_LISTEN_ADDR"]);
    Proxy {
        // Only the container's own UID counts. Policies set the pod's user and the groups of all
        // containers alike, so exempting these would let the app's connections bypass the proxy.
        uid: container.security_context.run_as_user,
        inbound_port: first_port(&inbound),
        outbound_port: first_port(&outbound),
        control_port: first_port(&control),
        admin_port: first_port(&admin),
        is_ipv4_only: is_ipv4_only(&inbound) || is_ipv4_only(&outbound),
    }
}

/// Parses the first of the environment variables `names` that the container has, for example
/// `127.0.0.1:4140,[::1]:4140`. Returns no address if the container has none of them, or if the
/// value is invalid or not part of the pod object.
fn listen_addresses(container: &Container, names: &[&str]) -> Vec<SocketAddr> {
    for name in names {
        // The kubelet uses the last of several entries with the same name.
        if let Some(variable) = container.env.iter().rfind(|variable| variable.name == *name) {
            return parse_addresses(&variable.value);
        }
    }
    Vec::new()
}

/// Parses a comma-separated list. Returns no address if one of them is invalid.
fn parse_addresses(list: &str) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for text in list.split(',') {
        let Ok(address) = text.parse() else { return Vec::new() };
        addresses.push(address);
    }
    addresses
}

fn first_port(addresses: &[SocketAddr]) -> Option<u16> {
    let port = addresses.first()?.port();
    if port == 0 {
        return None;
    }
    Some(port)
}

/// Returns true if the addresses are known and none of them accepts IPv6. `[::]` accepts both
/// families.
fn is_ipv4_only(addresses: &[SocketAddr]) -> bool {
    !addresses.is_empty() && addresses.iter().all(SocketAddr::is_ipv4)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};
    use testkit::table::rows_of;

    use super::*;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    /// A row of `proxies` in `tests.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ProxyRow {
        spec: Value,
        decision: Value,
    }

    #[test]
    fn containers_determine_whether_a_pod_is_meshed_and_its_proxy_settings() {
        for (name, row) in rows_of::<ProxyRow>(include_str!("tests.yaml"), "proxies") {
            let pod = pod(&row.spec);
            let skip_reason = row.decision.get("skip");
            assert_eq!(json!(find_proxy(&pod).unwrap()), row.decision, "{name}");
            assert_eq!(is_meshed(&pod), skip_reason.is_none(), "{name}");
            assert_eq!(json!(super::skip_reason(&pod)), json!(skip_reason), "{name}");
            assert!(!format!("{pod:?}").contains("SECRET"), "{pod:?}");
        }
        assert_eq!(find_proxy(&pod(&json!({}))), Err(NotAPod));
    }
}
