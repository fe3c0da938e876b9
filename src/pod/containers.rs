//! Finds the containers that the redirect rules treat in a way that their author may not expect:
//! init containers whose outbound connections are redirected to a proxy that does not run yet, and
//! containers of the app whose connections bypass the proxy, or that can make them. Pure.

use super::container_user::ContainerUser;
use super::mesh::PROXY;
use crate::kube::types::{Container, Pod};
use crate::redirect::Redirect;
use crate::redirect::ports;

/// Linkerd's init container that tests by a connection whether the pod's traffic is redirected.
pub const VALIDATOR: &str = "linkerd-network-validator";

/// Returns the init containers that run to their end before the proxy starts. If the proxy is an
/// init container itself (a native sidecar), these are the ones in front of it. A native sidecar
/// in front of the proxy keeps running, so that it can connect later.
pub fn before_proxy(pod: &Pod) -> Vec<ContainerUser> {
    let mut early = Vec::new();
    for container in &pod.spec.init_containers {
        if container.name == PROXY {
            break;
        }
        if container.name != VALIDATOR && !is_sidecar(container) {
            early.push(ContainerUser::new(container, pod));
        }
    }
    early
}

/// Returns the containers that run beside the proxy, native sidecars included. Other init
/// containers do not count: docs/init-containers.md tells users to run them with the proxy's UID if
/// they need the network before the proxy starts.
pub fn beside_proxy(pod: &Pod) -> Vec<ContainerUser> {
    let spec = &pod.spec;
    let sidecars = spec.init_containers.iter().filter(|container| is_sidecar(container));
    let containers = spec.containers.iter().flatten().chain(&spec.ephemeral_containers);
    containers
        .chain(sidecars)
        .filter(|container| container.name != PROXY)
        .map(|container| ContainerUser::new(container, pod))
        .collect()
}

pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Returns the names of those containers whose outbound connections `redirect` sends to the proxy:
/// not those with the proxy's UID or GID, and none if all ports or all IPv4 addresses are skipped.
pub fn redirected_names(containers: &[ContainerUser], redirect: &Redirect) -> Vec<String> {
    if skips_all_ipv4(redirect) || skips_all_ports(redirect) {
        return Vec::new();
    }
    let redirected = containers.iter().filter(|container| !container.is_proxy_user(redirect));
    redirected.map(|container| container.name.clone()).collect()
}

/// Returns the names of those containers whose outbound connections bypass the proxy, as they have
/// the UID or GID that `redirect` exempts for the proxy.
pub fn exempt_names(containers: &[ContainerUser], redirect: &Redirect) -> Vec<String> {
    let exempt = containers.iter().filter(|container| container.is_proxy_user(redirect));
    exempt.map(|container| container.name.clone()).collect()
}

fn skips_all_ipv4(redirect: &Redirect) -> bool {
    let mut subnets = redirect.skip_outbound_subnets.iter().map(|subnet| subnet.net);
    subnets.any(|net| net.prefix_len() == 0 && net.addr().is_ipv4())
}

fn skips_all_ports(redirect: &Redirect) -> bool {
    let ranges = redirect.skip_outbound.iter().map(|range| (range.first, range.last));
    matches!(ports::merged(ranges.collect())[..], [(0 | 1, u16::MAX)])
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};
    use testkit::table::rows_of;

    use super::*;
    use crate::pod::annotation;
    use crate::redirect::ports::PortRange;

    fn redirect(proxy_gid: Option<u32>, skip_outbound: &str) -> Redirect {
        let skip_outbound = skip_outbound.split(',').map(|text| PortRange::parse(text).unwrap());
        let skip_outbound = skip_outbound.collect();
        Redirect { proxy_gid, skip_outbound, ..Redirect::example() }
    }

    /// A row of `containers` in `tests.yaml`.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ContainersRow {
        spec: Value,
        gid: Option<u32>,
        /// Outbound ports to skip.
        #[serde(default = "smtp")]
        skip: String,
        blocked: Option<Vec<String>>,
        exempt: Option<Vec<String>>,
    }

    fn smtp() -> String {
        "25".to_owned()
    }

    /// Init containers without network, and containers that bypass the proxy as its user.
    #[test]
    fn order_and_user_of_a_container_decide_whether_it_is_redirected() {
        for (name, row) in rows_of::<ContainersRow>(include_str!("tests.yaml"), "containers") {
            let pod = json!({"metadata": {}, "spec": row.spec});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let redirect = redirect(row.gid, &row.skip);
            if let Some(blocked) = row.blocked {
                let found = redirected_names(&before_proxy(&pod), &redirect);
                assert_eq!(found, blocked, "{name}");
            }
            if let Some(exempt) = row.exempt {
                assert_eq!(exempt_names(&beside_proxy(&pod), &redirect), exempt, "{name}");
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
            assert!(redirected_names(&before_proxy(pod), &redirect(None, "25")).is_empty());
        }
        assert!(examples[2].metadata.annotations.contains_key(annotation::SKIP_OUTBOUND_PORTS));
    }
}
