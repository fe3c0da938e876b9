//! Names of interfaces to networks inside the pod, such as that of a virtual machine. The
//! annotation and the plugin entry list them.

use std::fmt;

use super::ports::InvalidElement;

/// Maximum length of a name in bytes: `IFNAMSIZ` of the kernel without the NUL.
const LENGTH_LIMIT: usize = 15;

/// Maximum number of names in a list. Each name repeats the rules for the skipped outbound ports
/// and subnets.
pub const COUNT_LIMIT: usize = 8;

/// The loopback interface and the pod's interface to the cluster's network. Container runtimes name
/// the latter `eth0` (`defaultIfName` in
/// <https://github.com/containerd/go-cni/blob/v1.1.13/opts.go>).
const POD_INTERFACES: [&str; 2] = ["lo", "eth0"];

/// Names that no interface can have, because sysctl directories have them. Linux accepts them in
/// `dev_valid_name`, but rejects them in `devinet_sysctl_register`.
const SYSCTL_NAMES: [&str; 2] = ["all", "default"];

/// Describes valid lists of interfaces, for error messages.
pub const GRAMMAR: &str = "a list of up to 8 names of interfaces inside the pod, comma-separated \
                           and without blanks, such as k6t-eth0,docker0";

/// Name of an interface to a network inside the pod, such as that of a virtual machine or of Docker
/// in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface(String);

impl Interface {
    /// Parses an element of a list.
    ///
    /// Rejects some names that the kernel accepts, so that a name needs no quotes and means the
    /// same to all backends. For example, iptables reads a trailing `+` as a wildcard.
    pub fn parse(text: &str) -> Result<Self, InvalidElement<'_>> {
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let why = if text.contains(char::is_whitespace) {
            "contains blanks: remove them"
        } else if text.is_empty() || !text.bytes().all(is_allowed) {
            "is not the name of an interface: expected letters, digits, dots, underscores and dashes"
        } else if text.starts_with(['.', '-']) {
            "is not the name of an interface: expected a letter, digit or underscore at the start"
        } else if text.len() > LENGTH_LIMIT {
            "is not the name of an interface: it is longer than 15 bytes"
        } else if POD_INTERFACES.contains(&text) {
            "is the pod's interface to its own network, not to one inside the pod"
        } else if SYSCTL_NAMES.contains(&text) {
            "is not the name of an interface: the kernel has settings of this name"
        } else {
            return Ok(Interface(text.to_owned()));
        };
        Err(InvalidElement { text, invalid_part: text, why })
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the error for a valid name after the first [`COUNT_LIMIT`] names.
pub fn too_many(text: &str) -> InvalidElement<'_> {
    InvalidElement { text, invalid_part: text, why: "is one name too many: expected up to 8" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_iptables_and_nf_tables_read_alike_are_accepted() {
        for text in ["k6t-eth0", "docker0", "br-1a2b3c4d5e6f", "eth0.100", "_a", "0", "eth1"] {
            assert_eq!(Interface::parse(text).unwrap().name(), text);
        }
        for (text, why) in [
            ("", "is not the name of an interface"),
            ("docker+", "is not the name of an interface"),
            ("+", "is not the name of an interface"),
            ("a/b", "is not the name of an interface"),
            ("a:1", "is not the name of an interface"),
            ("!docker0", "is not the name of an interface"),
            ("d\"ocker0", "is not the name of an interface"),
            ("dö", "is not the name of an interface"),
            (".", "expected a letter, digit or underscore at the start"),
            ("-docker0", "expected a letter, digit or underscore at the start"),
            (" docker0", "contains blanks"),
            ("docker\t0", "contains blanks"),
            ("br-1a2b3c4d5e6f7", "longer than 15 bytes"),
            ("lo", "the pod's interface to its own network"),
            ("eth0", "the pod's interface to its own network"),
            ("all", "is not the name of an interface"),
            ("default", "is not the name of an interface"),
        ] {
            let error = Interface::parse(text).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(error.text, text);
        }
    }
}
