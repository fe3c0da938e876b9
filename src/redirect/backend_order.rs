//! The backends that write redirect rules into the kernel, and the order in which they are tried
//! for each value of the chart's `iptablesMode`. `firewall::apply` tries them.
//! `firewall::iptables::host_programs` finds the programs on the host.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A way to write redirect rules into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// nf_tables over netlink, without programs of the host.
    Native,
    /// `iptables-nft-restore`.
    Nft,
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-restore`, in the variant that is installed on the host.
    Plain,
}

impl Backend {
    pub const ALL: [Backend; 4] = [Backend::Native, Backend::Nft, Backend::Legacy, Backend::Plain];

    /// The backends of the default mode `auto`. The first usable one writes the rules.
    pub const AUTO: &[Backend] = &[Backend::Native, Backend::Nft, Backend::Legacy];

    /// Returns the backends to try in order for a value of the plugin entry's `iptables-mode`.
    /// `None`: the value is unknown.
    pub fn for_mode(mode: &str) -> Option<&'static [Backend]> {
        Some(match mode {
            "" | "auto" => Backend::AUTO,
            "native" => &[Backend::Native],
            "nft" => &[Backend::Nft],
            "legacy" => &[Backend::Legacy],
            "plain" => &[Backend::Plain],
            _ => return None,
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
