//! Versions of the CNI specification.

use super::error::{Error, code};

/// All versions that this plugin speaks, as upstream's.
pub const SUPPORTED: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

/// The newest of them; VERSION answers with it whatever was asked, as `pkg/skel` does.
pub const CURRENT: &str = "1.1.0";

/// What a result looks like, by the first version or the Go package (`pkg/types` 020,
/// 040, 100) of those that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 0.1.0 and 0.2.0: `ip4` and `ip6`.
    V020,
    /// 0.3.0 to 0.4.0: `ips`, each with its `version`.
    V040,
    /// 1.0.0 and 1.1.0: `ips`.
    V100,
}

/// The shape of a result of `version`; `None` for a version that nobody knows.
pub fn shape(version: &str) -> Option<Shape> {
    match version {
        "0.1.0" | "0.2.0" => Some(Shape::V020),
        "0.3.0" | "0.3.1" | "0.4.0" => Some(Shape::V040),
        "1.0.0" | "1.1.0" => Some(Shape::V100),
        _ => None,
    }
}

/// ADD and DEL: `version` must be one of [`SUPPORTED`], to the letter.
pub fn supported(version: &str) -> Result<(), Error> {
    if SUPPORTED.contains(&version) {
        return Ok(());
    }
    Err(
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").with_details(format!(
            "config is {version:?}, plugin supports {}",
            quoted()
        )),
    )
}

/// CHECK, GC and STATUS: also not older than `minimum`, in which `command` came.
pub fn allows(version: &str, minimum: &str, command: &str) -> Result<(), Error> {
    let parsed = parse(version).ok_or_else(|| {
        Error::new(
            code::DECODING_FAILURE,
            format!(
                "invalid cniVersion {version:?}: numbers with dots are wanted, such as {CURRENT}"
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
    supported(version)
}

/// What VERSION prints.
pub fn answer() -> String {
    format!(
        "{{\"cniVersion\":\"{CURRENT}\",\"supportedVersions\":[{}]}}",
        SUPPORTED.map(|version| format!("\"{version}\"")).join(",")
    )
}

/// Numbers that are not there are 0, as `pkg/version` has it.
fn parse(version: &str) -> Option<[i64; 3]> {
    let mut parsed = [0; 3];
    for (place, part) in version.split('.').enumerate() {
        *parsed.get_mut(place)? = part.parse().ok()?;
    }
    Some(parsed)
}

fn quoted() -> String {
    format!(
        "[{}]",
        SUPPORTED.map(|version| format!("\"{version}\"")).join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_refused_as_the_reference_implementation_refuses_them() {
        let cases = [
            ("1.1.0", None),
            ("0.3.1", Some((1, "config version does not allow STATUS"))),
            ("1.0.9", Some((1, "config version does not allow STATUS"))),
            ("1.1.1", Some((1, "plugin version does not allow STATUS"))),
            ("2.0.0", Some((1, "plugin version does not allow STATUS"))),
            ("1", Some((1, "config version does not allow STATUS"))),
            ("1.1", Some((1, "incompatible CNI versions"))),
            ("-1.0.0", Some((1, "config version does not allow STATUS"))),
            (
                "4294967296.0.0",
                Some((1, "plugin version does not allow STATUS")),
            ),
            (
                "garbage",
                Some((
                    6,
                    "invalid cniVersion \"garbage\": numbers with dots are wanted, such as 1.1.0",
                )),
            ),
        ];
        for (version, wanted) in cases {
            let got = allows(version, "1.1.0", "STATUS").err();
            let got = got.as_ref().map(|error| (error.code, error.msg.as_str()));
            assert_eq!(got, wanted, "{version}");
        }
        assert_eq!(
            allows("0.4.1", "0.4.0", "CHECK").unwrap_err().msg,
            "incompatible CNI versions"
        );
    }

    #[test]
    fn add_takes_versions_to_the_letter() {
        for version in ["1.0", "v1.0.0", "garbage", "9.8.7", " 1.0.0"] {
            assert_eq!(supported(version).unwrap_err().code, 1, "{version}");
        }
        assert_eq!(
            supported("9.8.7").unwrap_err().details,
            "config is \"9.8.7\", plugin supports [\"0.1.0\" \"0.2.0\" \"0.3.0\" \"0.3.1\" \
             \"0.4.0\" \"1.0.0\" \"1.1.0\"]"
        );
    }
}
