//! What is wanted for one pod: our part of the network configuration, with the pod's
//! annotations applied over it. Pure; the values come from [`crate::plugin`].

mod redirect;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use crate::cni::error::{Error, code};
use crate::cni::object::Object;

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

const CONFIG_REMEDY: &str =
    "the entry comes from the ConfigMap linkerd-cni-config, made by the chart's values";

/// Annotation keys and values.
pub type Annotations = BTreeMap<String, String>;

/// What puts the rules in place: `iptables-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The first that works of native, nft and legacy. Also what an absent or empty
    /// `iptables-mode` means.
    #[default]
    Auto,
    /// nf_tables of the kernel, without any program of the host.
    Native,
    /// `iptables-nft-restore`.
    Nft,
    /// `iptables-legacy-restore`.
    Legacy,
    /// `iptables-restore`, whichever kind it is.
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
        let kubernetes: Kubernetes = section(config, "kubernetes")?;
        let linkerd: Linkerd = section(config, "linkerd")?;
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
}

/// Reads a member that is an object. A struct could also be read from a list.
fn section<T: Default + serde::de::DeserializeOwned>(
    config: &Object,
    key: &str,
) -> Result<T, Error> {
    let members: Option<serde_json::Map<String, Value>> = member(config, key)?;
    let Some(members) = members else {
        return Ok(T::default());
    };
    serde_json::from_value(members.into()).map_err(|error| member_error(key, &error))
}

/// Reads one member of the configuration. Through [`Value`], which takes the last of
/// duplicate keys as Go's decoder does.
fn member<T: serde::de::DeserializeOwned>(config: &Object, key: &str) -> Result<Option<T>, Error> {
    let Some(raw) = config.given(key) else {
        return Ok(None);
    };
    let unreadable = |error| member_error(key, &error);
    let value: Value = serde_json::from_str(raw.get()).map_err(unreadable)?;
    serde_json::from_value(value).map(Some).map_err(unreadable)
}

fn member_error(key: &str, problem: &serde_json::Error) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("network configuration of linkerd-cni: \"{key}\": {problem}"),
    )
    .with_details(CONFIG_REMEDY)
}

fn mode(text: Option<&str>) -> Result<Mode, Error> {
    match text.unwrap_or_default() {
        "" => Ok(Mode::default()),
        "auto" => Ok(Mode::Auto),
        "native" => Ok(Mode::Native),
        "nft" => Ok(Mode::Nft),
        "legacy" => Ok(Mode::Legacy),
        "plain" => Ok(Mode::Plain),
        other => Err(config_error(
            "iptables-mode",
            &format!("\"{other}\" is not one of auto, native, nft, legacy and plain"),
        )),
    }
}

fn config_error(key: &str, problem: &str) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("network configuration of linkerd-cni: \"linkerd\": \"{key}\": {problem}"),
    )
    .with_details(CONFIG_REMEDY)
}

#[cfg(test)]
mod tests;
