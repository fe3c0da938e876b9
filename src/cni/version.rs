//! Versions of the CNI specification.

use super::command::Command;
use super::error::Error;
use crate::failure::Failure;

/// Versions that this plugin supports, the same as upstream's.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Newest supported version. VERSION always responds with it, as `pkg/skel` does.
pub const CURRENT: &str = "1.1.0";

/// Checks the `cniVersion` of an ADD or DEL: exactly the text of one of [`SUPPORTED`].
pub fn check_supported(version: &str) -> Result<(), Error> {
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    // As Go prints a list of strings.
    let supported = format!("{SUPPORTED:?}").replace(',', "");
    Err(Error::new(Failure::IncompatibleVersion, "incompatible CNI versions")
        .with_details(format!("config is {version:?}, plugin supports {supported}")))
}

/// Checks the version of CHECK, GC and STATUS: it must be supported and not older than
/// `minimum`, which introduced `command`.
pub fn check_command(version: &str, minimum: &str, command: Command) -> Result<(), Error> {
    let parsed = parse(version).ok_or_else(|| {
        let problem = format!(
            "invalid cniVersion {version:?}: expected numbers separated by dots, such as {CURRENT}"
        );
        Error::new(Failure::DecodingFailure, problem)
    })?;
    let refuse = |whose: &str| {
        let problem = format!("{whose} version does not allow {command}");
        Err(Error::new(Failure::IncompatibleVersion, problem))
    };
    match Some(parsed) {
        parsed if parsed < parse(minimum) => refuse("config"),
        parsed if parsed > parse(CURRENT) => refuse("plugin"),
        _ => check_supported(version),
    }
}

pub fn response() -> String {
    let supported = SUPPORTED.join("\",\"");
    format!("{{\"cniVersion\":\"{CURRENT}\",\"supportedVersions\":[\"{supported}\"]}}")
}

/// Parses up to three numbers. Missing numbers are 0, as in `pkg/version`.
fn parse(version: &str) -> Option<[i64; 3]> {
    let mut parsed = [0; 3];
    for (place, part) in version.split('.').enumerate() {
        *parsed.get_mut(place)? = part.parse().ok()?;
    }
    Some(parsed)
}
