//! Ways to write redirect rules into the kernel, and the setting that selects one.

use std::{fmt, slice};

use serde::de::{IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// nf_tables over netlink, without programs of the host.
    Native,
    /// `iptables-nft-restore`.
    Nft,
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-restore`, whichever variant that is on the host.
    Plain,
}

impl Backend {
    pub const ALL: [Backend; 4] = [Backend::Native, Backend::Nft, Backend::Legacy, Backend::Plain];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The setting `iptables-mode`: which backends to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IptablesMode {
    /// The first usable backend of native, nft and legacy. Default, also for an empty value.
    #[default]
    Auto,
    Only(Backend),
}

impl IptablesMode {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "auto" => Some(IptablesMode::Auto),
            name => {
                let named = Backend::deserialize(name.into_deserializer());
                named.map(IptablesMode::Only).map_err(|_: value::Error| ()).ok()
            }
        }
    }

    pub fn backends(&self) -> &[Backend] {
        match self {
            IptablesMode::Auto => &[Backend::Native, Backend::Nft, Backend::Legacy],
            IptablesMode::Only(backend) => slice::from_ref(backend),
        }
    }
}
