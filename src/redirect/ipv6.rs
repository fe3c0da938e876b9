//! The setting that enables IPv6 (the chart's `disableIPv6`), and the address families of rules.
//! Pure: for `auto`, `firewall::rule_spec` checks whether the kernel supports IPv6.

/// An address family. Each family has its own rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const ALL: &[Family] = &[Family::Ipv4, Family::Ipv6];
    pub const IPV4: &[Family] = &[Family::Ipv4];
}

/// Whether IPv6 is redirected: the value of the plugin entry's `ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    #[default]
    No,
    Yes,
    /// IPv6 is redirected if the netns supports it and the proxy does not listen on IPv4 only. The
    /// pod may get its IPv6 address later.
    Auto,
}
