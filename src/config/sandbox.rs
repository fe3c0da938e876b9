//! Pods whose sandbox has a network stack of its own, so that rules in the pod's netns have no effect.

use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::failure::Failure;

/// Names of RuntimeClasses that [gVisor](https://gvisor.dev/docs/architecture_guide/networking/) and
/// [Kata](https://github.com/kata-containers/kata-containers/blob/main/docs/design/architecture/networking.md)
/// document, or their first parts, as in `kata-qemu`. Both take the packets from the pod's interface
/// before the kernel's rules do.
pub(super) const CLASSES: [&str; 3] = ["gvisor", "kata", "runsc"];

impl Config {
    /// Returns why ADD refuses the pod. Only ADD may: a running pod keeps its rules.
    pub fn refusal(&self, resolved: &ResolvedRedirect) -> Option<Error> {
        resolved.sandbox_error().or_else(|| self.shared_user(resolved))
    }

    /// Whether a pod with this RuntimeClass ignores rules: its name is one of the plugin entry or of
    /// [`CLASSES`], or begins with one and a dash.
    pub(super) fn is_sandboxed(&self, runtime_class: &str) -> bool {
        let is_named = |name: &str| {
            let rest = runtime_class.strip_prefix(name).filter(|_| !name.is_empty());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        match &self.sandboxed_classes {
            Some(names) => names.iter().any(|name| is_named(name)),
            None => CLASSES.into_iter().any(is_named),
        }
    }
}

impl ResolvedRedirect {
    /// Returns the error for a pod whose sandbox ignores the rules.
    pub fn sandbox_error(&self) -> Option<Error> {
        let class = self.sandboxed_by.as_ref()?;
        let problem = format!(
            "the sandboxes of RuntimeClass {class} ignore redirect rules, so all connections of the pod would bypass the proxy"
        );
        Some(Error::new(Failure::SandboxedPod, problem))
    }
}
