//! Commands and versions of the CNI specification.

use std::fmt;

use serde::de::{IntoDeserializer as _, value};
use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::failure::Failure;

/// A command of the runtime, the value of `CNI_COMMAND`.
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
    /// Parses the value of `CNI_COMMAND`. `None` if the command is unknown.
    pub fn parse(text: &str) -> Option<Self> {
        Self::deserialize(text.into_deserializer()).map_err(|_: value::Error| ()).ok()
    }

    /// Returns the environment variables that the command requires, in the order in which
    /// `pkg/skel` checks them.
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

/// Supported versions, the same as those of upstream's plugin.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Newest supported version. The plugin always responds to VERSION with it, as `pkg/skel` does.
pub const CURRENT: &str = "1.1.0";

fn check_supported(version: &str) -> Result<(), Error> {
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    // Upstream's message contains the list as Go prints it, without commas.
    let supported = format!("{SUPPORTED:?}").replace(',', "");
    Err(Error::new(Failure::IncompatibleVersion, "incompatible CNI versions")
        .with_details(format!("config is {version:?}, plugin supports {supported}")))
}

/// Checks that the version is supported and has the command.
pub fn check(command: Command, version: &str) -> Result<(), Error> {
    let minimum = match command {
        Command::Check => "0.4.0",
        Command::Gc | Command::Status => "1.1.0",
        Command::Add | Command::Del | Command::Version => return check_supported(version),
    };
    let Some(parsed) = parse(version) else {
        let problem = format!(
            "invalid cniVersion {version:?}: expected numbers separated by dots, such as {CURRENT}"
        );
        return Err(Error::new(Failure::DecodingFailure, problem));
    };
    if Some(parsed) < parse(minimum) {
        return Err(command_not_allowed("config", command));
    }
    if Some(parsed) > parse(CURRENT) {
        return Err(command_not_allowed("plugin", command));
    }
    check_supported(version)
}

/// Returns the error for a command that does not exist in the version of the config or the plugin.
fn command_not_allowed(config_or_plugin: &str, command: Command) -> Error {
    let problem = format!("{config_or_plugin} version does not allow {command}");
    Error::new(Failure::IncompatibleVersion, problem)
}

/// Returns the response to VERSION.
pub fn response() -> String {
    let supported = SUPPORTED.join("\",\"");
    format!("{{\"cniVersion\":\"{CURRENT}\",\"supportedVersions\":[\"{supported}\"]}}")
}

/// Parses a version of up to three numbers. Missing numbers are 0, as in `pkg/version`.
fn parse(version: &str) -> Option<[i64; 3]> {
    let mut numbers = [0; 3];
    for (index, part) in version.split('.').enumerate() {
        *numbers.get_mut(index)? = part.parse().ok()?;
    }
    Some(numbers)
}
