//! What is wanted for one pod: our part of the network configuration, with the pod's
//! annotations applied over it. Pure; the values come from [`crate::plugin`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::cni::error::{Error, code};
use crate::cni::object::Object;
use crate::ports::{self, PortRange};
use crate::rules::{Redirect, Subnet};

/// Annotations that change the rules of a pod (contract 4.5).
pub mod annotation {
    pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
    pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
    pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
    pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
    pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";

    /// All of them.
    pub const ALL: [&str; 5] = [
        SKIP_OUTBOUND_PORTS,
        SKIP_INBOUND_PORTS,
        SKIP_SUBNETS,
        PROXY_UID,
        PROXY_GID,
    ];
}

/// Annotation keys and values.
pub type Annotations = BTreeMap<String, String>;

/// Which iptables programs put the rules in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Nft,
    /// Also what an absent or empty `iptables-mode` means, as upstream.
    #[default]
    Legacy,
    Plain,
}

/// Our keys in the network configuration (contract 4.2). Unknown ones are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub log_level: String,
    pub kubeconfig: PathBuf,
    pub mode: Mode,
    /// Log the rules and change nothing.
    pub simulate: bool,
    /// Also redirect IPv6.
    pub ipv6: bool,
    defaults: Defaults,
}

/// The rules of a pod without annotations, as configured; numbers are not yet checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Defaults {
    incoming_proxy_port: i64,
    outgoing_proxy_port: i64,
    proxy_uid: i64,
    proxy_gid: i64,
    ports_to_redirect: Vec<String>,
    inbound_ports_to_ignore: Vec<String>,
    outbound_ports_to_ignore: Vec<String>,
    subnets_to_ignore: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kubernetes {
    kubeconfig: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Linkerd {
    incoming_proxy_port: Option<i64>,
    outgoing_proxy_port: Option<i64>,
    proxy_uid: Option<i64>,
    proxy_gid: Option<i64>,
    ports_to_redirect: Option<Vec<PortText>>,
    inbound_ports_to_ignore: Option<Vec<PortText>>,
    outbound_ports_to_ignore: Option<Vec<PortText>>,
    subnets_to_ignore: Option<Vec<String>>,
    simulate: Option<bool>,
    /// Taken and ignored: we always wait for the xtables lock, for a bounded time.
    #[serde(rename = "use-wait-flag")]
    _use_wait_flag: Option<bool>,
    iptables_mode: Option<String>,
    ipv6: Option<bool>,
}

/// Upstream wants numbers in one list and strings in the others; both do in all.
#[derive(Deserialize)]
#[serde(untagged)]
enum PortText {
    Number(u64),
    Text(String),
}

impl From<PortText> for String {
    fn from(port: PortText) -> String {
        match port {
            PortText::Number(number) => number.to_string(),
            PortText::Text(text) => text,
        }
    }
}

impl Config {
    /// Reads our keys from the network configuration on stdin.
    pub fn read(config: &Object) -> Result<Self, Error> {
        let log_level: Option<String> = member(config, "log_level")?;
        let kubernetes: Kubernetes = member(config, "kubernetes")?.unwrap_or_default();
        let linkerd: Linkerd = member(config, "linkerd")?.unwrap_or_default();
        let texts = |ports: Option<Vec<PortText>>| {
            ports
                .unwrap_or_default()
                .into_iter()
                .map(String::from)
                .collect()
        };
        Ok(Config {
            log_level: log_level.unwrap_or_default(),
            kubeconfig: kubernetes.kubeconfig.unwrap_or_default(),
            mode: mode(linkerd.iptables_mode.as_deref())?,
            simulate: linkerd.simulate.unwrap_or_default(),
            ipv6: linkerd.ipv6.unwrap_or_default(),
            defaults: Defaults {
                incoming_proxy_port: linkerd.incoming_proxy_port.unwrap_or_default(),
                outgoing_proxy_port: linkerd.outgoing_proxy_port.unwrap_or_default(),
                proxy_uid: linkerd.proxy_uid.unwrap_or_default(),
                proxy_gid: linkerd.proxy_gid.unwrap_or_default(),
                ports_to_redirect: texts(linkerd.ports_to_redirect),
                inbound_ports_to_ignore: texts(linkerd.inbound_ports_to_ignore),
                outbound_ports_to_ignore: texts(linkerd.outbound_ports_to_ignore),
                subnets_to_ignore: linkerd.subnets_to_ignore.unwrap_or_default(),
            },
        })
    }

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

/// Reads one member of the configuration. Through [`Value`], which takes the last of
/// duplicate keys as Go's decoder does.
fn member<T: serde::de::DeserializeOwned>(config: &Object, key: &str) -> Result<Option<T>, Error> {
    let Some(raw) = config.given(key) else {
        return Ok(None);
    };
    let unreadable = |error: serde_json::Error| {
        Error::new(
            code::INVALID_CONFIG,
            format!("network configuration of linkerd-cni: \"{key}\": {error}"),
        )
        .with_details(
            "the entry comes from the ConfigMap linkerd-cni-config, made by the chart's values",
        )
    };
    let value: Value = serde_json::from_str(raw.get()).map_err(unreadable)?;
    serde_json::from_value(value).map(Some).map_err(unreadable)
}

fn mode(text: Option<&str>) -> Result<Mode, Error> {
    match text.unwrap_or_default() {
        "" => Ok(Mode::default()),
        "nft" => Ok(Mode::Nft),
        "legacy" => Ok(Mode::Legacy),
        "plain" => Ok(Mode::Plain),
        other => Err(config_error(
            "iptables-mode",
            &format!("\"{other}\" is not one of nft, legacy and plain"),
        )),
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

fn config_error(key: &str, problem: &str) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("network configuration of linkerd-cni: \"linkerd\": \"{key}\": {problem}"),
    )
    .with_details(
        "the entry comes from the ConfigMap linkerd-cni-config, made by the chart's values",
    )
}

fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(
        code::ANNOTATION,
        format!("annotation {key}: {value:?}: {problem}"),
    )
    .with_details("correct the annotation of the pod or of its namespace")
}

#[cfg(test)]
mod tests;
