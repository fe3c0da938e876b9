//! Checks plugin entry, annotations and proxy container, and combines them into a [`Redirect`].
//!
//! Upstream drops an invalid element of a port list, logs that on the node, and starts the pod. So
//! does this module, also in the list of interfaces, and it returns the element, so that the pod's
//! owner gets an Event. With `strict-annotations`, the first invalid element is an error.

use super::ignored_ports::{INBOUND_KEY, INNER_KEY, Ignored, OUTBOUND_KEY, PORT_GRAMMAR};
use super::section::config_error;
use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::pod::annotation::{self, annotation_error};
use crate::pod::containers;
use crate::pod::facts::PodFacts;
use crate::quote::{self, quote};
use crate::redirect::interfaces::{self, Interface};
use crate::redirect::ports::{self, InvalidElement, PortRange};
use crate::redirect::{Ipv6, Redirect, Subnet};

/// A list of subnets that are not redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubnetList {
    /// Sources of inbound connections, under the name that upstream has for them.
    Any,
    /// Sources of inbound connections.
    Inbound,
    /// Destinations of outbound connections.
    Outbound,
}

impl SubnetList {
    /// All lists. The position of a list is its discriminant.
    pub const ALL: [SubnetList; 3] = [SubnetList::Any, SubnetList::Inbound, SubnetList::Outbound];

    pub const fn annotation(self) -> &'static str {
        match self {
            SubnetList::Any => annotation::SKIP_SUBNETS,
            SubnetList::Inbound => annotation::SKIP_INBOUND_SUBNETS,
            SubnetList::Outbound => annotation::SKIP_OUTBOUND_SUBNETS,
        }
    }

    /// The key of the plugin entry whose value the annotation replaces.
    pub const fn key(self) -> &'static str {
        match self {
            SubnetList::Any => "subnets-to-ignore",
            SubnetList::Inbound => "inbound-subnets-to-ignore",
            SubnetList::Outbound => "outbound-subnets-to-ignore",
        }
    }
}

impl Config {
    /// The proxy container wins over annotations, and those win over the plugin entry. As in
    /// upstream, annotated outbound ports, subnets, UID and GID replace the value of the plugin
    /// entry, and annotated inbound ports are added to it.
    pub fn resolve(&self, pod: &PodFacts) -> Result<ResolvedRedirect, Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let stated = &pod.proxy;
        let skip_outbound = self.port_ranges(&[self.outbound_ports(pod)], &pod.api_ports)?;
        let skip_inbound = self.port_ranges(&self.inbound_ports(pod), &[])?;
        let admin = self.pod_port(pod, stated.admin_port, annotation::ADMIN_PORT)?;
        let control = self.pod_port(pod, stated.control_port, annotation::CONTROL_PORT)?;
        let [proxy_uid, proxy_gid] = self.proxy_user(pod)?;
        let inbound = self.pod_port(pod, stated.inbound_port, annotation::INBOUND_PORT)?;
        let inbound_port =
            port_or_default(inbound.port, "incoming-proxy-port", self.incoming_proxy_port)?;
        let outbound = self.pod_port(pod, stated.outbound_port, annotation::OUTBOUND_PORT)?;
        let outbound_port =
            port_or_default(outbound.port, "outgoing-proxy-port", self.outgoing_proxy_port)?;
        let ports_to_redirect = redirected_ports(&self.ports_to_redirect)?;
        let (_, mut skip_subnets) = self.subnets(pod, SubnetList::Any)?;
        let (_, skip_inbound_subnets) = self.subnets(pod, SubnetList::Inbound)?;
        skip_subnets.extend(skip_inbound_subnets);
        let (_, skip_outbound_subnets) = self.subnets(pod, SubnetList::Outbound)?;
        let inner = self.inner_interfaces(pod)?;

        let mut skip_inbound_ranges = skip_inbound.ranges;
        skip_inbound_ranges.extend(admin.port.map(PortRange::from));
        skip_inbound_ranges.extend(control.port.map(PortRange::from));
        let mut ignored = skip_outbound.ignored;
        ignored.extend(skip_inbound.ignored);
        for port in [admin, control, inbound, outbound] {
            ignored.extend(port.ignored);
        }
        ignored.extend(inner.ignored);
        let redirect = Redirect {
            inbound_port,
            outbound_port,
            proxy_uid,
            proxy_gid,
            ports_to_redirect,
            skip_inbound: ports::distinct(&skip_inbound_ranges),
            skip_outbound: ports::distinct(&skip_outbound.ranges),
            skip_subnets,
            skip_outbound_subnets,
            inner_interfaces: inner.interfaces,
            is_guessed: false,
        };
        Ok(ResolvedRedirect {
            ipv6: match self.ipv6 {
                Ipv6::Auto if stated.is_ipv4_only => Ipv6::No,
                ipv6 => ipv6,
            },
            ignored,
            blocked_init_containers: containers::redirected_names(&pod.early_containers, &redirect),
            exempt_containers: containers::exempt_names(&pod.app_containers, &redirect),
            redirect,
        })
    }

    /// [`Config::resolve`] without the ignored elements.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        self.resolve(pod).map(|resolved| resolved.redirect)
    }

    /// Returns the inbound ports of the plugin entry (the chart includes the proxy's admin and
    /// control port), and the annotated ones, which are added to them.
    pub fn inbound_ports<'a>(&'a self, pod: &'a PodFacts) -> [SkipList<'a>; 2] {
        let configured = &self.inbound_ports_to_ignore[..];
        [
            SkipList { key: INBOUND_KEY, annotation: None, configured },
            SkipList::new(pod, annotation::SKIP_INBOUND_PORTS, INBOUND_KEY, &[]),
        ]
    }

    /// Returns the annotated outbound ports, or else those of the plugin entry.
    pub fn outbound_ports<'a>(&'a self, pod: &'a PodFacts) -> SkipList<'a> {
        let configured = &self.outbound_ports_to_ignore;
        SkipList::new(pod, annotation::SKIP_OUTBOUND_PORTS, OUTBOUND_KEY, configured)
    }

    /// Returns the annotated interfaces inside the pod, or else those of the plugin entry.
    pub fn inner_interface_list<'a>(&'a self, pod: &'a PodFacts) -> SkipList<'a> {
        SkipList::new(pod, annotation::INNER_INTERFACES, INNER_KEY, &self.inner_interfaces)
    }

    /// Returns the subnets of the pod's annotation or, if the pod lacks that annotation, those of
    /// the plugin entry. The text is the name of the annotation or the plugin entry's key.
    pub fn subnets(
        &self,
        pod: &PodFacts,
        list: SubnetList,
    ) -> Result<(&'static str, Vec<Subnet>), Error> {
        let configured = &self.subnets_to_ignore[list as usize];
        let texts = SkipList::new(pod, list.annotation(), list.key(), configured);
        let mut subnets = Vec::new();
        for text in texts.elements().map(str::trim).filter(|text| !text.is_empty()) {
            let Some(subnet) = Subnet::parse(text) else {
                let wanted = "expected a CIDR such as 10.0.0.0/8 or fd00::/8";
                return Err(texts.error(&format!("{} is not a subnet: {wanted}", quote(text))));
            };
            subnets.push(subnet);
        }
        Ok((texts.key, subnets))
    }

    /// Like [`Config::subnets`], but ignores invalid elements.
    pub fn valid_subnets(&self, pod: &PodFacts, list: SubnetList) -> (&'static str, Vec<Subnet>) {
        let configured = &self.subnets_to_ignore[list as usize];
        let texts = SkipList::new(pod, list.annotation(), list.key(), configured);
        (texts.key, texts.elements().filter_map(|text| Subnet::parse(text.trim())).collect())
    }
}

/// The ranges of lists of ports, and their elements that have no effect.
struct PortRanges {
    ranges: Vec<PortRange>,
    ignored: Vec<Ignored>,
}

/// Interfaces inside the pod, and the elements of their list that have no effect.
struct InnerInterfaces {
    interfaces: Vec<Interface>,
    ignored: Option<Ignored>,
}

/// A port of the proxy, if container or annotation state one, and the annotation's value if it has
/// no effect.
struct PodPort {
    port: Option<u16>,
    ignored: Option<Ignored>,
}

/// A list of ports, subnets or interfaces: an annotation, or else elements of the plugin entry.
#[derive(Clone, Copy)]
pub struct SkipList<'a> {
    /// Name of the annotation, or key of the plugin entry.
    pub key: &'static str,
    annotation: Option<&'a String>,
    configured: &'a [String],
}

impl<'a> SkipList<'a> {
    fn new(
        pod: &'a PodFacts,
        annotation: &'static str,
        key: &'static str,
        configured: &'a [String],
    ) -> Self {
        match pod.annotations.get(annotation) {
            None => SkipList { key, annotation: None, configured },
            text => SkipList { key: annotation, annotation: text, configured: &[] },
        }
    }

    fn elements(self) -> impl Iterator<Item = &'a str> {
        let annotated = self.annotation.into_iter().flat_map(|text| text.split(','));
        annotated.chain(self.configured.iter().map(String::as_str))
    }

    pub fn ports(self) -> impl Iterator<Item = Result<PortRange, InvalidElement<'a>>> {
        self.elements().map(PortRange::parse)
    }

    /// Returns the interfaces of the list, each once, and its invalid elements.
    pub fn interfaces(self) -> (Vec<Interface>, Vec<InvalidElement<'a>>) {
        let (mut valid, mut invalid) = (Vec::new(), Vec::new());
        for text in self.elements() {
            match Interface::parse(text) {
                Ok(interface) if valid.contains(&interface) => {}
                Ok(_) if valid.len() == interfaces::COUNT_LIMIT => {
                    invalid.push(interfaces::too_many(text));
                }
                Ok(interface) => valid.push(interface),
                Err(element) => invalid.push(element),
            }
        }
        (valid, invalid)
    }

    fn error(&self, problem: &str) -> Error {
        match self.annotation {
            Some(text) => annotation_error(self.key, text, problem),
            None => config_error(self.key, problem),
        }
    }
}

impl Config {
    /// Returns the ranges of all `lists` in order, followed by `more`. Fails if all elements are
    /// invalid and `more` is empty: upstream creates a rule without ports then, which iptables
    /// rejects.
    fn port_ranges(&self, lists: &[SkipList<'_>], more: &[PortRange]) -> Result<PortRanges, Error> {
        let mut found = PortRanges { ranges: Vec::new(), ignored: Vec::new() };
        let mut last_invalid = None;
        for list in lists {
            let mut ignored = Ignored { source: list.key, elements: Vec::new(), more: 0 };
            for element in list.ports() {
                match element {
                    Ok(range) => found.ranges.push(range),
                    Err(element) if self.strict_annotations => {
                        return Err(list.error(&format!("{element}; grammar: {}", ports::GRAMMAR)));
                    }
                    Err(element) => {
                        ignored.add(element.text);
                        last_invalid = Some((list, element));
                    }
                }
            }
            if !ignored.elements.is_empty() {
                found.ignored.push(ignored);
            }
        }
        found.ranges.extend(more);
        if found.ranges.is_empty()
            && let Some((list, element)) = last_invalid
        {
            let grammar = ports::GRAMMAR;
            let problem = format!("{element}; no valid element is left; grammar: {grammar}");
            return Err(list.error(&problem));
        }
        Ok(found)
    }

    /// Returns the interfaces inside the pod. Fails if the list has only invalid elements, as for
    /// outbound ports.
    fn inner_interfaces(&self, pod: &PodFacts) -> Result<InnerInterfaces, Error> {
        let list = self.inner_interface_list(pod);
        let (interfaces, invalid) = list.interfaces();
        let Some(first_invalid) = invalid.first() else {
            return Ok(InnerInterfaces { interfaces, ignored: None });
        };
        let grammar = interfaces::GRAMMAR;
        if self.strict_annotations {
            return Err(list.error(&format!("{first_invalid}; grammar: {grammar}")));
        }
        if interfaces.is_empty() {
            let problem = format!("{first_invalid}; no valid element is left; grammar: {grammar}");
            return Err(list.error(&problem));
        }
        let mut ignored = Ignored { source: list.key, elements: Vec::new(), more: 0 };
        for element in invalid {
            ignored.add(element.text);
        }
        Ok(InnerInterfaces { interfaces, ignored: Some(ignored) })
    }

    /// Returns a port of the proxy: `stated` by its container, else the annotation `key`.
    /// Upstream's plugin does not read such annotations; upstream's proxy injector ignores invalid
    /// values, and a value with blanks is one (`strconv.ParseInt` in `ApplyAnnotationOverrides` of
    /// linkerd2's `pkg/inject/inject.go`).
    fn pod_port(
        &self,
        pod: &PodFacts,
        stated: Option<u16>,
        key: &'static str,
    ) -> Result<PodPort, Error> {
        if stated.is_some() {
            return Ok(PodPort { port: stated, ignored: None });
        }
        let Some(text) = pod.annotations.get(key) else {
            return Ok(PodPort { port: None, ignored: None });
        };
        match text.parse() {
            Ok(port) if port > 0 => Ok(PodPort { port: Some(port), ignored: None }),
            _ if self.strict_annotations => {
                Err(annotation_error(key, text, &format!("expected {PORT_GRAMMAR}")))
            }
            _ => {
                let elements = vec![quote::cut(text)];
                let ignored = Ignored { source: key, elements, more: 0 };
                Ok(PodPort { port: None, ignored: Some(ignored) })
            }
        }
    }
}

/// Returns the port, or else the `default` that the plugin entry has as `key`.
fn port_or_default(port: Option<u16>, key: &str, default: i64) -> Result<u16, Error> {
    if let Some(port) = port {
        return Ok(port);
    }
    match u16::try_from(default) {
        Ok(port) if port > 0 => Ok(port),
        _ => {
            let problem = format!("{default} is not a port of the proxy: expected {PORT_GRAMMAR}");
            Err(config_error(key, &problem))
        }
    }
}

/// Parses the ports to redirect.
fn redirected_ports(texts: &[String]) -> Result<Vec<u16>, Error> {
    let mut ports = Vec::with_capacity(texts.len());
    for text in texts {
        match text.trim().parse() {
            Ok(port) => ports.push(port),
            Err(_) => {
                let problem =
                    format!("{} is not a port: expected a number from 0 to 65535", quote(text));
                return Err(config_error("ports-to-redirect", &problem));
            }
        }
    }
    Ok(ports)
}
