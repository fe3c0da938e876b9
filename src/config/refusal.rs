//! Pods that ADD refuses, because rules would not redirect them.

use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::failure::Failure;

/// Names of RuntimeClasses that [gVisor](https://gvisor.dev/docs/architecture_guide/networking/) and
/// [Kata](https://github.com/kata-containers/kata-containers/blob/main/docs/design/architecture/networking.md)
/// document, or their first parts, as in `kata-qemu`. Both take the packets from the pod's interface
/// before the kernel's rules do.
const SANDBOXED_CLASSES: [&str; 3] = ["gvisor", "kata", "runsc"];
/// Number of containers that an error names.
const NAMED: usize = 10;

impl Config {
    /// Returns why ADD refuses the pod. Only ADD may: a running pod keeps its rules.
    pub fn refusal(&self, resolved: &ResolvedRedirect) -> Option<Error> {
        if let Some(error) = resolved.sandbox_error() {
            return Some(error);
        }
        let names = &resolved.exempt_containers;
        if !self.strict_proxy_user || names.is_empty() {
            return None;
        }
        let named = names[..names.len().min(NAMED)].join(", ");
        let ids = [("UID", resolved.redirect.proxy_uid), ("GID", resolved.redirect.proxy_gid)];
        let ids = ids.iter().filter_map(|(word, id)| Some(format!("{word} {}", (*id)?)));
        Some(Error::new(
            Failure::SharedProxyUser,
            format!(
                "containers run as the proxy's user ({}), so their connections would bypass the \
                 proxy: {named}",
                ids.collect::<Vec<_>>().join(", ")
            ),
        ))
    }

    /// Whether a pod with this RuntimeClass ignores rules: its name is one of the plugin entry or of
    /// [`SANDBOXED_CLASSES`], or begins with one and a dash.
    pub(super) fn is_sandboxed(&self, runtime_class: &str) -> bool {
        let is_named = |name: &str| {
            let rest = runtime_class.strip_prefix(name).filter(|_| !name.is_empty());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        match &self.sandboxed_classes {
            Some(names) => names.iter().any(|name| is_named(name)),
            None => SANDBOXED_CLASSES.into_iter().any(is_named),
        }
    }
}

impl ResolvedRedirect {
    pub fn sandbox_error(&self) -> Option<Error> {
        let class = self.sandboxed_by.as_ref()?;
        let problem = format!(
            "the sandboxes of RuntimeClass {class} ignore redirect rules, so all connections of the pod would bypass the proxy"
        );
        Some(Error::new(Failure::SandboxedPod, problem))
    }
}
