//! The user of a container, and what its securityContext rules out. Pure.
//!
//! The redirect rules exempt the proxy's user, so the connections of every process with that user
//! bypass the proxy. A container may have the user from the start, or a process may get it later.

use serde::{Deserialize, Serialize};

use crate::kube::types::{Container, LinuxUser, Pod, SecurityContext};
use crate::redirect::Redirect;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    pub name: String,
    /// User and group from the securityContext. `None`: those of the image, which the pod's object
    /// does not have.
    uid: Option<i64>,
    gid: Option<i64>,
    /// Whatever is not ruled out may be so. Empty in the facts of an agent that does not know it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ruled_out: Vec<RuledOut>,
}

/// What a securityContext rules out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuledOut {
    /// An image that runs as root: the kubelet does not start the container (`runAsNonRoot`).
    RootImage,
    /// That a program gives the process another user or more capabilities, such as a set-user-ID
    /// file. Only `allowPrivilegeEscalation: false` sets `no_new_privs`, see
    /// [`AddNoNewPrivileges`].
    ///
    /// [`AddNoNewPrivileges`]: https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/securitycontext/util.go
    PrivilegeEscalation,
    /// That root takes on another user.
    Setuid,
    /// That root takes on another group.
    Setgid,
    /// That root sends packets past the rules.
    NetRaw,
}

/// How a container gets the user that the rules exempt for the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyUserWay {
    /// It has the proxy's user or group.
    Same,
    /// It is unknown whether it has: only the image names the user or the group.
    Image,
    /// It runs a set-user-ID or set-group-ID file.
    SetUserIdFile,
    /// It is root, and takes on any user or group.
    Root,
}

impl ContainerUser {
    pub fn new(container: &Container, pod: &Pod) -> ContainerUser {
        let (context, of_pod) = (&container.security_context, &pod.spec.security_context);
        ContainerUser {
            name: container.name.clone(),
            uid: context.run_as_user.or(of_pod.run_as_user),
            gid: context.run_as_group.or(of_pod.run_as_group),
            ruled_out: ruled_out(context, of_pod),
        }
    }

    /// Returns the container with the user that its status reports, where its securityContext names
    /// none.
    pub fn or_reported(&self, user: &LinuxUser) -> ContainerUser {
        ContainerUser { uid: self.uid.or(user.uid), gid: self.gid.or(user.gid), ..self.clone() }
    }

    /// Whether the rules exempt the container's connections.
    pub fn is_proxy_user(&self, redirect: &Redirect) -> bool {
        is_same_id(self.uid, redirect.proxy_uid) || is_same_id(self.gid, redirect.proxy_gid)
    }

    /// Returns each way on which the container's connections bypass the proxy as those of the
    /// proxy's user. Without a way, it is proven that none does.
    pub fn proxy_user_ways(&self, redirect: &Redirect) -> Vec<ProxyUserWay> {
        let mut ways = Vec::new();
        if self.is_proxy_user(redirect) {
            ways.push(ProxyUserWay::Same);
        } else if self.is_image_deciding(redirect) {
            ways.push(ProxyUserWay::Image);
        }
        if self.may_escalate() {
            ways.push(ProxyUserWay::SetUserIdFile);
        }
        if self.uid == Some(0) && self.root_takes_user(redirect) {
            ways.push(ProxyUserWay::Root);
        }
        ways
    }

    /// Whether a program may give the container another user, or more capabilities.
    pub fn may_escalate(&self) -> bool {
        !self.rules_out(RuledOut::PrivilegeEscalation)
    }

    /// Whether the container runs as root, and may send packets past the rules.
    pub fn is_root_with_net_raw(&self) -> bool {
        self.uid == Some(0) && !self.rules_out(RuledOut::NetRaw)
    }

    /// Whether only the image tells if the container has the proxy's user or group, or is a root
    /// that can get past the rules.
    fn is_image_deciding(&self, redirect: &Redirect) -> bool {
        if self.gid.is_none() && redirect.proxy_gid.is_some() {
            return true;
        }
        if self.uid.is_some() {
            return false;
        }
        let may_be_root = !self.rules_out(RuledOut::RootImage);
        let is_root_open = self.root_takes_user(redirect) || !self.rules_out(RuledOut::NetRaw);
        redirect.proxy_uid.is_some() || may_be_root && is_root_open
    }

    /// Whether root in this container can take on the proxy's user or group.
    fn root_takes_user(&self, redirect: &Redirect) -> bool {
        redirect.proxy_uid.is_some() && !self.rules_out(RuledOut::Setuid)
            || redirect.proxy_gid.is_some() && !self.rules_out(RuledOut::Setgid)
    }

    fn rules_out(&self, what: RuledOut) -> bool {
        self.ruled_out.contains(&what)
    }
}

/// Returns what the context of a container rules out, in a pod with the context `of_pod`.
fn ruled_out(context: &SecurityContext, of_pod: &SecurityContext) -> Vec<RuledOut> {
    let is_non_root = context.run_as_non_root.or(of_pod.run_as_non_root) == Some(true);
    let cannot_escalate = context.allow_privilege_escalation == Some(false);
    let mut ruled_out = Vec::new();
    for (is_ruled_out, what) in [
        (is_non_root, RuledOut::RootImage),
        (cannot_escalate, RuledOut::PrivilegeEscalation),
        (!context.may_have("SETUID"), RuledOut::Setuid),
        (!context.may_have("SETGID"), RuledOut::Setgid),
        (!context.may_have("NET_RAW"), RuledOut::NetRaw),
    ] {
        if is_ruled_out {
            ruled_out.push(what);
        }
    }
    ruled_out
}

fn is_same_id(id: Option<i64>, of_proxy: Option<u32>) -> bool {
    id.is_some() && id == of_proxy.map(i64::from)
}
