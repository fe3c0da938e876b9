//! What a container's securityContext says of its capabilities. Pure.

use crate::kube::types::SecurityContext;

impl SecurityContext {
    /// Whether the container has the capability because its author added it.
    pub fn adds(&self, capability: &str) -> bool {
        self.privileged || names_capability(&self.capabilities.add, capability)
    }

    /// Whether the container has the capability, if the runtime gives it to every container.
    pub fn may_have(&self, capability: &str) -> bool {
        self.adds(capability) || !names_capability(&self.capabilities.drop, capability)
    }
}

/// Whether the list names the capability, as containerd and CRI-O read it.
fn names_capability(list: &[String], capability: &str) -> bool {
    list.iter().any(|name| {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        name == capability || name == "ALL"
    })
}
