//! Checks plugin entry, annotations and proxy container, and combines them into a [`Redirect`].

use std::net::IpAddr;

use ipnet::IpNet;

use super::ignored::{INBOUND_KEY, OUTBOUND_KEY, PORT_GRAMMAR};
use super::port_lists::{PortList, PortListReader};
use super::section::config_error;
use super::{Config, ResolvedRedirect};
use crate::cni::error::Error;
use crate::pod::annotation::{self, Annotations, annotation_error};
use crate::pod::containers;
use crate::pod::facts::PodFacts;
use crate::quote::quote;
use crate::redirect::ports::{self, PortRange};
use crate::redirect::{Ipv6, Redirect, Subnet};

impl Config {
    /// Returns the redirect for `pod` and the ignored elements of its port lists. The proxy
    /// container wins over annotations, and those win over the plugin entry.
    ///
    /// As in upstream, annotated outbound ports, subnets, UID and GID replace the value of the
    /// plugin entry, and annotated inbound ports are added to it. Fails with
    /// [`ANNOTATION`](Failure::InvalidAnnotation) or
    /// [`INVALID_CONFIG`](Failure::InvalidConfig), depending on where an invalid
    /// value is.
    pub fn resolve(&self, pod: &PodFacts) -> Result<ResolvedRedirect, Error> {
        if let Some(problem) = self.problem() {
            return Err(problem.clone());
        }
        let defaults = &self.defaults;
        let annotations = &pod.annotations;
        let mut reader = PortListReader::new(self.strict_annotations);
        let skip_outbound = self.skipped_outbound(pod, &mut reader)?;
        let (proxy_uid, proxy_gid) = self.proxy_user(pod)?;
        let redirect = Redirect {
            inbound_port: proxy_port(
                pod.proxy.inbound_port,
                || reader.port(annotations, annotation::INBOUND_PORT),
                ("incoming-proxy-port", defaults.incoming_proxy_port),
            )?,
            outbound_port: proxy_port(
                pod.proxy.outbound_port,
                || reader.port(annotations, annotation::OUTBOUND_PORT),
                ("outgoing-proxy-port", defaults.outgoing_proxy_port),
            )?,
            proxy_uid,
            proxy_gid,
            ports_to_redirect: redirected_ports(&defaults.ports_to_redirect)?,
            skip_inbound: self.skipped_inbound(pod, &mut reader)?,
            skip_outbound,
            skip_subnets: self.skipped_subnets(annotations)?,
            is_guessed: false,
        };
        Ok(ResolvedRedirect {
            ipv6: match self.ipv6 {
                Ipv6::Auto if pod.proxy.is_ipv4_only => Ipv6::No,
                ipv6 => ipv6,
            },
            ignored: reader.ignored,
            blocked_init_containers: containers::blocked(&pod.early_containers, &redirect),
            exempt_containers: containers::exempt(&pod.app_containers, &redirect),
            redirect,
        })
    }

    /// [`Config::resolve`] without the ignored elements.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        self.resolve(pod).map(|resolved| resolved.redirect)
    }

    /// Returns the annotated outbound ports, or else those of the plugin entry, followed by the
    /// API server's ports.
    fn skipped_outbound(
        &self,
        pod: &PodFacts,
        reader: &mut PortListReader,
    ) -> Result<Vec<PortRange>, Error> {
        let key = annotation::SKIP_OUTBOUND_PORTS;
        let list = match pod.annotations.get(key) {
            Some(text) => PortList::Annotation(key, text),
            None => PortList::Entry(OUTBOUND_KEY, &self.defaults.outbound_ports_to_ignore),
        };
        let ports = reader.ranges(&[list], &pod.api_ports)?;
        Ok(ports::distinct(&ports))
    }

    /// Returns the inbound ports of the plugin entry (the chart includes the proxy's admin and
    /// control port), the annotated ones, and the admin and control port of this pod's proxy.
    fn skipped_inbound(
        &self,
        pod: &PodFacts,
        reader: &mut PortListReader,
    ) -> Result<Vec<PortRange>, Error> {
        let key = annotation::SKIP_INBOUND_PORTS;
        let configured = PortList::Entry(INBOUND_KEY, &self.defaults.inbound_ports_to_ignore);
        let annotated = pod.annotations.get(key);
        let annotated = annotated.map(|text| PortList::Annotation(key, text));
        let lists: Vec<_> = [Some(configured), annotated].into_iter().flatten().collect();
        let mut ports = reader.ranges(&lists, &[])?;
        for (explicit, key) in [
            (pod.proxy.admin_port, annotation::ADMIN_PORT),
            (pod.proxy.control_port, annotation::CONTROL_PORT),
        ] {
            let port = match explicit {
                Some(port) => Some(port),
                None => reader.port(&pod.annotations, key)?,
            };
            ports.extend(port.map(PortRange::from));
        }
        Ok(ports::distinct(&ports))
    }

    fn skipped_subnets(&self, annotations: &Annotations) -> Result<Vec<Subnet>, Error> {
        match annotations.get(annotation::SKIP_SUBNETS) {
            Some(text) => subnets(text.split(','))
                .map_err(|problem| annotation_error(annotation::SKIP_SUBNETS, text, &problem)),
            None => subnets(self.defaults.subnets_to_ignore.iter().map(String::as_str))
                .map_err(|problem| config_error("subnets-to-ignore", &problem)),
        }
    }
}

/// Returns a port of the proxy: `explicit` from its container, else the annotation, else the
/// `default` of the plugin entry. Errors name `key`.
fn proxy_port(
    explicit: Option<u16>,
    annotated: impl FnOnce() -> Result<Option<u16>, Error>,
    (key, default): (&str, i64),
) -> Result<u16, Error> {
    if let Some(port) = explicit {
        return Ok(port);
    }
    if let Some(port) = annotated()? {
        return Ok(port);
    }
    match u16::try_from(default) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(config_error(
            key,
            &format!("{default} is not a port of the proxy: expected {PORT_GRAMMAR}"),
        )),
    }
}

fn redirected_ports(texts: &[String]) -> Result<Vec<u16>, Error> {
    texts
        .iter()
        .map(|text| match text.trim().parse::<PortRange>() {
            Ok(range) if range.first == range.last => Ok(range.first),
            _ => Err(config_error(
                "ports-to-redirect",
                &format!("{} is not a port: expected a number from 0 to 65535", quote(text)),
            )),
        })
        .collect()
}

fn subnets<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Subnet>, String> {
    texts
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| match subnet(text) {
            Some(net) => Ok(Subnet { net: net.trunc(), text: text.to_owned() }),
            None => Err(format!(
                "{} is not a subnet: expected a CIDR such as 10.0.0.0/8 or fd00::/8",
                quote(text)
            )),
        })
        .collect()
}

fn subnet(text: &str) -> Option<IpNet> {
    // IpNet accepts 010.0.0.0, which some programs read as 8.0.0.0 and others as 10.0.0.0.
    // IpAddr rejects it.
    let (address, _) = text.split_once('/')?;
    address.parse::<IpAddr>().ok()?;
    text.parse().ok()
}
