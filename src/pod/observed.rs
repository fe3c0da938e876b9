//! Reads from the status of a running pod what matters for its paths around the proxy. Pure.
//!
//! The redirect rules cannot depend on the status: it is unknown when the pod starts, and it
//! changes while the pod runs.

use serde_json::Value;

use super::container_user::ContainerUser;
use crate::kube::types::{ContainerStatus, LinuxUser, NETWORK_STATUS, Pod};

/// The parts of a pod's status that matter for its paths around the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the pod has an IPv6 address in any of its networks, including those of Multus.
    pub has_ipv6: bool,
    /// Names of containers, and the users they run as.
    users: Vec<(String, LinuxUser)>,
}

impl Observed {
    pub fn read(pod: &Pod) -> Observed {
        let status = &pod.status;
        let statuses = status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
            .chain(&status.ephemeral_container_statuses);
        let users = statuses.filter_map(reported_user).collect();
        Observed { has_ipv6: has_ipv6_address(pod), users }
    }

    /// Returns the container with the user that its status reports, unless its securityContext sets
    /// the user.
    pub fn with_reported_user(&self, container: &ContainerUser) -> ContainerUser {
        match self.users.iter().find(|(name, _)| *name == container.name) {
            Some((_, user)) => container.with_reported_user(user),
            None => container.clone(),
        }
    }
}

/// Returns the name and user of a container. `None`: the status reports no user.
fn reported_user(status: &ContainerStatus) -> Option<(String, LinuxUser)> {
    let user = status.user.linux;
    if user.uid.is_none() && user.gid.is_none() {
        return None;
    }
    Some((status.name.clone(), user))
}

fn has_ipv6_address(pod: &Pod) -> bool {
    if pod.status.ips.iter().any(|address| is_ipv6(&address.ip)) {
        return true;
    }
    let Some(status) = pod.metadata.annotations.get(NETWORK_STATUS) else { return false };
    let networks: Vec<Value> = serde_json::from_str(status).unwrap_or_default();
    for network in &networks {
        let Some(ips) = network["ips"].as_array() else { continue };
        if ips.iter().filter_map(Value::as_str).any(is_ipv6) {
            return true;
        }
    }
    false
}

fn is_ipv6(ip: &str) -> bool {
    ip.contains(':')
}
