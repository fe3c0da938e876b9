//! Checks plugin entry, annotations and proxy container, and combines them into a [`Redirect`].
//!
//! Upstream drops an invalid element of a port list, logs that on the node, and starts the pod. So does
//! this module, and it returns the element, so that the pod's owner gets an Event. With
//! `strict-annotations`, the first invalid element is an error.

use std::net::IpAddr;

use ipnet::IpNet;

use super::ignored_ports::{INBOUND_KEY, Ignored, OUTBOUND_KEY, PORT_GRAMMAR};
use super::section::config_error;
use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::pod::annotation::{self, annotation_error};
use crate::pod::containers;
use crate::pod::facts::PodFacts;
use crate::quote::{self, quote};
use crate::redirect::ports::{self, InvalidElements, PortRange};
use crate::redirect::{Ipv6, Redirect, Subnet};

/// Annotations with subnets that are not redirected, and the keys of the plugin entry that they
/// replace. The first two are of inbound connections, the last is of outbound ones.
pub(super) const SUBNETS: [(&str, &str); 3] = [
    (annotation::SKIP_SUBNETS, "subnets-to-ignore"),
    (annotation::SKIP_INBOUND_SUBNETS, "inbound-subnets-to-ignore"),
    (annotation::SKIP_OUTBOUND_SUBNETS, "outbound-subnets-to-ignore"),
];

impl Config {
    /// The proxy container wins over annotations, and those win over the plugin entry. As in upstream,
    /// annotated outbound ports, subnets, UID and GID replace the value of the plugin entry, and annotated
    /// inbound ports are added to it.
    pub fn resolve(&self, pod: &PodFacts) -> Result<ResolvedRedirect, Error> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let mut resolver = Resolver { config: self, pod, ignored: Vec::new() };
        let defaults = &self.defaults;
        let skip_outbound = resolver.skipped_outbound()?;
        let [any, inbound, outbound] = [0, 1, 2].map(|index| self.subnets(pod, index));
        let (proxy_uid, proxy_gid) = self.proxy_user(pod)?;
        let redirect = Redirect {
            inbound_port: match resolver.port(pod.proxy.inbound_port, annotation::INBOUND_PORT)? {
                Some(port) => port,
                None => proxy_port("incoming-proxy-port", defaults.incoming_proxy_port)?,
            },
            outbound_port: match resolver
                .port(pod.proxy.outbound_port, annotation::OUTBOUND_PORT)?
            {
                Some(port) => port,
                None => proxy_port("outgoing-proxy-port", defaults.outgoing_proxy_port)?,
            },
            proxy_uid,
            proxy_gid,
            ports_to_redirect: redirected_ports(&defaults.ports_to_redirect)?,
            skip_inbound: resolver.skipped_inbound()?,
            skip_outbound,
            skip_subnets: [any?.1, inbound?.1].concat(),
            skip_outbound_subnets: outbound?.1,
            is_guessed: false,
        };
        Ok(ResolvedRedirect {
            ipv6: match self.ipv6 {
                Ipv6::Auto if pod.proxy.is_ipv4_only => Ipv6::No,
                ipv6 => ipv6,
            },
            ignored: resolver.ignored,
            blocked_init_containers: containers::blocked(&pod.early_containers, &redirect),
            exempt_containers: containers::exempt(&pod.app_containers, &redirect),
            sandboxed_by: self.is_sandboxed(&pod.runtime_class).then(|| pod.runtime_class.clone()),
            redirect,
        })
    }

    /// [`Config::resolve`] without the ignored elements.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        self.resolve(pod).map(|resolved| resolved.redirect)
    }

    /// Returns the inbound ports of the plugin entry (the chart includes the proxy's admin and control
    /// port), and the annotated ones, which are added to them.
    pub(super) fn inbound_ports<'a>(&'a self, pod: &'a PodFacts) -> Vec<PortList<'a>> {
        let configured = &self.defaults.inbound_ports_to_ignore;
        let configured = PortList::configured(INBOUND_KEY, configured);
        let annotated = PortList::annotated(pod, annotation::SKIP_INBOUND_PORTS);
        [configured].into_iter().chain(annotated).collect()
    }

    /// Returns the annotated outbound ports, or else those of the plugin entry.
    pub(super) fn outbound_ports<'a>(&'a self, pod: &'a PodFacts) -> PortList<'a> {
        let configured = &self.defaults.outbound_ports_to_ignore;
        PortList::annotated(pod, annotation::SKIP_OUTBOUND_PORTS)
            .unwrap_or_else(|| PortList::configured(OUTBOUND_KEY, configured))
    }

    /// Returns the annotated subnets, or else those of the plugin entry, and their annotation or key.
    /// `index` is that of [`SUBNETS`].
    pub(super) fn subnets(
        &self,
        pod: &PodFacts,
        index: usize,
    ) -> Result<(&'static str, Vec<Subnet>), Error> {
        let (annotation, key) = SUBNETS[index];
        match pod.annotations.get(annotation) {
            Some(text) => subnets(text.split(','))
                .map(|subnets| (annotation, subnets))
                .map_err(|problem| annotation_error(annotation, text, &problem)),
            None => subnets(self.defaults.subnets_to_ignore[index].iter().map(String::as_str))
                .map(|subnets| (key, subnets))
                .map_err(|problem| config_error(key, &problem)),
        }
    }
}

/// Combines the values for one pod, and collects the ignored elements.
struct Resolver<'a> {
    config: &'a Config,
    pod: &'a PodFacts,
    ignored: Vec<Ignored>,
}

/// A port list as configured. Its text is that of an annotation; the plugin entry has none.
pub(super) struct PortList<'a> {
    pub key: &'static str,
    annotation: Option<&'a str>,
    pub ranges: Vec<PortRange>,
    invalid: InvalidElements<'a>,
}

impl<'a> PortList<'a> {
    fn configured(key: &'static str, texts: &'a [String]) -> Self {
        let (ranges, invalid) = ports::elements(texts.iter().map(String::as_str));
        PortList { key, annotation: None, ranges, invalid }
    }

    fn annotated(pod: &'a PodFacts, key: &'static str) -> Option<Self> {
        let text = pod.annotations.get(key)?;
        let (ranges, invalid) = ports::list(text);
        Some(PortList { key, annotation: Some(text), ranges, invalid })
    }

    fn error(&self, problem: &str) -> Error {
        match self.annotation {
            Some(text) => annotation_error(self.key, text, problem),
            None => config_error(self.key, problem),
        }
    }
}

impl<'a> Resolver<'a> {
    fn skipped_outbound(&mut self) -> Result<Vec<PortRange>, Error> {
        let list = self.config.outbound_ports(self.pod);
        let ports = self.valid_ranges([list], &self.pod.api_ports)?;
        Ok(ports::distinct(&ports))
    }

    fn skipped_inbound(&mut self) -> Result<Vec<PortRange>, Error> {
        let mut ports = self.valid_ranges(self.config.inbound_ports(self.pod), &[])?;
        for (explicit, key) in [
            (self.pod.proxy.admin_port, annotation::ADMIN_PORT),
            (self.pod.proxy.control_port, annotation::CONTROL_PORT),
        ] {
            ports.extend(self.port(explicit, key)?.map(PortRange::from));
        }
        Ok(ports::distinct(&ports))
    }

    /// Returns the ranges of all `lists` in order, followed by `more`. Fails if all elements are invalid and
    /// `more` is empty: upstream creates a rule without ports then, which iptables rejects.
    fn valid_ranges(
        &mut self,
        lists: impl IntoIterator<Item = PortList<'a>>,
        more: &[PortRange],
    ) -> Result<Vec<PortRange>, Error> {
        let mut all = Vec::new();
        let mut last_invalid = None;
        for list in lists {
            all.extend(&list.ranges);
            let Some(&first) = list.invalid.first.first() else {
                continue;
            };
            if self.config.strict_annotations {
                let problem = format!("{first}; grammar: {}", ports::GRAMMAR);
                return Err(list.error(&problem));
            }
            self.ignored.push(Ignored::new(list.key, &list.invalid));
            last_invalid = Some((first, list));
        }
        all.extend(more);
        match last_invalid {
            Some((error, list)) if all.is_empty() => Err(list
                .error(&format!("{error}; no valid element is left; grammar: {}", ports::GRAMMAR))),
            _ => Ok(all),
        }
    }

    /// Returns a port of the proxy: `explicit` from its container, else the annotation `key`. Upstream's
    /// plugin does not read such annotations; upstream's proxy injector ignores invalid values, and a
    /// value with blanks is one (`strconv.ParseInt` in `ApplyAnnotationOverrides` of linkerd2's
    /// `pkg/inject/inject.go`).
    fn port(&mut self, explicit: Option<u16>, key: &'static str) -> Result<Option<u16>, Error> {
        let Some(text) = self.pod.annotations.get(key).filter(|_| explicit.is_none()) else {
            return Ok(explicit);
        };
        match text.parse() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ if self.config.strict_annotations => {
                Err(annotation_error(key, text, &format!("expected {PORT_GRAMMAR}")))
            }
            _ => {
                let elements = vec![quote::cut(text)];
                self.ignored.push(Ignored { source: key, elements, more: 0 });
                Ok(None)
            }
        }
    }
}

fn proxy_port(key: &str, number: i64) -> Result<u16, Error> {
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(|| {
        let problem = format!("{number} is not a port of the proxy: expected {PORT_GRAMMAR}");
        config_error(key, &problem)
    })
}

fn redirected_ports(texts: &[String]) -> Result<Vec<u16>, Error> {
    let port = |text: &String| match PortRange::parse(text.trim()) {
        Ok(range) if range.first == range.last => Ok(range.first),
        _ => {
            let problem =
                format!("{} is not a port: expected a number from 0 to 65535", quote(text));
            Err(config_error("ports-to-redirect", &problem))
        }
    };
    texts.iter().map(port).collect()
}

fn subnets<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Subnet>, String> {
    let subnet = |text: &str| match subnet(text) {
        Some(net) => Ok(Subnet { net: net.trunc(), text: text.to_owned() }),
        None => Err(format!(
            "{} is not a subnet: expected a CIDR such as 10.0.0.0/8 or fd00::/8",
            quote(text)
        )),
    };
    texts.map(str::trim).filter(|text| !text.is_empty()).map(subnet).collect()
}

fn subnet(text: &str) -> Option<IpNet> {
    // IpNet accepts 010.0.0.0, which some programs read as 8.0.0.0 and others as 10.0.0.0.
    // IpAddr rejects it.
    let (address, _) = text.split_once('/')?;
    address.parse::<IpAddr>().ok()?;
    text.parse().ok()
}
