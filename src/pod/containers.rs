//! Finds the containers that the redirect rules treat in a way that their author may not expect: init
//! containers whose outbound connections are redirected to a proxy that does not run yet, and
//! containers of the app whose connections bypass the proxy, or that can make them. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mesh::PROXY;
use crate::kube::types::{Container, NETWORK_STATUS, Pod, SecurityContext};
use crate::redirect::Redirect;
use crate::redirect::ports;

/// Linkerd's init container that tests by a connection whether the pod's traffic is redirected.
pub const VALIDATOR: &str = "linkerd-network-validator";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    name: String,
    /// User and group from the securityContext. `None`: those of the image, which are unknown.
    uid: Option<i64>,
    gid: Option<i64>,
}

/// Returns the init containers that run to their end before the proxy starts. If the proxy is an
/// init container itself (a native sidecar), these are the ones in front of it. A native sidecar
/// in front of the proxy keeps running, so that it can connect later.
pub fn before_proxy(pod: &Pod) -> Vec<ContainerUser> {
    let early = pod.spec.init_containers.iter().take_while(|container| container.name != PROXY);
    let early = early.filter(|container| container.name != VALIDATOR && !is_sidecar(container));
    early.map(|container| user(container, pod)).collect()
}

/// Returns the containers that run beside the proxy, native sidecars included. Other init containers do
/// not count: the proxy's UID is the documented way to give them the network before the proxy starts.
pub fn of_app(pod: &Pod) -> Vec<ContainerUser> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| is_sidecar(container));
    let all = pod.spec.containers.iter().flatten().chain(&pod.spec.ephemeral_containers);
    let all = all.chain(sidecars).filter(|container| container.name != PROXY);
    all.map(|container| user(container, pod)).collect()
}

/// Ways around the rules, besides the facts on which the rules depend. The lists name containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exposure {
    /// Init containers that are no native sidecars.
    pub init_containers: Vec<ContainerUser>,
    pub net_admin: Vec<String>,
    /// With NET_RAW, because the author added it.
    pub net_raw: Vec<String>,
    /// May run as root with the capability to become any user, or with NET_RAW.
    pub root: Vec<String>,
}

pub fn exposure(pod: &Pod) -> Exposure {
    let spec = &pod.spec;
    let init = spec.init_containers.iter().filter(|container| container.name != VALIDATOR);
    let all = spec.containers.iter().flatten().chain(init.clone());
    let all = all.chain(&spec.ephemeral_containers).filter(|container| container.name != PROXY);
    let named = |has: &dyn Fn(&SecurityContext) -> bool| {
        let found = all.clone().filter(|container| has(&container.security_context));
        found.map(|container| container.name.clone()).collect()
    };
    let init = init.filter(|container| container.name != PROXY && !is_sidecar(container));
    Exposure {
        init_containers: init.map(|container| user(container, pod)).collect(),
        net_admin: named(&|context| context.adds("NET_ADMIN")),
        net_raw: named(&|context| context.adds("NET_RAW")),
        root: named(&|context| {
            let of_pod = &spec.security_context;
            let may_be_root = match context.run_as_user.or(of_pod.run_as_user) {
                Some(uid) => uid == 0,
                None => context.run_as_non_root.or(of_pod.run_as_non_root) != Some(true),
            };
            may_be_root && ["SETUID", "NET_RAW"].iter().any(|name| context.may_have(name))
        }),
    }
}

/// Whether the pod has an IPv6 address, also in a network of Multus.
pub fn has_ipv6_address(pod: &Pod) -> bool {
    let status = pod.metadata.annotations.get(NETWORK_STATUS).map_or("", String::as_str);
    let networks: Vec<Value> = serde_json::from_str(status).unwrap_or_default();
    let mut ips = networks.iter().filter_map(|network| network["ips"].as_array()).flatten();
    pod.status.ips.iter().any(|address| address.ip.contains(':'))
        || ips.any(|ip| ip.as_str().is_some_and(|ip| ip.contains(':')))
}

impl SecurityContext {
    fn adds(&self, capability: &str) -> bool {
        self.privileged || has(&self.capabilities.add, capability)
    }

    /// If the runtime gives the capability to every container.
    fn may_have(&self, capability: &str) -> bool {
        self.adds(capability) || !has(&self.capabilities.drop, capability)
    }
}

/// Whether the list names the capability, as containerd and CRI-O read it.
fn has(list: &[String], capability: &str) -> bool {
    list.iter().any(|name| {
        let name = name.to_ascii_uppercase();
        [capability, "ALL"].contains(&name.strip_prefix("CAP_").unwrap_or(&name))
    })
}

fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

fn user(container: &Container, pod: &Pod) -> ContainerUser {
    let (own, of_pod) = (&container.security_context, &pod.spec.security_context);
    ContainerUser {
        name: container.name.clone(),
        uid: own.run_as_user.or(of_pod.run_as_user),
        gid: own.run_as_group.or(of_pod.run_as_group),
    }
}

/// Returns the names of those containers whose outbound connections `redirect` sends to the proxy:
/// not those with the proxy's UID or GID, and none if all ports or all IPv4 addresses are skipped.
pub fn blocked(containers: &[ContainerUser], redirect: &Redirect) -> Vec<String> {
    let mut subnets = redirect.skip_outbound_subnets.iter().map(|subnet| subnet.net);
    let skips_ipv4 = subnets.any(|net| net.prefix_len() == 0 && net.addr().is_ipv4());
    let ports = redirect.skip_outbound.iter().map(|range| (range.first, range.last));
    let skips_all_ports = matches!(ports::merged(ports.collect())[..], [(0 | 1, u16::MAX)]);
    if skips_ipv4 || skips_all_ports { Vec::new() } else { names(containers, redirect, false) }
}

/// Returns the names of those containers whose outbound connections bypass the proxy, as they have the
/// UID or GID that `redirect` exempts for the proxy.
pub fn exempt(containers: &[ContainerUser], redirect: &Redirect) -> Vec<String> {
    names(containers, redirect, true)
}

fn names(containers: &[ContainerUser], redirect: &Redirect, is_exempt: bool) -> Vec<String> {
    let is = |id: Option<i64>, of_proxy: Option<u32>| id.is_some() && id == of_proxy.map(i64::from);
    let chosen = containers.iter().filter(|container| {
        let is_proxys =
            is(container.uid, redirect.proxy_uid) || is(container.gid, redirect.proxy_gid);
        is_proxys == is_exempt
    });
    chosen.map(|container| container.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::chart::yaml;

    use super::*;
    use crate::pod::annotation;
    use crate::redirect::ports::PortRange;

    fn redirect(proxy_gid: Option<u32>, skip_outbound: &str) -> Redirect {
        let skip_outbound = skip_outbound.split(',').map(|text| PortRange::parse(text).unwrap());
        let skip_outbound = skip_outbound.collect();
        Redirect { proxy_gid, skip_outbound, ..Redirect::example() }
    }

    /// Init containers without network, and containers that bypass the proxy as its user.
    #[test]
    fn containers_are_blocked_or_exempt_by_their_place_before_the_proxy_and_by_their_user() {
        for (name, case) in yaml(include_str!("tests.yaml"))["containers"].as_object().unwrap() {
            let pod = json!({"metadata": {}, "spec": case["spec"]});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let gid = case["gid"].as_u64().map(|gid| gid as u32);
            let redirect = redirect(gid, case["skip"].as_str().unwrap_or("25"));
            for (key, found) in [
                ("blocked", blocked(&before_proxy(&pod), &redirect)),
                ("exempt", exempt(&of_app(&pod), &redirect)),
            ] {
                if let Some(wanted) = case.get(key) {
                    assert_eq!(json!(found), *wanted, "{name}: {key}");
                }
            }
        }
    }

    /// The examples of docs/init-containers.md, by their name.
    #[test]
    fn the_documented_pods_have_network_in_their_init_containers() {
        let page = include_str!("../../docs/init-containers.md");
        let examples: Vec<Pod> = page
            .split("```yaml\n")
            .skip(1)
            .map(|rest| serde_saphyr::from_str(rest.split("```").next().unwrap()).unwrap())
            .collect();
        let names: Vec<&str> = examples.iter().map(|pod| pod.metadata.name.as_str()).collect();
        assert_eq!(names, ["native-sidecar", "proxy-user", "skip-ports"]);
        for pod in &examples[..2] {
            assert!(pod.spec.init_containers.iter().any(|container| container.name == "migrate"));
            assert!(blocked(&before_proxy(pod), &redirect(None, "25")).is_empty());
        }
        assert!(examples[2].metadata.annotations.contains_key(annotation::SKIP_OUTBOUND_PORTS));
    }
}
