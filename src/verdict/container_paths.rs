//! Finds the containers that bypass or may bypass the proxy through their user or capabilities.
//! Pure.

use super::reason::Reason;
use crate::pod::container_user::{ContainerUser, ProxyUserAccess};
use crate::pod::exposure::Exposure;
use crate::pod::facts::ObjectFacts;
use crate::pod::observed::Observed;
use crate::redirect::Redirect;

/// Names of containers, grouped by the reason of their path.
#[derive(Debug, Default)]
struct NamesByReason(Vec<(Reason, Vec<String>)>);

impl NamesByReason {
    fn add(&mut self, reason: Reason, name: &str) {
        match self.0.iter_mut().find(|(found, _)| *found == reason) {
            Some((_, names)) => names.push(name.to_owned()),
            None => self.0.push((reason, vec![name.to_owned()])),
        }
    }

    /// Returns the groups in the order of [`Reason`]'s variants.
    fn sorted(mut self) -> Vec<(Reason, Vec<String>)> {
        self.0.sort_by_key(|(reason, _)| *reason as usize);
        self.0
    }
}

/// Returns the names of the containers that run or may run as the proxy's user, grouped by reason.
pub fn possible_proxy_users(
    containers: &[ContainerUser],
    redirect: &Redirect,
) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    for container in containers {
        for access in container.proxy_user_access(redirect) {
            names.add(access_reason(access, Reason::ProxyUser), &container.name);
        }
    }
    names.sorted()
}

/// Returns the names of the containers of a redirected pod that bypass or may bypass the proxy,
/// grouped by reason.
pub fn container_paths(
    redirect: &Redirect,
    object_facts: &ObjectFacts,
    observed: &Observed,
) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    for container in &object_facts.facts.app_containers {
        let container = observed.with_reported_user(container);
        add_user(&mut names, &container, redirect, Reason::ProxyUser);
    }
    for container in &object_facts.exposure.init_containers {
        let container = observed.with_reported_user(container);
        add_user(&mut names, &container, redirect, Reason::InitProxyUser);
    }
    add_capabilities(&mut names, &object_facts.exposure);
    names.sorted()
}

/// Adds the container under each reason that its user gives. `same_id_reason` applies if it starts
/// with the proxy's UID or GID.
fn add_user(
    names: &mut NamesByReason,
    container: &ContainerUser,
    redirect: &Redirect,
    same_id_reason: Reason,
) {
    let accesses = container.proxy_user_access(redirect);
    for access in &accesses {
        names.add(access_reason(*access, same_id_reason), &container.name);
    }
    // The access as root has the same reason, under which the container is named only once.
    let is_named_as_root = accesses.contains(&ProxyUserAccess::Root);
    if container.is_root_with_net_raw() && !is_named_as_root {
        names.add(Reason::RootContainer, &container.name);
    }
}

/// Returns the names of the containers that may bypass the proxy whatever the pod's redirect is,
/// grouped by reason.
pub fn independent_container_paths(object_facts: &ObjectFacts) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    let containers = object_facts.facts.app_containers.iter();
    for container in containers.chain(&object_facts.exposure.init_containers) {
        if container.may_escalate() {
            names.add(Reason::SetUserId, &container.name);
        }
    }
    add_capabilities(&mut names, &object_facts.exposure);
    names.sorted()
}

fn add_capabilities(names: &mut NamesByReason, exposure: &Exposure) {
    for (reason, containers) in [
        (Reason::NetAdmin, &exposure.net_admin),
        (Reason::NetRaw, &exposure.net_raw),
        (Reason::SysAdmin, &exposure.sys_admin),
        (Reason::SysPtrace, &exposure.sys_ptrace),
    ] {
        for name in containers {
            names.add(reason, name);
        }
    }
}

/// Returns the reason of a container with this access. `same_id_reason` applies to a container that
/// starts with the proxy's UID or GID.
fn access_reason(access: ProxyUserAccess, same_id_reason: Reason) -> Reason {
    match access {
        ProxyUserAccess::SameId => same_id_reason,
        ProxyUserAccess::ImageUser => Reason::ImageUser,
        ProxyUserAccess::SetUserIdFile => Reason::SetUserId,
        ProxyUserAccess::Root => Reason::RootContainer,
    }
}
