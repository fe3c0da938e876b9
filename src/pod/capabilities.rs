//! Reads the Linux capabilities that a container's securityContext adds and drops. Pure.

use crate::kube::types::SecurityContext;

impl SecurityContext {
    /// Returns true if the securityContext adds the capability or makes the container privileged.
    pub fn adds(&self, capability: &str) -> bool {
        self.privileged || contains_capability(&self.capabilities.add, capability)
    }

    /// Returns true if the container has a capability that the runtime grants by default.
    pub fn may_have(&self, capability: &str) -> bool {
        self.adds(capability) || !contains_capability(&self.capabilities.drop, capability)
    }
}

/// Returns true if `names` contains the capability. Reads names as containerd and CRI-O do: case
/// and the prefix `CAP_` are ignored, and `ALL` means every capability.
fn contains_capability(names: &[String], capability: &str) -> bool {
    names.iter().any(|name| {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        name == capability || name == "ALL"
    })
}
