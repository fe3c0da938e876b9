//! Determines from a container's securityContext whether it can run as the proxy's user. Pure.
//!
//! The redirect rules exempt the proxy's UID and GID, so connections of every process with one of
//! these IDs bypass the proxy. A container may start with such an ID, or a process may get it
//! later.

use serde::{Deserialize, Serialize};

use crate::kube::types::{Container, LinuxUser, Pod, SecurityContext};
use crate::redirect::Redirect;

/// The user of a container, and the ways around the proxy that its securityContext rules out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    pub name: String,
    /// UID from the securityContext. `None`: the image sets the user, and the pod object does not
    /// contain it.
    uid: Option<i64>,
    /// GID from the securityContext. `None`: the image sets the group.
    gid: Option<i64>,
    /// What the securityContext rules out. Everything else must be assumed to be possible. Empty if
    /// an older agent wrote the facts, because it does not know this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ruled_out: Vec<RuledOut>,
}

/// A possibility that a securityContext can rule out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuledOut {
    /// The image's user is root. With `runAsNonRoot`, the kubelet does not start such a container.
    RootImage,
    /// A process gets another user or more capabilities by executing a file, such as a set-user-ID
    /// file. Only `allowPrivilegeEscalation: false` sets `no_new_privs`, which prevents this: see
    /// [`AddNoNewPrivileges`].
    ///
    /// [`AddNoNewPrivileges`]: https://github.com/kubernetes/kubernetes/blob/v1.35.4/pkg/securitycontext/util.go
    PrivilegeEscalation,
    /// Root changes its user ID.
    Setuid,
    /// Root changes its group ID.
    Setgid,
    /// Root sends raw packets, which the rules do not redirect.
    NetRaw,
}

/// A way in which a container can run as the proxy's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyUserAccess {
    /// The container starts with the proxy's UID or GID.
    SameId,
    /// Unknown: only the image sets the user or group, which may be the proxy's or root.
    ImageUser,
    /// The container can execute a set-user-ID or set-group-ID file.
    SetUserIdFile,
    /// The container runs as root and can change its user or group ID.
    Root,
}

impl ContainerUser {
    pub fn new(container: &Container, pod: &Pod) -> ContainerUser {
        let context = &container.security_context;
        let pod_context = &pod.spec.security_context;
        ContainerUser {
            name: container.name.clone(),
            uid: context.run_as_user.or(pod_context.run_as_user),
            gid: context.run_as_group.or(pod_context.run_as_group),
            ruled_out: ruled_out(context, pod_context),
        }
    }

    /// Returns the container with the UID and GID that its status reports, unless its
    /// securityContext sets them.
    pub fn with_reported_user(&self, user: &LinuxUser) -> ContainerUser {
        ContainerUser { uid: self.uid.or(user.uid), gid: self.gid.or(user.gid), ..self.clone() }
    }

    /// Returns true if the container starts with the UID or GID that the rules exempt.
    pub fn is_proxy_user(&self, redirect: &Redirect) -> bool {
        is_same_id(self.uid, redirect.proxy_uid) || is_same_id(self.gid, redirect.proxy_gid)
    }

    /// Returns every way in which the container can run as the proxy's user, so that its
    /// connections bypass the proxy. An empty list proves that there is none.
    pub fn proxy_user_access(&self, redirect: &Redirect) -> Vec<ProxyUserAccess> {
        let mut access = Vec::new();
        if self.is_proxy_user(redirect) {
            access.push(ProxyUserAccess::SameId);
        } else if self.depends_on_image(redirect) {
            access.push(ProxyUserAccess::ImageUser);
        }
        if self.may_escalate() {
            access.push(ProxyUserAccess::SetUserIdFile);
        }
        if self.uid == Some(0) && self.root_can_become_proxy(redirect) {
            access.push(ProxyUserAccess::Root);
        }
        access
    }

    /// Returns true if a process may get another user or more capabilities by executing a file.
    pub fn may_escalate(&self) -> bool {
        !self.rules_out(RuledOut::PrivilegeEscalation)
    }

    /// Returns true if the container runs as root and may send raw packets.
    pub fn is_root_with_net_raw(&self) -> bool {
        self.uid == Some(0) && !self.rules_out(RuledOut::NetRaw)
    }

    /// Returns true if only the image tells whether the container runs with the proxy's UID or GID,
    /// or as root that can bypass the rules.
    fn depends_on_image(&self, redirect: &Redirect) -> bool {
        if self.gid.is_none() && redirect.proxy_gid.is_some() {
            return true;
        }
        if self.uid.is_some() {
            return false;
        }
        if redirect.proxy_uid.is_some() {
            return true;
        }
        let may_be_root = !self.rules_out(RuledOut::RootImage);
        let root_can_bypass =
            self.root_can_become_proxy(redirect) || !self.rules_out(RuledOut::NetRaw);
        may_be_root && root_can_bypass
    }

    /// Returns true if root in this container can change to the proxy's UID or GID.
    fn root_can_become_proxy(&self, redirect: &Redirect) -> bool {
        let can_change_user = redirect.proxy_uid.is_some() && !self.rules_out(RuledOut::Setuid);
        let can_change_group = redirect.proxy_gid.is_some() && !self.rules_out(RuledOut::Setgid);
        can_change_user || can_change_group
    }

    fn rules_out(&self, what: RuledOut) -> bool {
        self.ruled_out.contains(&what)
    }
}

/// Returns what the securityContexts of a container and its pod rule out.
fn ruled_out(context: &SecurityContext, pod_context: &SecurityContext) -> Vec<RuledOut> {
    let is_non_root = context.run_as_non_root.or(pod_context.run_as_non_root) == Some(true);
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

fn is_same_id(id: Option<i64>, proxy_id: Option<u32>) -> bool {
    id.is_some() && id == proxy_id.map(i64::from)
}
