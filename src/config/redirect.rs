//! Configuration and annotations, checked and combined into one [`Redirect`].

use ipnet::IpNet;

use super::{Annotations, Config, annotation, config_error};
use crate::cni::error::{Error, code};
use crate::ports::{self, PortRange};
use crate::rules::{Redirect, Subnet};

impl Config {
    /// The redirect for a pod with these `annotations`. `api_ports` are the API
    /// server's, which a control-plane pod reaches without the proxy; for other pods
    /// there are none.
    ///
    /// As upstream: an outbound list replaces the configured one, an inbound list is
    /// added to it, subnets replace, UID and GID replace.
    pub fn redirect(
        &self,
        annotations: &Annotations,
        api_ports: &[PortRange],
    ) -> Result<Redirect, Error> {
        let defaults = &self.defaults;
        let inbound =
            configured_ports("inbound-ports-to-ignore", &defaults.inbound_ports_to_ignore)?
                .into_iter()
                .chain(
                    annotated_ports(annotations, annotation::SKIP_INBOUND_PORTS)?
                        .unwrap_or_default(),
                );
        let outbound = match annotated_ports(annotations, annotation::SKIP_OUTBOUND_PORTS)? {
            Some(ports) => ports,
            None => configured_ports(
                "outbound-ports-to-ignore",
                &defaults.outbound_ports_to_ignore,
            )?,
        };
        let skip_subnets = match annotations.get(annotation::SKIP_SUBNETS) {
            Some(text) => subnets(text.split(','))
                .map_err(|problem| annotation_error(annotation::SKIP_SUBNETS, text, &problem))?,
            None => subnets(defaults.subnets_to_ignore.iter().map(String::as_str))
                .map_err(|problem| config_error("subnets-to-ignore", &problem))?,
        };
        let proxy_uid = owner(
            annotations,
            annotation::PROXY_UID,
            "proxy-uid",
            defaults.proxy_uid,
        )?;
        let proxy_gid = owner(
            annotations,
            annotation::PROXY_GID,
            "proxy-gid",
            defaults.proxy_gid,
        )?;
        if proxy_uid.is_none() && proxy_gid.is_none() {
            return Err(Error::new(
                code::INVALID_CONFIG,
                "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be redirected to the proxy",
            )
            .with_details(format!(
                "set the chart's proxyUID, or the annotation {}, to the UID that the proxy runs with (2102)",
                annotation::PROXY_UID
            )));
        }
        Ok(Redirect {
            inbound_port: proxy_port("incoming-proxy-port", defaults.incoming_proxy_port)?,
            outbound_port: proxy_port("outgoing-proxy-port", defaults.outgoing_proxy_port)?,
            proxy_uid,
            proxy_gid,
            ports_to_redirect: redirected_ports(&defaults.ports_to_redirect)?,
            skip_inbound: ports::distinct(inbound),
            skip_outbound: ports::distinct(outbound.into_iter().chain(api_ports.iter().copied())),
            skip_subnets,
        })
    }
}

fn proxy_port(key: &str, port: i64) -> Result<u16, Error> {
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(config_error(
            key,
            &format!("{port} is not a port of the proxy: 1 to 65535 is wanted"),
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
        .map(|text| match text.parse::<IpNet>() {
            Ok(net) => Ok(Subnet {
                net: net.trunc(),
                text: text.to_owned(),
            }),
            Err(_) => Err(format!(
                "\"{text}\" is not a subnet: CIDR such as 10.0.0.0/8 or fd00::/8 is wanted"
            )),
        })
        .collect()
}

/// A UID or GID of the proxy; 0 and below mean "no such rule", as upstream.
fn owner(
    annotations: &Annotations,
    annotation: &str,
    key: &str,
    default: i64,
) -> Result<Option<u32>, Error> {
    let id = match annotations.get(annotation) {
        Some(text) => text.trim().parse().map_err(|_| {
            annotation_error(annotation, text, "a whole number is wanted, such as 2102")
        })?,
        None => default,
    };
    match u32::try_from(id.max(0)) {
        Ok(0) => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(config_error(
            key,
            &format!("{id} is above the largest id, {}", u32::MAX),
        )),
    }
}

fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(
        code::ANNOTATION,
        format!("annotation {key}: {value:?}: {problem}"),
    )
    .with_details("correct the annotation of the pod or of its namespace")
}
