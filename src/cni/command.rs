//! The commands of the CNI specification.

use std::fmt;

use serde::de::{IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Command {
    #[default]
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Command {
    pub fn parse(text: &str) -> Option<Self> {
        Self::deserialize(text.into_deserializer()).map_err(|_: value::Error| ()).ok()
    }

    /// Environment variables that the command requires, in the order in which `pkg/skel`
    /// checks them.
    pub fn required(self) -> &'static [&'static str] {
        match self {
            Command::Add | Command::Check => {
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
            }
            Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Command::Gc | Command::Status => &["CNI_PATH"],
            Command::Version => &[],
        }
    }
}
