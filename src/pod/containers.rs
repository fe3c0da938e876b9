//! Finds the containers whose connections the redirect rules may treat unexpectedly. Pure.
//!
//! - Init containers that run before the proxy: their outbound connections are redirected, but the
//!   proxy does not accept them yet.
//! - Containers that run beside the proxy as the proxy's user: their connections bypass the proxy.

use super::container_user::ContainerUser;
use super::mesh::PROXY;
use crate::kube::types::{Container, Pod};
use crate::redirect::Redirect;
use crate::redirect::ports;

/// Linkerd's init container that opens a connection to test whether the pod's traffic is
/// redirected.
pub const VALIDATOR: &str = "linkerd-network-validator";

/// Returns the init containers that run to completion before the proxy starts, except the
/// validator. If the proxy is a native sidecar, only init containers listed before it count. Other
/// native sidecars do not count: they keep running and can connect once the proxy is ready.
pub fn before_proxy(pod: &Pod) -> Vec<ContainerUser> {
    let mut early_containers = Vec::new();
    for container in &pod.spec.init_containers {
        if container.name == PROXY {
            break;
        }
        if container.name != VALIDATOR && !is_sidecar(container) {
            early_containers.push(ContainerUser::new(container, pod));
        }
    }
    early_containers
}

/// Returns the containers that run beside the proxy, including native sidecars. Other init
/// containers do not count: docs/init-containers.md tells users to run them with the proxy's UID if
/// they need the network before the proxy starts.
pub fn beside_proxy(pod: &Pod) -> Vec<ContainerUser> {
    let spec = &pod.spec;
    let sidecars = spec.init_containers.iter().filter(|container| is_sidecar(container));
    let containers = spec.containers.iter().flatten().chain(&spec.ephemeral_containers);
    let mut users = Vec::new();
    for container in containers.chain(sidecars) {
        if container.name != PROXY {
            users.push(ContainerUser::new(container, pod));
        }
    }
    users
}

/// Returns true if the init container is a native sidecar.
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}

/// Returns the names of the containers whose outbound connections `redirect` sends to the proxy.
/// Containers with the proxy's UID or GID are exempt. Returns no container if `redirect` skips all
/// ports or all IPv4 addresses.
pub fn redirected_names(containers: &[ContainerUser], redirect: &Redirect) -> Vec<String> {
    if skips_all_ipv4(redirect) || skips_all_ports(redirect) {
        return Vec::new();
    }
    let redirected = containers.iter().filter(|container| !container.is_proxy_user(redirect));
    redirected.map(|container| container.name.clone()).collect()
}

/// Returns the names of the containers whose outbound connections bypass the proxy because they run
/// with the UID or GID that `redirect` exempts.
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
    // No connection uses port 0.
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

    #[test]
    fn container_order_and_user_determine_which_containers_are_redirected() {
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

    /// Checks the example pods in docs/init-containers.md.
    #[test]
    fn init_containers_of_the_documented_pods_can_use_the_network() {
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
