//! What is wanted for one pod: our part of the network configuration, with the pod's
//! annotations applied over it. Pure; the values come from [`crate::plugin`].

pub mod families;
pub mod ignored;
mod lists;
mod members;
pub mod pod;
mod redirect;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::cni::error::{Error, code};
use crate::cni::object::Object;
use crate::firewall::IptablesMode;
use crate::ports::PortRange;
use crate::quote::quote;
use crate::rules::Redirect;
use ignored::Ignored;
use members::Section;

/// Annotations that change the rules of a pod (contract 4.5).
pub mod annotation {
    pub const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
    pub const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
    pub const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
    pub const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
    pub const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
    pub const INBOUND_PORT: &str = "config.linkerd.io/inbound-port";
    pub const OUTBOUND_PORT: &str = "config.linkerd.io/outbound-port";
    pub const CONTROL_PORT: &str = "config.linkerd.io/control-port";
    pub const ADMIN_PORT: &str = "config.linkerd.io/admin-port";

    /// Ports of the proxy. Its container says them too, so that they are no reason to
    /// ask for the namespace.
    pub const PROXY_PORTS: [&str; 4] = [INBOUND_PORT, OUTBOUND_PORT, CONTROL_PORT, ADMIN_PORT];

    /// Those that upstream knows; what the pod lacks of them its namespace may have.
    pub const UPSTREAMS: [&str; 5] = [
        SKIP_OUTBOUND_PORTS,
        SKIP_INBOUND_PORTS,
        SKIP_SUBNETS,
        PROXY_UID,
        PROXY_GID,
    ];
}

const CONFIG_REMEDY: &str =
    "the entry comes from the ConfigMap linkerd-cni-config, made by the chart's values";

/// Namespace and DaemonSet of the agent, where the plugin entry does not name them.
const USUAL_AGENT: &str = "linkerd-cni";
/// Runtimes give an ADD minutes, and try a failed one again.
const API_BUDGET: Duration = Duration::from_secs(10);

/// Annotation keys and values.
pub type Annotations = BTreeMap<String, String>;

/// What decides whether a pod is meshed: `pod-detection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// A pod whose annotations, handed over by the runtime, have none of Linkerd's is
    /// not meshed. Where there are some, or the runtime hands none over, ask the API.
    #[default]
    Annotations,
    /// Always ask the API server, as upstream does.
    Api,
}

/// Whether IPv6 is redirected: `ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ipv6 {
    #[default]
    No,
    Yes,
    /// If the pod has an IPv6 address.
    Auto,
}

/// What the pod says of itself and its proxy; what it does not say is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// UID of the pod object.
    pub uid: String,
    /// Its annotations of ours, or else its namespace's.
    pub annotations: Annotations,
    /// What the container `linkerd-proxy` runs as and listens on.
    pub proxy: Proxy,
    /// The API server's ports, which a control-plane pod reaches without the proxy; for
    /// other pods there are none.
    pub api_ports: Vec<PortRange>,
}

/// What a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub redirect: Redirect,
    /// What has no effect of the lists that this pod's rules are made of.
    pub ignored: Vec<Ignored>,
}

/// The container `linkerd-proxy`, as far as it is explicit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    pub uid: Option<i64>,
    pub gid: Option<i64>,
    pub inbound_port: Option<u16>,
    pub outbound_port: Option<u16>,
    pub control_port: Option<u16>,
    pub admin_port: Option<u16>,
}

/// Our keys in the network configuration (contract 4.2). Unknown ones are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub log_level: String,
    pub kubeconfig: PathBuf,
    pub mode: IptablesMode,
    /// Log the rules and change nothing.
    pub simulate: bool,
    pub ipv6: Ipv6,
    pub detection: Detection,
    /// Pods of these namespaces pass untouched.
    pub exclude_namespaces: Vec<String>,
    /// Where the agent's own pods are, which pass untouched: they bring the credential
    /// that everything else needs.
    pub agent_namespace: String,
    pub agent_daemonset: String,
    /// How long a pod's ADD may wait for the API server, all tries together.
    pub api_budget: Duration,
    /// Whether a bad element of a port list fails the pod; upstream drops it.
    pub strict_annotations: bool,
    defaults: Defaults,
    /// The first of our keys that has a bad value.
    problem: Option<Error>,
}

impl Config {
    /// What is wrong in the configuration, if anything is.
    pub fn problem(&self) -> Option<&Error> {
        self.problem.as_ref()
    }
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

impl Config {
    /// Reads our keys from the network configuration on stdin; all of them must be right.
    pub fn read(config: &Object) -> Result<Self, Error> {
        let config = Config::read_leniently(config);
        match config.problem {
            Some(problem) => Err(problem),
            None => Ok(config),
        }
    }

    /// Reads what is right; what is not is taken as not given, and is an error for the
    /// pod that needs its rules ([`Config::redirect`]). Other pods need nothing of it.
    pub fn read_leniently(config: &Object) -> Self {
        let mut problem = None;
        let mut top = Section::top(config, &mut problem);
        let log_level = top.read("log_level", "a text", members::text);
        let mut kubernetes = Section::of("kubernetes", config, &mut problem);
        let kubeconfig = kubernetes.read("kubeconfig", "a path", members::text);
        let mut linkerd = Section::of("linkerd", config, &mut problem);
        let mode = linkerd.read(
            "iptables-mode",
            "one of auto, native, nft, legacy and plain",
            mode,
        );
        let ipv6 = linkerd.read("ipv6", "one of true, false and \"auto\"", ipv6);
        let detection = linkerd.read("pod-detection", "one of annotations and api", detection);
        let budget = linkerd.read("api-retry-seconds", "from 1 to 60", budget);
        let mut agent = |key: &str| {
            let name = linkerd.read(key, "a text", members::text);
            name.unwrap_or_else(|| USUAL_AGENT.to_owned())
        };
        let agent_namespace = agent("agent-namespace");
        let agent_daemonset = agent("agent-daemonset");
        let mut config = Config {
            log_level: log_level.unwrap_or_default(),
            kubeconfig: kubeconfig.unwrap_or_default().into(),
            mode: mode.unwrap_or_default(),
            simulate: linkerd
                .read("simulate", "true or false", Value::as_bool)
                .unwrap_or_default(),
            ipv6: ipv6.unwrap_or_default(),
            detection: detection.unwrap_or_default(),
            exclude_namespaces: linkerd.texts("exclude-namespaces"),
            agent_namespace,
            agent_daemonset,
            api_budget: budget.unwrap_or(API_BUDGET),
            strict_annotations: linkerd
                .read("strict-annotations", "true or false", Value::as_bool)
                .unwrap_or_default(),
            defaults: Defaults {
                incoming_proxy_port: linkerd.number("incoming-proxy-port"),
                outgoing_proxy_port: linkerd.number("outgoing-proxy-port"),
                proxy_uid: linkerd.number("proxy-uid"),
                proxy_gid: linkerd.number("proxy-gid"),
                ports_to_redirect: linkerd.ports("ports-to-redirect"),
                inbound_ports_to_ignore: linkerd.ports(ignored::INBOUND_KEY),
                outbound_ports_to_ignore: linkerd.ports(ignored::OUTBOUND_KEY),
                subnets_to_ignore: linkerd.texts("subnets-to-ignore"),
            },
            problem: None,
        };
        config.problem = problem;
        config
    }
}

fn mode(value: &Value) -> Option<IptablesMode> {
    Some(match value.as_str()? {
        "" | "auto" => IptablesMode::Auto,
        "native" => IptablesMode::Native,
        "nft" => IptablesMode::Nft,
        "legacy" => IptablesMode::Legacy,
        "plain" => IptablesMode::Plain,
        _ => return None,
    })
}

fn ipv6(value: &Value) -> Option<Ipv6> {
    match value {
        Value::Bool(false) => Some(Ipv6::No),
        Value::Bool(true) => Some(Ipv6::Yes),
        _ => (value.as_str()? == "auto").then_some(Ipv6::Auto),
    }
}

fn detection(value: &Value) -> Option<Detection> {
    match value.as_str()? {
        "" | "annotations" => Some(Detection::Annotations),
        "api" => Some(Detection::Api),
        _ => None,
    }
}

fn budget(value: &Value) -> Option<Duration> {
    let seconds = value.as_u64().filter(|seconds| (1..=60).contains(seconds));
    seconds.map(Duration::from_secs)
}

fn config_error(key: &str, problem: &str) -> Error {
    Error::new(
        code::INVALID_CONFIG,
        format!("network configuration of linkerd-cni: \"linkerd\": \"{key}\": {problem}"),
    )
    .with_details(CONFIG_REMEDY)
}

fn annotation_error(key: &str, value: &str, problem: &str) -> Error {
    Error::new(
        code::ANNOTATION,
        format!("annotation {key}: {}: {problem}", quote(value)),
    )
    .with_details("correct the annotation of the pod or of its namespace")
}

#[cfg(test)]
mod tests;
