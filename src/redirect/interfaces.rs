//! Names of the interfaces on a pod's inner side, and the lists of them in the annotation and the
//! plugin entry.

use std::fmt;

use super::ports::InvalidElement;

/// Longest name in bytes: `IFNAMSIZ` of the kernel without the NUL.
const LENGTH_LIMIT: usize = 15;

/// Largest number of names in a list. Each name repeats the rules of the skipped outbound ports and
/// subnets.
pub const COUNT_LIMIT: usize = 8;

/// The interfaces to the pod's own network. Container runtimes name the second one `eth0`
/// (`defaultIfName` in <https://github.com/containerd/go-cni/blob/v1.1.13/opts.go>).
const OUTWARD: [&str; 2] = ["lo", "eth0"];

/// Names that no interface can have: directories of sysctls beside those of the interfaces
/// (`dev_valid_name` permits them, `devinet_sysctl_register` of Linux refuses them).
const SYSCTLS: [&str; 2] = ["all", "default"];

/// Describes the form of a list of interfaces, for error messages.
pub const GRAMMAR: &str = "a list of up to 8 names of interfaces inside the pod, comma-separated \
                           and without blanks, such as k6t-eth0,docker0";

/// Name of an interface that joins the pod to a network inside the pod, such as that of a virtual
/// machine or of Docker in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface(String);

impl Interface {
    /// Parses an element of a list. Rejects some names that the kernel accepts, so that a name
    /// means the same to all backends and needs no quotes: iptables reads a `+` at the end as "any
    /// interface with this start".
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
        } else if OUTWARD.contains(&text) {
            "is the pod's interface to its own network, not to one inside the pod"
        } else if SYSCTLS.contains(&text) {
            "is not the name of an interface: the kernel has settings of this name"
        } else {
            return Ok(Interface(text.to_owned()));
        };
        Err(InvalidElement { text, at_fault: text, why })
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

/// The error for a valid name behind the first [`COUNT_LIMIT`] ones.
pub fn too_many(text: &str) -> InvalidElement<'_> {
    InvalidElement { text, at_fault: text, why: "is one name too many: expected up to 8" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_iptables_and_nf_tables_read_alike_are_accepted() {
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
