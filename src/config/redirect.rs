//! Configuration and annotations, checked and combined into one [`Redirect`].

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Annotations, Config, PodFacts, annotation, config_error};
use crate::cni::error::{Error, code};
use crate::ports::{self, PortRange};
use crate::rules::{Redirect, Subnet};

impl Config {
    /// The redirect for a pod that says `pod` of itself. The proxy's container counts
    /// first, then annotations, then the configuration.
    ///
    /// As upstream: an outbound list replaces the configured one, an inbound list is
    /// added to it, subnets replace, UID and GID replace.
    pub fn redirect(&self, pod: &PodFacts) -> Result<Redirect, Error> {
        if let Some(problem) = self.problem() {
            return Err(problem.clone());
        }
        let defaults = &self.defaults;
        let annotations = &pod.annotations;
        let ports = |key| annotated_ports(annotations, key);
        let outbound = match ports(annotation::SKIP_OUTBOUND_PORTS)? {
            Some(ports) => ports,
            None => configured_ports(
                "outbound-ports-to-ignore",
                &defaults.outbound_ports_to_ignore,
            )?,
        };
        let (proxy_uid, proxy_gid) = self.owners(pod)?;
        Ok(Redirect {
            inbound_port: proxy_port(
                pod.proxy.inbound_port,
                annotations,
                annotation::INBOUND_PORT,
                ("incoming-proxy-port", defaults.incoming_proxy_port),
            )?,
            outbound_port: proxy_port(
                pod.proxy.outbound_port,
                annotations,
                annotation::OUTBOUND_PORT,
                ("outgoing-proxy-port", defaults.outgoing_proxy_port),
            )?,
            proxy_uid,
            proxy_gid,
            ports_to_redirect: redirected_ports(&defaults.ports_to_redirect)?,
            skip_inbound: ports::distinct(self.skipped_inbound(pod)?),
            skip_outbound: ports::distinct(outbound.into_iter().chain(pod.api_ports.clone())),
            skip_subnets: self.skipped_subnets(annotations)?,
        })
    }

    /// The configured ports (the chart puts the proxy's admin and control port there),
    /// the annotated ones, and the admin and control port of this pod's own proxy.
    fn skipped_inbound(&self, pod: &PodFacts) -> Result<Vec<PortRange>, Error> {
        let configured = &self.defaults.inbound_ports_to_ignore;
        let mut ports = configured_ports("inbound-ports-to-ignore", configured)?;
        ports.extend(
            annotated_ports(&pod.annotations, annotation::SKIP_INBOUND_PORTS)?.unwrap_or_default(),
        );
        for (explicit, key) in [
            (pod.proxy.admin_port, annotation::ADMIN_PORT),
            (pod.proxy.control_port, annotation::CONTROL_PORT),
        ] {
            let port = match explicit {
                Some(port) => Some(port),
                None => annotated_port(&pod.annotations, key)?,
            };
            ports.extend(port.map(PortRange::from));
        }
        Ok(ports)
    }

    fn skipped_subnets(&self, annotations: &Annotations) -> Result<Vec<Subnet>, Error> {
        match annotations.get(annotation::SKIP_SUBNETS) {
            Some(text) => subnets(text.split(','))
                .map_err(|problem| annotation_error(annotation::SKIP_SUBNETS, text, &problem)),
            None => subnets(self.defaults.subnets_to_ignore.iter().map(String::as_str))
                .map_err(|problem| config_error("subnets-to-ignore", &problem)),
        }
    }

    /// UID and GID whose connections are the proxy's own. One of them must be known.
    fn owners(&self, pod: &PodFacts) -> Result<(Option<u32>, Option<u32>), Error> {
        let uid = owner(
            pod.proxy.uid,
            &pod.annotations,
            annotation::PROXY_UID,
            ("proxy-uid", self.defaults.proxy_uid),
        )?;
        let gid = owner(
            pod.proxy.gid,
            &pod.annotations,
            annotation::PROXY_GID,
            ("proxy-gid", self.defaults.proxy_gid),
        )?;
        if uid.is_some() || gid.is_some() {
            return Ok((uid, gid));
        }
        if let (None, Some(text)) = (pod.proxy.uid, pod.annotations.get(annotation::PROXY_UID)) {
            let wanted = "the UID that the proxy runs with is wanted, above 0, such as 2102; else its own connections would be redirected to the proxy";
            return Err(annotation_error(annotation::PROXY_UID, text, wanted));
        }
        Err(Error::new(
            code::INVALID_CONFIG,
            "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be redirected to the proxy",
        )
        .with_details(format!(
            "set the chart's proxyUID, or the annotation {}, to the UID that the proxy runs with (2102)",
            annotation::PROXY_UID
        )))
    }
}

/// A port that the proxy listens on; the last is the configured one with its key.
fn proxy_port(
    explicit: Option<u16>,
    annotations: &Annotations,
    annotation: &str,
    (key, default): (&str, i64),
) -> Result<u16, Error> {
    if let Some(port) = explicit {
        return Ok(port);
    }
    if let Some(port) = annotated_port(annotations, annotation)? {
        return Ok(port);
    }
    match u16::try_from(default) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(config_error(
            key,
            &format!("{default} is not a port of the proxy: 1 to 65535 is wanted"),
        )),
    }
}

/// An annotation that is one port.
fn annotated_port(annotations: &Annotations, key: &str) -> Result<Option<u16>, Error> {
    let Some(text) = annotations.get(key) else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(Some(port)),
        _ => Err(annotation_error(
            key,
            text,
            "a port from 1 to 65535 is wanted",
        )),
    }
}

fn redirected_ports(texts: &[String]) -> Result<Vec<u16>, Error> {
    texts
        .iter()
        .map(|text| match text.trim().parse::<PortRange>() {
            Ok(range) if range.first == range.last && range.first > 0 => Ok(range.first),
            _ => Err(config_error(
                "ports-to-redirect",
                &format!("\"{text}\" is not a port: a number from 1 to 65535 is wanted"),
            )),
        })
        .collect()
}

fn configured_ports(key: &str, texts: &[String]) -> Result<Vec<PortRange>, Error> {
    let mut ranges = Vec::new();
    for text in texts {
        let more = ports::list(text)
            .map_err(|problem| config_error(key, &format!("{problem}; {}", ports::GRAMMAR)))?;
        ranges.extend(more);
    }
    Ok(ranges)
}

fn annotated_ports(annotations: &Annotations, key: &str) -> Result<Option<Vec<PortRange>>, Error> {
    let Some(text) = annotations.get(key) else {
        return Ok(None);
    };
    match ports::list(text) {
        Ok(ranges) => Ok(Some(ranges)),
        Err(problem) => Err(annotation_error(
            key,
            text,
            &format!("{problem}; {} is wanted", ports::GRAMMAR),
        )),
    }
}

fn subnets<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Subnet>, String> {
    texts
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| match subnet(text) {
            Some(net) => Ok(Subnet {
                net: net.trunc(),
                text: text.to_owned(),
            }),
            None => Err(format!(
                "\"{text}\" is not a subnet: CIDR such as 10.0.0.0/8 or fd00::/8 is wanted"
            )),
        })
        .collect()
}

fn subnet(text: &str) -> Option<IpNet> {
    // Stricter than IpNet: 010.0.0.0 is 8.0.0.0 to some programs and 10.0.0.0 to others.
    let (address, _) = text.split_once('/')?;
    address.parse::<IpAddr>().ok()?;
    text.parse().ok()
}

/// A UID or GID of the proxy; 0 and below mean "no such rule", as upstream.
fn owner(
    explicit: Option<i64>,
    annotations: &Annotations,
    annotation: &str,
    (key, default): (&str, i64),
) -> Result<Option<u32>, Error> {
    // The largest number means "no id" to the kernel.
    let largest = u32::MAX - 1;
    let id = match (explicit, annotations.get(annotation)) {
        (Some(id), _) => id,
        (None, Some(text)) => {
            let id = text.trim().parse().ok();
            id.filter(|id| *id <= i64::from(largest)).ok_or_else(|| {
                let wanted = format!("a whole number up to {largest} is wanted, such as 2102");
                annotation_error(annotation, text, &wanted)
            })?
        }
        (None, None) => default,
    };
    match u32::try_from(id.max(0)) {
        Ok(0) => Ok(None),
        Ok(id) if id <= largest => Ok(Some(id)),
        _ => {
            let problem = format!("{id} is above the largest id, {largest}");
            Err(config_error(key, &problem))
        }
    }
}

fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(
        code::ANNOTATION,
        format!("annotation {key}: {value:?}: {problem}"),
    )
    .with_details("correct the annotation of the pod or of its namespace")
}
