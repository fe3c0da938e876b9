//! A model of upstream's contract: which connections of a pod are redirected, given the settings of
//! the operator and the pod's author. Shares no code with `config` and `rules`.

use std::net::IpAddr;

use ipnet::IpNet;
use linkerd2_cni::cluster_lookup::read_facts;
use linkerd2_cni::cni::Error;
use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::config::Config;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::pod::Decision;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::redirect::ports::PortRange;
use linkerd2_cni::redirect::{Family, Redirect};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use testkit::node_copy::FakeCluster;

use crate::packet::{DISCARDED, Hook, INNER_INTERFACES, Packet, TCP};
use crate::{port_range, subnet};

/// Settings that can be set in the plugin entry, on the namespace and on the pod.
#[derive(Clone, Debug)]
pub struct Layer {
    skip_inbound: Option<Vec<PortRange>>,
    skip_outbound: Option<Vec<PortRange>>,
    /// In the order of [`SUBNETS`].
    skip_subnets: [Option<Vec<IpNet>>; 3],
    inner_interfaces: Option<Vec<&'static str>>,
    uid: Option<i64>,
    gid: Option<i64>,
}

/// Settings of the container `linkerd-proxy`.
#[derive(Clone, Debug)]
struct Container {
    uid: Option<i64>,
    inbound_port: Option<u16>,
    outbound_port: Option<u16>,
    admin_port: Option<u16>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    inbound_port: u16,
    outbound_port: u16,
    ports_to_redirect: Vec<u16>,
    entry: Layer,
    namespace: Layer,
    pod: Layer,
    container: Container,
    is_control_plane: bool,
    pub ipv6: bool,
}

/// Names of the annotations with subnets, and the corresponding keys of the plugin entry.
const SUBNETS: [(&str, &str); 3] = [
    ("skip-subnets", "subnets-to-ignore"),
    ("skip-inbound-subnets", "inbound-subnets-to-ignore"),
    ("skip-outbound-subnets", "outbound-subnets-to-ignore"),
];

/// Indices of [`SUBNETS`].
const SKIP_SUBNETS: usize = 0;
const SKIP_INBOUND_SUBNETS: usize = 1;
const SKIP_OUTBOUND_SUBNETS: usize = 2;

fn subnets() -> impl Strategy<Value = Option<Vec<IpNet>>> {
    option::of(vec(subnet().prop_map(|subnet| subnet.net), 1..4))
}

prop_compose! {
    fn layer()(
        skip_inbound in option::of(vec(port_range(), 1..12)),
        skip_outbound in option::of(vec(port_range(), 1..12)),
        skip_subnets in [subnets(), subnets(), subnets()],
        inner_interfaces in option::weighted(0.3, vec(select(&INNER_INTERFACES[..]), 1..3)),
        uid in option::of(-1..3000i64),
        gid in option::of(-1..3000i64),
    ) -> Layer {
        Layer { skip_inbound, skip_outbound, skip_subnets, inner_interfaces, uid, gid }
    }
}

fn port() -> impl Strategy<Value = u16> {
    1..=u16::MAX
}

prop_compose! {
    pub fn settings()(
        (inbound_port, outbound_port) in (port(), port()),
        ports_to_redirect in vec(any::<u16>(), 0..3),
        (entry, namespace, pod) in (layer(), layer(), layer()),
        uid in option::of(0..3000i64),
        ports in [option::of(port()), option::of(port()), option::of(port())],
        (is_control_plane, ipv6) in (any::<bool>(), any::<bool>()),
    ) -> Settings {
        let [inbound, outbound, admin_port] = ports;
        Settings {
            inbound_port, outbound_port, ports_to_redirect, entry, namespace, pod,
            container: Container { uid, inbound_port: inbound, outbound_port: outbound, admin_port },
            is_control_plane, ipv6,
        }
    }
}

/// Ports of the API server's Service.
const API_PORTS: [u16; 2] = [443, 6443];

impl Settings {
    /// Returns the port to which upstream's contract redirects the connection of `packet`.
    pub fn redirected_to(&self, packet: &Packet) -> Option<u16> {
        // IPv6 has rules only if the plugin entry enables them.
        if packet.source.is_ipv6() && !self.ipv6 {
            return None;
        }
        let inner_interfaces = self.inner_interfaces();
        if packet.hook == Hook::Prerouting
            && !inner_interfaces.is_empty()
            && [packet.source, packet.destination].iter().any(is_ipv4_loopback)
        {
            return Some(DISCARDED);
        }
        if packet.protocol != TCP {
            return None;
        }
        if packet.hook == Hook::Prerouting && !inner_interfaces.contains(&packet.interface) {
            if self.skips_inbound(packet) {
                return None;
            }
            return Some(self.proxy_port(Hook::Prerouting));
        }
        // Connections from networks inside the pod arrive at the pod, but are outbound too.
        let is_exempt = packet.hook != Hook::Prerouting
            && (packet.interface == "lo" || packet.socket.is_some_and(|user| self.is_proxy(user)));
        if is_exempt || self.skips_outbound(packet) {
            return None;
        }
        Some(self.proxy_port(Hook::Output))
    }

    fn skips_inbound(&self, packet: &Packet) -> bool {
        let is_redirected_port = self.ports_to_redirect.is_empty()
            || self.ports_to_redirect.contains(&packet.destination_port);
        !is_redirected_port
            || contains_port(&self.skip_inbound(), packet.destination_port)
            || contains_address(self.skip_subnets(SKIP_SUBNETS), &packet.source)
            || contains_address(self.skip_subnets(SKIP_INBOUND_SUBNETS), &packet.source)
    }

    fn skips_outbound(&self, packet: &Packet) -> bool {
        contains_port(&self.skip_outbound(), packet.destination_port)
            || contains_address(self.skip_subnets(SKIP_OUTBOUND_SUBNETS), &packet.destination)
    }

    /// Returns the list of the pod's annotation, or else of the namespace's.
    fn annotated_ports(
        &self,
        list: fn(&Layer) -> &Option<Vec<PortRange>>,
    ) -> Option<&Vec<PortRange>> {
        list(&self.pod).as_ref().or(list(&self.namespace).as_ref())
    }

    /// Returns the skipped inbound ports: those of the plugin entry and the annotated ones. The
    /// proxy's own admin port is never redirected.
    fn skip_inbound(&self) -> Vec<PortRange> {
        let mut ranges = self.entry.skip_inbound.clone().unwrap_or_default();
        if let Some(annotated) = self.annotated_ports(|layer| &layer.skip_inbound) {
            ranges.extend(annotated);
        }
        if let Some(admin_port) = self.container.admin_port {
            ranges.push(admin_port.into());
        }
        ranges
    }

    /// Returns the skipped outbound ports: the annotated ones, or else those of the plugin entry.
    /// The control plane reaches the API server directly.
    fn skip_outbound(&self) -> Vec<PortRange> {
        let mut ranges = match self.annotated_ports(|layer| &layer.skip_outbound) {
            Some(annotated) => annotated.clone(),
            None => self.entry.skip_outbound.clone().unwrap_or_default(),
        };
        if self.is_control_plane {
            ranges.extend(API_PORTS.map(PortRange::from));
        }
        ranges
    }

    /// The pod's annotation replaces the namespace's, which replaces the list of the plugin entry.
    fn skip_subnets(&self, index: usize) -> &[IpNet] {
        let layers = [&self.pod, &self.namespace, &self.entry];
        layers.iter().find_map(|layer| layer.skip_subnets[index].as_deref()).unwrap_or_default()
    }

    /// The pod's annotation replaces the namespace's, which replaces the list of the plugin entry.
    fn inner_interfaces(&self) -> &[&'static str] {
        let layers = [&self.pod, &self.namespace, &self.entry];
        layers.iter().find_map(|layer| layer.inner_interfaces.as_deref()).unwrap_or_default()
    }

    fn proxy_port(&self, hook: Hook) -> u16 {
        match hook {
            Hook::Prerouting => self.container.inbound_port.unwrap_or(self.inbound_port),
            _ => self.container.outbound_port.unwrap_or(self.outbound_port),
        }
    }

    /// Returns the rules that upstream's plugin would install for the family, as `iptables -S`
    /// lists them. Upstream keeps the order of lists, and duplicate and overlapping elements. The
    /// rules for interfaces inside the pod, which upstream lacks, come first.
    pub fn upstream_lines(&self, family: Family) -> Vec<String> {
        let mut lines = ["-P PREROUTING ACCEPT", "-P OUTPUT ACCEPT"].map(String::from).to_vec();
        if family == Family::Ipv6 && !self.ipv6 {
            return lines;
        }
        let inbound = "PROXY_INIT_REDIRECT";
        let outbound = "PROXY_INIT_OUTPUT";
        for chain in [inbound, outbound] {
            lines.push(format!("-N {chain}"));
        }
        for (hook, chain) in [("PREROUTING", inbound), ("OUTPUT", outbound)] {
            lines.push(format!(
                "-A {hook} -m comment --comment \"proxy-init/install-proxy-init\" -j {chain}"
            ));
        }
        lines.extend(self.inner_lines(family, inbound));
        lines.extend(port_lines(inbound, &self.skip_inbound()));
        lines.extend(subnet_lines(inbound, "-s", self.skip_subnets(SKIP_SUBNETS), family));
        lines.extend(subnet_lines(inbound, "-s", self.skip_subnets(SKIP_INBOUND_SUBNETS), family));
        let inbound_port = self.proxy_port(Hook::Prerouting);
        if self.ports_to_redirect.is_empty() {
            lines.push(format!("-A {inbound} -p tcp -j REDIRECT --to-ports {inbound_port}"));
        }
        for port in &self.ports_to_redirect {
            lines.push(format!(
                "-A {inbound} -p tcp -m tcp --dport {port} -j REDIRECT --to-ports {inbound_port}"
            ));
        }
        let (uid, gid) = self.user();
        if let Some(uid) = uid {
            lines.push(format!("-A {outbound} -m owner --uid-owner {uid} -j RETURN"));
        }
        if let Some(gid) = gid {
            lines.push(format!("-A {outbound} -m owner --gid-owner {gid} -j RETURN"));
        }
        lines.push(format!("-A {outbound} -o lo -j RETURN"));
        lines.extend(port_lines(outbound, &self.skip_outbound()));
        lines.extend(subnet_lines(
            outbound,
            "-d",
            self.skip_subnets(SKIP_OUTBOUND_SUBNETS),
            family,
        ));
        let outbound_port = self.proxy_port(Hook::Output);
        lines.push(format!("-A {outbound} -p tcp -j REDIRECT --to-ports {outbound_port}"));
        lines
    }

    /// Returns the rules for connections from networks inside the pod, one for each port range and
    /// subnet.
    fn inner_lines(&self, family: Family, chain: &str) -> Vec<String> {
        let interfaces = self.inner_interfaces();
        let mut lines = Vec::new();
        if !interfaces.is_empty() && family == Family::Ipv4 {
            for option in ["-s", "-d"] {
                lines.push(format!(
                    "-A {chain} {option} 127.0.0.0/8 -j DNAT --to-destination 0.0.0.0"
                ));
            }
        }
        let outbound_port = self.proxy_port(Hook::Output);
        let target = match family {
            Family::Ipv4 => format!("DNAT --to-destination 127.0.0.1:{outbound_port}"),
            Family::Ipv6 => format!("REDIRECT --to-ports {outbound_port}"),
        };
        for interface in interfaces {
            let start = format!("-A {chain} -i {interface}");
            for range in self.skip_outbound() {
                let ports = range_text(range).replace('-', ":");
                lines.push(format!("{start} -p tcp -m tcp --dport {ports} -j RETURN"));
            }
            for net in self.skip_subnets(SKIP_OUTBOUND_SUBNETS) {
                if net.addr().is_ipv4() == (family == Family::Ipv4) {
                    lines.push(format!("{start} -d {} -j RETURN", net.trunc()));
                }
            }
            lines.push(format!("{start} -p tcp -j {target}"));
        }
        lines
    }

    /// Returns the proxy's UID and GID. IDs of 0 and below mean that there is none.
    fn user(&self) -> (Option<i64>, Option<i64>) {
        let layers = [&self.pod, &self.namespace, &self.entry];
        let uid = self.container.uid.or(layers.iter().find_map(|layer| layer.uid));
        let gid = layers.iter().find_map(|layer| layer.gid);
        (uid.filter(|id| *id > 0), gid.filter(|id| *id > 0))
    }

    fn is_proxy(&self, user: (u32, u32)) -> bool {
        let (uid, gid) = user;
        let (proxy_uid, proxy_gid) = self.user();
        proxy_uid == Some(uid.into()) || proxy_gid == Some(gid.into())
    }

    /// Returns true if ADD succeeds. Without UID and GID, the proxy's own connections would be
    /// redirected to the proxy.
    pub fn has_user(&self) -> bool {
        self.user() != (None, None)
    }

    /// Returns the redirect that the plugin computes from plugin entry, pod and namespace.
    pub fn redirect(&self) -> Result<Redirect, Error> {
        let config = serde_json::from_value(json!({"linkerd": self.plugin_entry()})).unwrap();
        let found = serde_json::from_value(self.pod_object()).unwrap();
        let pod = PodRef { namespace: "ns".into(), name: "web".into(), uid: String::new() };
        let annotations = self.namespace.annotations();
        let mut cluster = FakeCluster { annotations, api_ports: Some(API_PORTS) };
        match read_facts(found, &pod, &mut cluster)? {
            Decision::Redirect(facts) => Config::read(&config)?.redirect(&facts),
            Decision::Skip(_) => Err(Error::new(Failure::Internal, "the pod is meshed")),
        }
    }

    fn plugin_entry(&self) -> Value {
        let texts = |ranges: &Option<Vec<PortRange>>| -> Vec<String> {
            ranges.iter().flatten().copied().map(range_text).collect()
        };
        let mut entry = json!({
            "incoming-proxy-port": self.inbound_port,
            "outgoing-proxy-port": self.outbound_port,
            "ports-to-redirect": self.ports_to_redirect,
            "inbound-ports-to-ignore": texts(&self.entry.skip_inbound),
            "outbound-ports-to-ignore": texts(&self.entry.skip_outbound),
            "proxy-uid": self.entry.uid.unwrap_or_default(),
            "proxy-gid": self.entry.gid.unwrap_or_default(),
            "inner-interfaces": self.entry.inner_interfaces.clone().unwrap_or_default(),
        });
        for ((_, key), subnets) in SUBNETS.iter().zip(&self.entry.skip_subnets) {
            let texts = subnets.iter().flatten().map(ToString::to_string);
            entry[key] = texts.collect::<Vec<_>>().into();
        }
        entry
    }

    fn pod_object(&self) -> Value {
        let Container { uid, inbound_port, outbound_port, admin_port } = self.container;
        let variables = [
            ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", inbound_port),
            ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", outbound_port),
            ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", admin_port),
        ];
        let mut env = Vec::new();
        for (name, port) in variables {
            if let Some(port) = port {
                env.push(json!({"name": name, "value": format!("0.0.0.0:{port}")}));
            }
        }
        let component = if self.is_control_plane { "destination" } else { "" };
        json!({
            "metadata": {"namespace": "ns", "name": "web", "annotations": self.pod.annotations(),
                "labels": {"linkerd.io/control-plane-component": component}},
            "spec": {"containers": [{"name": "app"},
                {"name": "linkerd-proxy", "env": env, "securityContext": {"runAsUser": uid}}]},
        })
    }
}

impl Layer {
    /// Renders annotations. An empty value on the pod does not override the namespace's.
    fn annotations(&self) -> Annotations {
        let mut values = vec![
            ("skip-inbound-ports", self.skip_inbound.as_deref().map(port_list_text)),
            ("skip-outbound-ports", self.skip_outbound.as_deref().map(port_list_text)),
            ("inner-interfaces", self.inner_interfaces.as_ref().map(|names| names.join(","))),
            ("proxy-uid", self.uid.map(|id| id.to_string())),
            ("proxy-gid", self.gid.map(|id| id.to_string())),
        ];
        for ((key, _), subnets) in SUBNETS.iter().zip(&self.skip_subnets) {
            values.push((*key, subnets.as_deref().map(subnet_list_text)));
        }
        let mut annotations = Annotations::new();
        for (key, value) in values {
            annotations.insert(format!("config.linkerd.io/{key}"), value.unwrap_or_default());
        }
        annotations
    }
}

/// Renders a port list, with two more elements that upstream drops.
fn port_list_text(ranges: &[PortRange]) -> String {
    let mut elements: Vec<String> = ranges.iter().copied().map(range_text).collect();
    elements.push(" 8080".to_owned());
    elements.push("http".to_owned());
    elements.join(",")
}

fn subnet_list_text(subnets: &[IpNet]) -> String {
    let elements: Vec<String> = subnets.iter().map(ToString::to_string).collect();
    elements.join(", ")
}

fn contains_port(ranges: &[PortRange], port: u16) -> bool {
    ranges.iter().any(|range| (range.first..=range.last).contains(&port))
}

fn contains_address(subnets: &[IpNet], address: &IpAddr) -> bool {
    subnets.iter().any(|subnet| subnet.contains(address))
}

/// Returns the rules that exempt ports, in groups that fit into one `multiport` match.
fn port_lines(chain: &str, ranges: &[PortRange]) -> Vec<String> {
    let texts: Vec<String> =
        ranges.iter().map(|range| range_text(*range).replace('-', ":")).collect();
    let mut lines = Vec::new();
    // A match has at most 15 ports. Seven elements fit even if all of them are ranges.
    for group in texts.chunks(7) {
        let ports = group.join(",");
        lines.push(format!(
            "-A {chain} -p tcp -m multiport --dports {ports} -m comment --comment \
             \"proxy-init/ignore-port-{ports}\" -j RETURN"
        ));
    }
    lines
}

/// Returns the rules that exempt the family's subnets.
fn subnet_lines(chain: &str, option: &str, subnets: &[IpNet], family: Family) -> Vec<String> {
    let mut lines = Vec::new();
    for subnet in subnets {
        if subnet.addr().is_ipv4() != (family == Family::Ipv4) {
            continue;
        }
        // iptables drops host bits, and conditions that every packet matches.
        let condition = match subnet.prefix_len() {
            0 => String::new(),
            _ => format!(" {option} {}", subnet.trunc()),
        };
        lines.push(format!(
            "-A {chain}{condition} -m comment --comment proxy-init/ignore-subnet -j RETURN"
        ));
    }
    lines
}

fn is_ipv4_loopback(address: &IpAddr) -> bool {
    address.is_ipv4() && address.is_loopback()
}

fn range_text(range: PortRange) -> String {
    let PortRange { first, last } = range;
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
