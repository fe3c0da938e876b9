//! Address families of the cluster, and addresses that follow from them.

use std::env;
use std::fs;
use std::path::PathBuf;

/// Default state directory of `scripts/cluster`, which the environment variable `CLUSTER_STATE`
/// replaces.
const STATE: &str = "/var/lib/linkerd2-cni-cluster";

const SETTINGS: &str = "settings";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Returns the families of the cluster's pods and services. A cluster without this setting has
    /// IPv4.
    pub fn all() -> Vec<Family> {
        match setting("CLUSTER_FAMILIES").as_str() {
            "ipv6" => vec![Family::Ipv6],
            "dual" => vec![Family::Ipv4, Family::Ipv6],
            _ => vec![Family::Ipv4],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        }
    }

    pub fn includes(self, ip: &str) -> bool {
        ip.contains(':') == (self == Family::Ipv6)
    }

    /// Returns the socket address of all addresses of the family, for a listener.
    pub fn any(self, port: u16) -> String {
        self.to(if self == Family::Ipv6 { "::" } else { "0.0.0.0" }, port)
    }

    /// Returns the socket address of the loopback address of the family.
    pub fn local(self, port: u16) -> String {
        self.to(if self == Family::Ipv6 { "::1" } else { "127.0.0.1" }, port)
    }

    /// Returns the socket address of an address reserved for documentation, which no host has.
    pub fn nobody(self) -> String {
        self.to(if self == Family::Ipv6 { "2001:db8::3" } else { "192.0.2.3" }, 20001)
    }

    /// Formats a socket address of this family.
    pub fn to(self, ip: &str, port: u16) -> String {
        match self {
            Family::Ipv4 => format!("{ip}:{port}"),
            Family::Ipv6 => format!("[{ip}]:{port}"),
        }
    }
}

/// Returns the socket addresses of all addresses of the cluster's families, for listeners.
pub fn any(port: u16) -> Vec<String> {
    Family::all().into_iter().map(|family| family.any(port)).collect()
}

/// Returns one of the cluster's settings. Empty if it is not set.
pub fn setting(name: &str) -> String {
    let settings = fs::read_to_string(state().join(SETTINGS)).unwrap_or_default();
    let prefix = format!("{name}=");
    let value = settings.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_default().trim_matches('\'').to_owned()
}

/// Returns the state directory of the cluster.
pub fn state() -> PathBuf {
    env::var_os("CLUSTER_STATE").map_or_else(|| STATE.into(), PathBuf::from)
}
