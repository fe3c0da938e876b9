//! Combines the plugin entry, the annotations and the proxy container into a [`Redirect`].
//!
//! Upstream drops an invalid element of a port list, logs it on the node, and starts the pod. This
//! module does the same for ports and interfaces. It also returns the invalid elements, so that the
//! pod gets an Event about them. With `strict-annotations`, the first invalid element is an error.

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
    /// Sources of inbound connections. Upstream has only this list.
    Any,
    /// Sources of inbound connections.
    Inbound,
    /// Destinations of outbound connections.
    Outbound,
}

impl SubnetList {
    /// All lists, each at the index of its discriminant.
    pub const ALL: [SubnetList; 3] = [SubnetList::Any, SubnetList::Inbound, SubnetList::Outbound];

    /// Returns the annotation that contains the list.
    pub const fn annotation(self) -> &'static str {
        match self {
            SubnetList::Any => annotation::SKIP_SUBNETS,
            SubnetList::Inbound => annotation::SKIP_INBOUND_SUBNETS,
            SubnetList::Outbound => annotation::SKIP_OUTBOUND_SUBNETS,
        }
    }

    /// Returns the key of the plugin entry. The annotation replaces its value.
    pub const fn key(self) -> &'static str {
        match self {
            SubnetList::Any => "subnets-to-ignore",
            SubnetList::Inbound => "inbound-subnets-to-ignore",
            SubnetList::Outbound => "outbound-subnets-to-ignore",
        }
    }
}

impl Config {
    /// Computes the pod's redirect. The proxy container takes precedence over annotations, and
    /// annotations take precedence over the plugin entry. As in upstream, annotated outbound ports,
    /// subnets, UID and GID replace the plugin entry's value, but annotated inbound ports are added
    /// to it.
    pub fn resolve(&self, pod: &PodFacts) -> Result<ResolvedRedirect, Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let proxy = &pod.proxy;
        let skip_outbound = self.port_ranges(&[self.outbound_ports(pod)], &pod.api_ports)?;
        let skip_inbound = self.port_ranges(&self.inbound_ports(pod), &[])?;
        let admin = self.proxy_port(pod, proxy.admin_port, annotation::ADMIN_PORT)?;
        let control = self.proxy_port(pod, proxy.control_port, annotation::CONTROL_PORT)?;
        let [proxy_uid, proxy_gid] = self.proxy_user(pod)?;
        let inbound = self.proxy_port(pod, proxy.inbound_port, annotation::INBOUND_PORT)?;
        let inbound_port =
            port_or_default(inbound.port, "incoming-proxy-port", self.incoming_proxy_port)?;
        let outbound = self.proxy_port(pod, proxy.outbound_port, annotation::OUTBOUND_PORT)?;
        let outbound_port =
            port_or_default(outbound.port, "outgoing-proxy-port", self.outgoing_proxy_port)?;
        let ports_to_redirect = parse_ports_to_redirect(&self.ports_to_redirect)?;
        let mut skip_subnets = self.subnets(pod, SubnetList::Any)?;
        skip_subnets.extend(self.subnets(pod, SubnetList::Inbound)?);
        let skip_outbound_subnets = self.subnets(pod, SubnetList::Outbound)?;
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
                Ipv6::Auto if proxy.is_ipv4_only => Ipv6::No,
                ipv6 => ipv6,
            },
            ignored,
            blocked_init_containers: containers::redirected_names(&pod.early_containers, &redirect),
            exempt_containers: containers::exempt_names(&pod.app_containers, &redirect),
            redirect,
        })
    }

    /// Like [`Config::resolve`], but returns only the redirect.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        self.resolve(pod).map(|resolved| resolved.redirect)
    }

    /// Returns the lists of the plugin entry and of the annotation, which both apply. The chart
    /// includes the proxy's admin and control ports in the former.
    pub fn inbound_ports<'a>(&'a self, pod: &'a PodFacts) -> [ListSetting<'a>; 2] {
        let configured = &self.inbound_ports_to_ignore[..];
        [
            ListSetting { key: INBOUND_KEY, annotation: None, configured },
            ListSetting::new(pod, annotation::SKIP_INBOUND_PORTS, INBOUND_KEY, &[]),
        ]
    }

    /// Returns the annotated outbound ports, or else those of the plugin entry.
    pub fn outbound_ports<'a>(&'a self, pod: &'a PodFacts) -> ListSetting<'a> {
        let configured = &self.outbound_ports_to_ignore;
        ListSetting::new(pod, annotation::SKIP_OUTBOUND_PORTS, OUTBOUND_KEY, configured)
    }

    /// Returns the annotated interfaces inside the pod, or else those of the plugin entry.
    pub fn inner_interface_list<'a>(&'a self, pod: &'a PodFacts) -> ListSetting<'a> {
        ListSetting::new(pod, annotation::INNER_INTERFACES, INNER_KEY, &self.inner_interfaces)
    }

    /// Returns the valid subnets of a list, and the annotation or the key of the plugin entry that
    /// contains the list.
    pub fn valid_subnets(&self, pod: &PodFacts, list: SubnetList) -> (&'static str, Vec<Subnet>) {
        let setting = self.subnet_setting(pod, list);
        let subnets = setting.elements().filter_map(|text| Subnet::parse(text.trim()));
        (setting.key, subnets.collect())
    }

    /// Returns the subnets of a list. Fails if an element is invalid.
    fn subnets(&self, pod: &PodFacts, list: SubnetList) -> Result<Vec<Subnet>, Error> {
        let setting = self.subnet_setting(pod, list);
        let mut subnets = Vec::new();
        for text in setting.elements().map(str::trim).filter(|text| !text.is_empty()) {
            let Some(subnet) = Subnet::parse(text) else {
                let expected = "expected a CIDR such as 10.0.0.0/8 or fd00::/8";
                let problem = format!("{} is not a subnet: {expected}", quote(text));
                return Err(setting.error(&problem));
            };
            subnets.push(subnet);
        }
        Ok(subnets)
    }

    /// Returns the annotated subnets, or else those of the plugin entry.
    fn subnet_setting<'a>(&'a self, pod: &'a PodFacts, list: SubnetList) -> ListSetting<'a> {
        let configured = &self.subnets_to_ignore[list as usize];
        ListSetting::new(pod, list.annotation(), list.key(), configured)
    }
}

/// The valid and the ignored elements of lists of ports.
struct PortRanges {
    ranges: Vec<PortRange>,
    ignored: Vec<Ignored>,
}

/// The valid and the ignored elements of the list of interfaces inside the pod.
struct InnerInterfaces {
    interfaces: Vec<Interface>,
    ignored: Option<Ignored>,
}

/// A port of the proxy.
struct ProxyPort {
    /// `None`: neither the container nor a valid annotation sets the port.
    port: Option<u16>,
    /// The annotation's value, if it is invalid and ignored.
    ignored: Option<Ignored>,
}

/// A list of ports, subnets or interfaces. An annotation replaces the list of the plugin entry.
#[derive(Clone, Copy)]
pub struct ListSetting<'a> {
    /// Name of the annotation, or key of the plugin entry.
    pub key: &'static str,
    annotation: Option<&'a String>,
    configured: &'a [String],
}

impl<'a> ListSetting<'a> {
    fn new(
        pod: &'a PodFacts,
        annotation: &'static str,
        key: &'static str,
        configured: &'a [String],
    ) -> Self {
        match pod.annotations.get(annotation) {
            Some(text) => ListSetting { key: annotation, annotation: Some(text), configured: &[] },
            None => ListSetting { key, annotation: None, configured },
        }
    }

    fn elements(self) -> impl Iterator<Item = &'a str> {
        let annotated = self.annotation.into_iter().flat_map(|text| text.split(','));
        annotated.chain(self.configured.iter().map(String::as_str))
    }

    pub fn ports(self) -> impl Iterator<Item = Result<PortRange, InvalidElement<'a>>> {
        self.elements().map(PortRange::parse)
    }

    /// Returns the distinct interfaces of the list, and its invalid elements. Interfaces beyond
    /// [`interfaces::COUNT_LIMIT`] are invalid.
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
    /// Parses `lists` in order, and appends the ranges `more`. Fails if there are only invalid
    /// elements: upstream then creates a rule without ports, which iptables rejects.
    fn port_ranges(
        &self,
        lists: &[ListSetting<'_>],
        more: &[PortRange],
    ) -> Result<PortRanges, Error> {
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

    /// Returns the interfaces inside the pod. Fails if the list has only invalid elements, like
    /// [`Config::port_ranges`].
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

    /// Returns a port of the proxy: `container_port`, or else the value of the annotation `key`.
    ///
    /// Upstream's plugin does not read these annotations. Upstream's proxy injector ignores invalid
    /// values, such as values with blanks (`strconv.ParseInt` in `ApplyAnnotationOverrides` of
    /// linkerd2's `pkg/inject/inject.go`).
    fn proxy_port(
        &self,
        pod: &PodFacts,
        container_port: Option<u16>,
        key: &'static str,
    ) -> Result<ProxyPort, Error> {
        if container_port.is_some() {
            return Ok(ProxyPort { port: container_port, ignored: None });
        }
        let Some(text) = pod.annotations.get(key) else {
            return Ok(ProxyPort { port: None, ignored: None });
        };
        match text.parse() {
            Ok(port) if port > 0 => Ok(ProxyPort { port: Some(port), ignored: None }),
            _ if self.strict_annotations => {
                Err(annotation_error(key, text, &format!("expected {PORT_GRAMMAR}")))
            }
            _ => {
                let elements = vec![quote::cut(text)];
                let ignored = Ignored { source: key, elements, more: 0 };
                Ok(ProxyPort { port: None, ignored: Some(ignored) })
            }
        }
    }
}

/// Returns the port, or else `default`, the value of `key` in the plugin entry.
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

fn parse_ports_to_redirect(texts: &[String]) -> Result<Vec<u16>, Error> {
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
