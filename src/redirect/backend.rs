//! Ways to write redirect rules into the kernel, and the setting that selects one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The setting `iptables-mode`: which backends to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IptablesMode {
    /// The first usable backend of native, nft and legacy. Default, also for an empty value.
    #[default]
    Auto,
    /// nf_tables over netlink, without programs of the host.
    Native,
    /// `iptables-nft-restore`.
    Nft,
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-restore`, whichever variant that is on the host.
    Plain,
}

impl IptablesMode {
    /// Returns the backends to try, in this order.
    pub fn backends(self) -> &'static [Backend] {
        match self {
            IptablesMode::Auto => &[
                Backend::Native,
                Backend::Iptables(Variant::Nft),
                Backend::Iptables(Variant::Legacy),
            ],
            IptablesMode::Native => &[Backend::Native],
            IptablesMode::Nft => &[Backend::Iptables(Variant::Nft)],
            IptablesMode::Legacy => &[Backend::Iptables(Variant::Legacy)],
            IptablesMode::Plain => &[Backend::Iptables(Variant::Plain)],
        }
    }
}

/// A way to write rules into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Native,
    #[serde(untagged)]
    Iptables(Variant),
}

impl Backend {
    pub const ALL: [Backend; 4] = [
        Backend::Native,
        Backend::Iptables(Variant::Nft),
        Backend::Iptables(Variant::Legacy),
        Backend::Iptables(Variant::Plain),
    ];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Native => "native",
            Backend::Iptables(Variant::Nft) => "nft",
            Backend::Iptables(Variant::Legacy) => "legacy",
            Backend::Iptables(Variant::Plain) => "plain",
        })
    }
}

/// Variant of the host's iptables programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    Nft,
    Legacy,
    Plain,
}
