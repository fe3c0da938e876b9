//! Versions of the CNI specification.

use super::error::{Error, code};

/// Versions that this plugin supports, the same as upstream's.
pub const SUPPORTED: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Newest supported version. VERSION always responds with it, as `pkg/skel` does.
pub const CURRENT: &str = "1.1.0";

/// Format of a result, which several versions share. Named after the Go package for it
/// (`pkg/types` 020, 040, 100).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFormat {
    /// 0.1.0 and 0.2.0: `ip4` and `ip6`.
    V020,
    /// 0.3.0 to 0.4.0: `ips`, each with its `version`.
    V040,
    /// 1.0.0 and 1.1.0: `ips`.
    V100,
}

/// Returns the format of a result of `version`, or `None` for an unknown version.
pub fn result_format(version: &str) -> Option<ResultFormat> {
    match version {
        "0.1.0" | "0.2.0" => Some(ResultFormat::V020),
        "0.3.0" | "0.3.1" | "0.4.0" => Some(ResultFormat::V040),
        "1.0.0" | "1.1.0" => Some(ResultFormat::V100),
        _ => None,
    }
}

/// Checks the `cniVersion` of an ADD or DEL: exactly the text of one of [`SUPPORTED`].
pub fn check_supported(version: &str) -> Result<(), Error> {
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    Err(Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
        .with_details(format!("config is {version:?}, plugin supports {}", supported_as_text())))
}

/// Checks the version of CHECK, GC and STATUS: it must be supported and not older than
/// `minimum`, which introduced `command`.
pub fn check_command(version: &str, minimum: &str, command: &str) -> Result<(), Error> {
    let parsed = parse(version).ok_or_else(|| {
        Error::new(
            code::DECODING_FAILURE,
            format!(
                "invalid cniVersion {version:?}: expected numbers separated by dots, such as {CURRENT}"
            ),
        )
    })?;
    if Some(parsed) < parse(minimum) {
        return Err(Error::new(
            code::INCOMPATIBLE_VERSION,
            format!("config version does not allow {command}"),
        ));
    }
    if Some(parsed) > parse(CURRENT) {
        return Err(Error::new(
            code::INCOMPATIBLE_VERSION,
            format!("plugin version does not allow {command}"),
        ));
    }
    check_supported(version)
}

/// Returns the response to VERSION.
pub fn response() -> String {
    format!(
        "{{\"cniVersion\":\"{CURRENT}\",\"supportedVersions\":[{}]}}",
        SUPPORTED.map(|version| format!("\"{version}\"")).join(",")
    )
}

/// Parses up to three numbers. Missing numbers are 0, as in `pkg/version`.
fn parse(version: &str) -> Option<[i64; 3]> {
    let mut parsed = [0; 3];
    for (place, part) in version.split('.').enumerate() {
        *parsed.get_mut(place)? = part.parse().ok()?;
    }
    Some(parsed)
}

fn supported_as_text() -> String {
    format!("[{}]", SUPPORTED.map(|version| format!("\"{version}\"")).join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_rejected_as_by_the_reference_implementation() {
        let cases = [
            ("1.1.0", None),
            ("0.3.1", Some((1, "config version does not allow STATUS"))),
            ("1.0.9", Some((1, "config version does not allow STATUS"))),
            ("1.1.1", Some((1, "plugin version does not allow STATUS"))),
            ("2.0.0", Some((1, "plugin version does not allow STATUS"))),
            ("1", Some((1, "config version does not allow STATUS"))),
            ("1.1", Some((1, "incompatible CNI versions"))),
            ("-1.0.0", Some((1, "config version does not allow STATUS"))),
            ("4294967296.0.0", Some((1, "plugin version does not allow STATUS"))),
            (
                "garbage",
                Some((
                    6,
                    "invalid cniVersion \"garbage\": expected numbers separated by dots, such as 1.1.0",
                )),
            ),
        ];
        for (version, wanted) in cases {
            let got = check_command(version, "1.1.0", "STATUS").err();
            let got = got.as_ref().map(|error| (error.code, error.msg.as_str()));
            assert_eq!(got, wanted, "{version}");
        }
        assert_eq!(
            check_command("0.4.1", "0.4.0", "CHECK").unwrap_err().msg,
            "incompatible CNI versions"
        );
    }

    #[test]
    fn add_accepts_only_the_exact_text_of_a_version() {
        for version in ["1.0", "v1.0.0", "garbage", "9.8.7", " 1.0.0"] {
            assert_eq!(check_supported(version).unwrap_err().code, 1, "{version}");
        }
        assert_eq!(
            check_supported("9.8.7").unwrap_err().details,
            "config is \"9.8.7\", plugin supports [\"0.1.0\" \"0.2.0\" \"0.3.0\" \"0.3.1\" \
             \"0.4.0\" \"1.0.0\" \"1.1.0\"]"
        );
    }
}
