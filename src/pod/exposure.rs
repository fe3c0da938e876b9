//! Finds the containers whose user or capabilities let traffic bypass the redirect rules. Pure.

use serde::{Deserialize, Serialize};

use super::container_user::ContainerUser;
use super::containers::{VALIDATOR, is_sidecar};
use super::mesh::PROXY;
use crate::kube::types::{Container, Pod};

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
    let mut exposure = Exposure::default();
    for container in spec.containers.iter().flatten() {
        if container.name != PROXY {
            exposure.add_capabilities(container);
        }
    }
    for container in &spec.init_containers {
        if container.name == PROXY || container.name == VALIDATOR {
            continue;
        }
        exposure.add_capabilities(container);
        if !is_sidecar(container) {
            exposure.init_containers.push(ContainerUser::new(container, pod));
        }
    }
    for container in &spec.ephemeral_containers {
        if container.name != PROXY {
            exposure.add_capabilities(container);
        }
    }
    exposure
}

impl Exposure {
    /// Adds the container to the lists of those capabilities that its securityContext adds.
    fn add_capabilities(&mut self, container: &Container) {
        for (capability, names) in [
            ("NET_ADMIN", &mut self.net_admin),
            ("NET_RAW", &mut self.net_raw),
            ("SYS_ADMIN", &mut self.sys_admin),
            ("SYS_PTRACE", &mut self.sys_ptrace),
        ] {
            if container.security_context.adds(capability) {
                names.push(container.name.clone());
            }
        }
    }
}
