//! Finds the containers whose user or capabilities let traffic bypass the redirect rules. Pure.

use serde::{Deserialize, Serialize};

use super::container_user::ContainerUser;
use super::containers::{VALIDATOR, is_sidecar};
use super::mesh::PROXY;
use crate::kube::types::Pod;

/// Containers through which traffic may bypass the redirect rules. Only reports use them: the rules
/// do not depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exposure {
    /// Init containers that exit before the app starts.
    pub init_containers: Vec<ContainerUser>,
    /// Names of the containers whose securityContext adds NET_ADMIN.
    pub net_admin: Vec<String>,
    /// Names of the containers whose securityContext adds NET_RAW.
    pub net_raw: Vec<String>,
    /// Names of the containers whose securityContext adds SYS_ADMIN.
    pub sys_admin: Vec<String>,
    /// Names of the containers whose securityContext adds SYS_PTRACE.
    pub sys_ptrace: Vec<String>,
}

/// Returns the containers of a pod through which traffic may bypass the rules, except the proxy and
/// the validator.
pub fn find_exposure(pod: &Pod) -> Exposure {
    let spec = &pod.spec;
    let init_containers = spec.init_containers.iter().filter(|init| init.name != VALIDATOR);
    let containers = spec.containers.iter().flatten().chain(init_containers.clone());
    let mut exposure = Exposure::default();
    for container in containers.chain(&spec.ephemeral_containers) {
        if container.name == PROXY {
            continue;
        }
        for (capability, names) in [
            ("NET_ADMIN", &mut exposure.net_admin),
            ("NET_RAW", &mut exposure.net_raw),
            ("SYS_ADMIN", &mut exposure.sys_admin),
            ("SYS_PTRACE", &mut exposure.sys_ptrace),
        ] {
            if container.security_context.adds(capability) {
                names.push(container.name.clone());
            }
        }
    }
    for container in init_containers {
        if container.name != PROXY && !is_sidecar(container) {
            exposure.init_containers.push(ContainerUser::new(container, pod));
        }
    }
    exposure
}
