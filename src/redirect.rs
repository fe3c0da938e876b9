//! Describes which connections of a pod are redirected, and generates the rules that redirect them.
//! Pure: [`crate::firewall`] writes the rules and checks them.

pub mod backend_order;
pub mod interfaces;
pub mod ipv6;
pub mod ports;
pub mod rules;

use std::net::IpAddr;

use ipnet::IpNet;

use interfaces::Interface;
pub use ipv6::{Family, Ipv6};
use ports::PortRange;

/// Which connections of a pod are redirected to its proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// Port on which the proxy accepts inbound connections, usually 4143.
    pub inbound_port: u16,
    /// Port on which the proxy accepts outbound connections, usually 4140.
    pub outbound_port: u16,
    /// User ID of the proxy. Connections of this user are not redirected.
    pub proxy_uid: Option<u32>,
    /// Group ID of the proxy. Connections of this group are not redirected.
    pub proxy_gid: Option<u32>,
    /// Inbound ports to redirect. Empty means all ports.
    pub ports_to_redirect: Vec<u16>,
    /// Inbound ports that are not redirected.
    pub skip_inbound: Vec<PortRange>,
    /// Outbound ports that are not redirected.
    pub skip_outbound: Vec<PortRange>,
    /// Sources of inbound connections that are not redirected.
    pub skip_subnets: Vec<Subnet>,
    /// Destinations of outbound connections that are not redirected.
    pub skip_outbound_subnets: Vec<Subnet>,
    /// Interfaces to networks inside the pod. Connections that arrive through them are outbound.
    pub inner_interfaces: Vec<Interface>,
    /// Whether the redirect is a guess, because the pod object could not be read.
    pub is_guessed: bool,
}

/// A subnet, and its text in the setting. The rule's comment contains the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub net: IpNet,
    pub text: String,
}

impl Subnet {
    /// Parses a subnet such as `10.0.0.0/8`. Ignores bits after the prefix.
    pub fn parse(text: &str) -> Option<Subnet> {
        // IpNet accepts 010.0.0.0, which some programs read as 8.0.0.0 and others as 10.0.0.0.
        // IpAddr rejects it.
        let (address, _) = text.split_once('/')?;
        address.parse::<IpAddr>().ok()?;
        let net: IpNet = text.parse().ok()?;
        Some(Subnet { net: net.trunc(), text: text.to_owned() })
    }
}

/// Returns the bits of an address as a number.
pub fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The input for generating a pod's rules: the redirect, and the address families that get rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    pub redirect: Redirect,
    /// [`Family::IPV4`] or [`Family::ALL`].
    pub families: &'static [Family],
}

#[cfg(test)]
mod tests {
    use super::Redirect;

    impl Redirect {
        /// A redirect with the chart's default ports and UID that skips nothing.
        pub fn example() -> Self {
            Redirect {
                inbound_port: 4143,
                outbound_port: 4140,
                proxy_uid: Some(2102),
                ..Redirect::default()
            }
        }
    }
}
