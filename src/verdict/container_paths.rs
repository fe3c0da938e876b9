//! The paths around the proxy that a pod's containers have, by their user and their capabilities.
//! Pure.

use super::reason::Reason;
use crate::pod::container_user::{ContainerUser, ProxyUserWay};
use crate::pod::exposure::Exposure;
use crate::pod::facts::ObjectFacts;
use crate::pod::observed::Observed;
use crate::redirect::Redirect;

/// Names of containers by the reason of their path.
#[derive(Debug, Default)]
struct NamesByReason(Vec<(Reason, Vec<String>)>);

impl NamesByReason {
    fn add(&mut self, reason: Reason, name: &str) {
        match self.0.iter_mut().find(|(found, _)| *found == reason) {
            Some((_, names)) => names.push(name.to_owned()),
            None => self.0.push((reason, vec![name.to_owned()])),
        }
    }

    /// Returns the names in the order of the reasons.
    fn sorted(mut self) -> Vec<(Reason, Vec<String>)> {
        self.0.sort_by_key(|(reason, _)| *reason as usize);
        self.0
    }
}

/// Returns the containers that may use the proxy's user, by the reason: those whose connections
/// bypass the proxy, and those of which that cannot be excluded.
pub fn possible_proxy_users(
    containers: &[ContainerUser],
    redirect: &Redirect,
) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    for container in containers {
        for way in container.proxy_user_ways(redirect) {
            names.add(way_reason(way, Reason::ProxyUser), &container.name);
        }
    }
    names.sorted()
}

/// Returns the paths of all containers of a pod that is redirected as `redirect` says: the names of
/// the containers by the reason.
pub fn container_paths(
    redirect: &Redirect,
    known: &ObjectFacts,
    observed: &Observed,
) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    for (containers, same_user) in [
        (&known.facts.app_containers, Reason::ProxyUser),
        (&known.exposure.init_containers, Reason::InitProxyUser),
    ] {
        for container in containers {
            let container = observed.user_of(container);
            let ways = container.proxy_user_ways(redirect);
            for way in &ways {
                names.add(way_reason(*way, same_user), &container.name);
            }
            if container.is_root_with_net_raw() && !ways.contains(&ProxyUserWay::Root) {
                names.add(Reason::RootContainer, &container.name);
            }
        }
    }
    add_capabilities(&mut names, &known.exposure);
    names.sorted()
}

/// Returns the paths of all containers that depend on no redirect: the names by the reason.
pub fn independent_container_paths(known: &ObjectFacts) -> Vec<(Reason, Vec<String>)> {
    let mut names = NamesByReason::default();
    let containers = known.facts.app_containers.iter();
    for container in containers.chain(&known.exposure.init_containers) {
        if container.may_escalate() {
            names.add(Reason::SetUserId, &container.name);
        }
    }
    add_capabilities(&mut names, &known.exposure);
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

/// `same_user`: the reason of a container that has the proxy's user.
fn way_reason(way: ProxyUserWay, same_user: Reason) -> Reason {
    match way {
        ProxyUserWay::Same => same_user,
        ProxyUserWay::Image => Reason::ImageUser,
        ProxyUserWay::SetUserIdFile => Reason::SetUserId,
        ProxyUserWay::Root => Reason::RootContainer,
    }
}
