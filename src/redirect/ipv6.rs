//! Whether IPv6 is redirected (the chart's `disableIPv6`), and the address families of rules. Pure:
//! with `auto`, `firewall::rule_spec` looks whether the kernel has IPv6.

/// An address family, which has rules of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const ALL: &[Family] = &[Family::Ipv4, Family::Ipv6];
    pub const IPV4: &[Family] = &[Family::Ipv4];
}

/// Whether IPv6 is redirected: the key `ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    #[default]
    No,
    Yes,
    /// IPv6 is redirected in each netns with IPv6, also if the pod has no IPv6 address yet, unless
    /// the proxy listens on IPv4 only.
    Auto,
}
