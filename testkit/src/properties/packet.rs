//! First packets of connections, as they pass the hooks of a pod's netns.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linkerd2_cni::redirect::ports::PortRange;
pub use linkerd2_cni::redirect::rules::Chain as Hook;
use linkerd2_cni::redirect::{Family, Redirect, Subnet, address_number};

pub use super::evaluator::{DISCARDED, TCP, UDP};
use super::evaluator::{Field, Fields, interface_number};

/// Addresses in no subnet of the tests: one of IPv4, one of IPv6.
pub const ANY_SOURCES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Returns the pod's address in a connection with `peer`, which is of the same family.
fn pod_address(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => Ipv4Addr::new(198, 51, 100, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub hook: Hook,
    pub protocol: u8,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
    /// Incoming interface at [`Hook::Prerouting`], otherwise the outgoing one.
    pub interface: &'static str,
    /// UID and GID of the sending socket. `None` for inbound packets, and for those that the kernel
    /// itself sends.
    pub socket: Option<(u32, u32)>,
}

impl Packet {
    pub fn inbound(source: IpAddr, destination_port: u16) -> Self {
        Packet {
            hook: Hook::Prerouting,
            protocol: TCP,
            source,
            destination: pod_address(source),
            source_port: 40_000,
            destination_port,
            interface: "eth0",
            socket: None,
        }
    }

    pub fn outbound(destination: IpAddr, destination_port: u16, (uid, gid): (u32, u32)) -> Self {
        Packet {
            hook: Hook::Output,
            interface: "eth0",
            socket: Some((uid, gid)),
            source: pod_address(destination),
            destination,
            ..Packet::inbound(destination, destination_port)
        }
    }

    /// A packet that a network inside the pod sends through `interface` to a destination outside.
    pub fn from_inside(
        interface: &'static str,
        source: IpAddr,
        destination: IpAddr,
        destination_port: u16,
    ) -> Self {
        Packet { interface, destination, ..Packet::inbound(source, destination_port) }
    }

    pub fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        for (field, number) in [
            (Field::Protocol, Some(self.protocol.into())),
            (Field::Source, Some(address_number(self.source))),
            (Field::Destination, Some(address_number(self.destination))),
            (Field::Port, Some(self.destination_port.into())),
            (Field::Uid, self.socket.map(|(uid, _)| uid.into())),
            (Field::Gid, self.socket.map(|(_, gid)| gid.into())),
            (Field::Interface, Some(interface_number(self.interface))),
        ] {
            fields.set(field, number);
        }
        fields
    }

    pub fn family(&self) -> Family {
        if self.source.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }
}

/// Interfaces of the tests' pods, besides `lo` and `eth0`.
pub const INNER_INTERFACES: [&str; 3] = ["docker0", "k6t-eth0", "br-0a1b2c3d4e5f"];

/// Values at which the rules of a redirect change their decision, and their neighbours.
pub struct Boundaries {
    pub ports: Vec<u16>,
    pub sources: Vec<IpAddr>,
    pub destinations: Vec<IpAddr>,
    /// Destinations that are in no skipped subnet.
    pub redirected_destinations: Vec<IpAddr>,
    /// Interfaces inside the pod. Empty if the redirect names none.
    pub interfaces: Vec<&'static str>,
    pub uids: Vec<u32>,
    pub gids: Vec<u32>,
}

pub fn boundaries(redirect: &Redirect) -> Boundaries {
    let mut ranges: Vec<PortRange> = Vec::new();
    ranges.extend(&redirect.skip_inbound);
    ranges.extend(&redirect.skip_outbound);
    ranges.extend(redirect.ports_to_redirect.iter().copied().map(PortRange::from));
    let mut ports = Vec::new();
    for PortRange { first, last } in ranges {
        ports.extend([first.wrapping_sub(1), first, last, last.wrapping_add(1)]);
    }
    // A port that no list contains.
    ports.push(8080);
    let mut sources = addresses_around(&redirect.skip_subnets);
    let mut destinations = addresses_around(&redirect.skip_outbound_subnets);
    let mut interfaces = Vec::new();
    if !redirect.inner_interfaces.is_empty() {
        interfaces.extend(INNER_INTERFACES);
        // Rules keep these addresses out of reach.
        let loopback = addresses_around(&Vec::from_iter(Subnet::parse("127.0.0.0/8")));
        sources.extend(&loopback);
        destinations.extend(&loopback);
    }
    let mut redirected = destinations.clone();
    redirected.retain(|address| !is_skipped(*address, &redirect.skip_outbound_subnets));
    // One destination of each family is enough.
    let mut redirected_destinations = ANY_SOURCES.to_vec();
    redirected_destinations.extend(redirected.iter().find(|address| address.is_ipv4()));
    redirected_destinations.extend(redirected.iter().find(|address| address.is_ipv6()));
    Boundaries {
        ports,
        redirected_destinations,
        sources,
        destinations,
        interfaces,
        uids: ids_around(redirect.proxy_uid),
        gids: ids_around(redirect.proxy_gid),
    }
}

fn is_skipped(address: IpAddr, subnets: &[Subnet]) -> bool {
    subnets.iter().any(|subnet| subnet.net.contains(&address))
}

/// Returns root's ID, and `id` with its neighbours. Without an `id`, the ID of some user is used.
fn ids_around(id: Option<u32>) -> Vec<u32> {
    let id = id.unwrap_or(1000);
    vec![0, id.wrapping_sub(1), id, id.wrapping_add(1)]
}

fn addresses_around(subnets: &[Subnet]) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for subnet in subnets {
        let first = subnet.net.network();
        let last = subnet.net.broadcast();
        addresses.extend([add(first, MINUS_ONE), first, last, add(last, 1)]);
        for byte in 0..16 {
            // An address that differs from the first one in one bit of this byte.
            addresses.push(add(first, 1 << (8 * byte)));
        }
    }
    addresses.extend(ANY_SOURCES);
    addresses
}

/// Distance to the address before, as the sum wraps around.
const MINUS_ONE: u128 = u128::MAX;

fn add(address: IpAddr, distance: u128) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            Ipv4Addr::from_bits(address.to_bits().wrapping_add(distance as u32)).into()
        }
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits().wrapping_add(distance)).into(),
    }
}

/// Returns packets with all combinations of these values. Outbound packets vary either in the user
/// or in the destination, because no rule has conditions on both.
pub fn boundary_packets(boundaries: &Boundaries) -> Vec<Packet> {
    let mut packets = Vec::new();
    for &port in &boundaries.ports {
        for &source in &boundaries.sources {
            let inbound = Packet::inbound(source, port);
            packets.push(Packet { protocol: UDP, ..inbound.clone() });
            packets.push(inbound);
        }
        add_inner_packets(boundaries, port, &mut packets);
        add_outbound_packets(boundaries, port, &mut packets);
    }
    packets
}

/// Adds packets of a network inside the pod. They vary either in the source or in the destination.
fn add_inner_packets(boundaries: &Boundaries, port: u16, packets: &mut Vec<Packet>) {
    let mut pairs = Vec::new();
    for &destination in &boundaries.destinations {
        let source = if destination.is_ipv4() { ANY_SOURCES[0] } else { ANY_SOURCES[1] };
        pairs.push((source, destination));
    }
    for &source in &boundaries.sources {
        for &destination in &boundaries.redirected_destinations {
            if source.is_ipv4() == destination.is_ipv4() {
                pairs.push((source, destination));
            }
        }
    }
    for (source, destination) in pairs {
        for &interface in &boundaries.interfaces {
            let inner = Packet::from_inside(interface, source, destination, port);
            packets.push(Packet { protocol: UDP, ..inner.clone() });
            packets.push(inner);
        }
    }
}

/// Adds packets that processes of the pod send. They vary either in the user or in the destination.
fn add_outbound_packets(boundaries: &Boundaries, port: u16, packets: &mut Vec<Packet>) {
    let mut pairs = Vec::new();
    for &uid in &boundaries.uids {
        for &gid in &boundaries.gids {
            for &destination in &boundaries.redirected_destinations {
                pairs.push((destination, (uid, gid)));
            }
        }
    }
    for &destination in &boundaries.destinations {
        pairs.push((destination, (0, 0)));
    }
    for (destination, user) in pairs {
        let outbound = Packet::outbound(destination, port, user);
        packets.push(Packet { interface: "lo", ..outbound.clone() });
        packets.push(Packet { protocol: UDP, ..outbound.clone() });
        packets.push(outbound);
    }
}
