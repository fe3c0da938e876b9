//! Pods that ADD refuses, because rules would not redirect all their traffic. Pure.

use super::container_paths::possible_proxy_users;
use super::reason::Reason;
use crate::cni::Error;
use crate::config::{Config, ResolvedRedirect};
use crate::failure::Failure;
use crate::pod::facts::PodFacts;

/// RuntimeClasses whose sandboxes ignore redirect rules, unless the plugin entry has
/// `sandboxed-runtime-classes`. [gVisor](https://gvisor.dev/docs/architecture_guide/networking/)
/// and
/// [Kata](https://github.com/kata-containers/kata-containers/blob/main/docs/design/architecture/networking.md)
/// document these names and names with a suffix after a dash, such as `kata-qemu`. Both take the
/// packets from the pod's interface before the kernel applies the rules.
const SANDBOXED_CLASSES: [&str; 3] = ["gvisor", "kata", "runsc"];

/// Maximum number of containers that an error names for one reason.
const MAX_NAMED_CONTAINERS: usize = 5;

/// Why ADD refuses a pod. Only ADD refuses pods: a running pod keeps its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sandboxes of this RuntimeClass ignore redirect rules.
    Sandbox { runtime_class: String },
    /// The plugin entry has `strict-proxy-user`, and containers run or may run as the proxy's user.
    SharedProxyUser {
        /// Names of the containers, grouped by the reason of their path around the proxy.
        containers: Vec<(Reason, Vec<String>)>,
        proxy_uid: Option<u32>,
        proxy_gid: Option<u32>,
    },
}

/// Returns why ADD refuses a pod with these facts and this redirect. `None`: ADD accepts the pod.
pub fn find_refusal(
    config: &Config,
    facts: &PodFacts,
    resolved: &ResolvedRedirect,
) -> Option<Refusal> {
    if is_sandboxed(config, &facts.runtime_class) {
        return Some(Refusal::Sandbox { runtime_class: facts.runtime_class.clone() });
    }
    if !config.strict_proxy_user {
        return None;
    }
    let containers = possible_proxy_users(&facts.app_containers, &resolved.redirect);
    if containers.is_empty() {
        return None;
    }
    Some(Refusal::SharedProxyUser {
        containers,
        proxy_uid: resolved.redirect.proxy_uid,
        proxy_gid: resolved.redirect.proxy_gid,
    })
}

fn is_sandboxed(config: &Config, runtime_class: &str) -> bool {
    match &config.sandboxed_classes {
        Some(classes) => classes.iter().any(|class| matches_class(runtime_class, class)),
        None => SANDBOXED_CLASSES.iter().any(|class| matches_class(runtime_class, class)),
    }
}

/// Returns true if the RuntimeClass is named `class`, or `class` followed by a dash and a suffix.
/// An empty `class` matches no RuntimeClass.
fn matches_class(runtime_class: &str, class: &str) -> bool {
    if class.is_empty() {
        return false;
    }
    let Some(suffix) = runtime_class.strip_prefix(class) else { return false };
    suffix.is_empty() || suffix.starts_with('-')
}

impl Refusal {
    /// Returns the error with which ADD fails.
    pub fn error(&self) -> Error {
        match self {
            Refusal::Sandbox { runtime_class } => sandbox_error(runtime_class),
            Refusal::SharedProxyUser { containers, proxy_uid, proxy_gid } => {
                shared_user_error(containers, *proxy_uid, *proxy_gid)
            }
        }
    }
}

fn sandbox_error(runtime_class: &str) -> Error {
    let problem = format!(
        "the sandboxes of RuntimeClass {runtime_class} ignore redirect rules, so all connections \
         of the pod would bypass the proxy"
    );
    Error::new(Failure::SandboxedPod, problem)
}

/// Returns the error for containers that run or may run as the proxy's user. Lists them under the
/// same reasons as `linkerd cni bypass`.
fn shared_user_error(
    containers: &[(Reason, Vec<String>)],
    proxy_uid: Option<u32>,
    proxy_gid: Option<u32>,
) -> Error {
    let mut lists = Vec::new();
    for (reason, names) in containers {
        let named = names[..names.len().min(MAX_NAMED_CONTAINERS)].join(", ");
        lists.push(format!("{}: {named}", reason.label()));
    }
    let problem = format!(
        "containers run as the proxy's user ({}), or nothing proves that they cannot, so their \
         connections could bypass the proxy ({})",
        describe_ids(proxy_uid, proxy_gid),
        lists.join("; ")
    );
    Error::new(Failure::SharedProxyUser, problem)
}

fn describe_ids(uid: Option<u32>, gid: Option<u32>) -> String {
    let mut ids = Vec::new();
    if let Some(uid) = uid {
        ids.push(format!("UID {uid}"));
    }
    if let Some(gid) = gid {
        ids.push(format!("GID {gid}"));
    }
    ids.join(", ")
}
