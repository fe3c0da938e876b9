//! What the status of a running pod says of its paths around the proxy. Pure.
//!
//! None of it is known when the pod starts, and it changes while the pod runs. So no rule depends
//! on it.

use serde_json::Value;

use super::container_user::ContainerUser;
use crate::kube::types::{ContainerStatus, LinuxUser, NETWORK_STATUS, Pod};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the pod has an IPv6 address, also in a network of Multus.
    pub has_ipv6: bool,
    /// The users with which containers run, by the container's name.
    users: Vec<(String, LinuxUser)>,
}

impl Observed {
    pub fn read(pod: &Pod) -> Observed {
        let status = &pod.status;
        let statuses = status.container_statuses.iter();
        let statuses = statuses
            .chain(&status.init_container_statuses)
            .chain(&status.ephemeral_container_statuses);
        Observed { has_ipv6: has_ipv6_address(pod), users: statuses.filter_map(user).collect() }
    }

    /// Returns the container with its user, as far as the pod's object has it.
    pub fn user_of(&self, container: &ContainerUser) -> ContainerUser {
        match self.users.iter().find(|(name, _)| *name == container.name) {
            Some((_, user)) => container.or_reported(user),
            None => container.clone(),
        }
    }
}

/// Returns name and user of a container, if its status has the user.
fn user(status: &ContainerStatus) -> Option<(String, LinuxUser)> {
    let user = status.user.linux;
    if user.uid.is_none() && user.gid.is_none() {
        return None;
    }
    Some((status.name.clone(), user))
}

fn has_ipv6_address(pod: &Pod) -> bool {
    if pod.status.ips.iter().any(|address| address.ip.contains(':')) {
        return true;
    }
    let status = pod.metadata.annotations.get(NETWORK_STATUS).map_or("", String::as_str);
    let networks: Vec<Value> = serde_json::from_str(status).unwrap_or_default();
    networks
        .iter()
        .filter_map(|network| network["ips"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .any(|ip| ip.contains(':'))
}
