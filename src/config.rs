//! Reads the plugin entry, and computes the redirect of one pod from the entry, the annotations of
//! the pod and its namespace, and the proxy container. Pure.

pub mod api_budget;
pub mod ignored_ports;
mod proxy_user;
pub mod resolve;
mod section;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cni::error::Error;
use crate::cni::object::Object;
use crate::pod::skip::PodFilter;
use crate::redirect::backend_order::Backend;
use crate::redirect::{Ipv6, Redirect};
use ignored_ports::Ignored;
use resolve::SubnetList;
use section::Section;

/// Namespace and DaemonSet of the agent if the plugin entry does not name them.
const DEFAULT_AGENT_NAME: &str = "linkerd-cni";

/// A pod's redirect, and what its author may not expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRedirect {
    pub redirect: Redirect,
    /// [`Config::ipv6`], and [`Ipv6::No`] for `auto` if the proxy listens on IPv4 only: connections
    /// over IPv6 would be refused.
    pub ipv6: Ipv6,
    pub ignored: Vec<Ignored>,
    /// Names of init containers that start before the proxy and whose connections are redirected.
    pub blocked_init_containers: Vec<String>,
    /// Names of containers whose connections bypass the proxy, as they run as the proxy's user.
    pub exempt_containers: Vec<String>,
}

/// The plugin entry, as far as the plugin uses it. Unknown keys are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub log_level: String,
    pub kubeconfig: PathBuf,
    pub backends: &'static [Backend],
    pub ipv6: Ipv6,
    pub filter: PodFilter,
    /// Time that one ADD or CHECK may spend on API requests. The chart does not set the key
    /// (`api-retry-seconds`): tests shorten the time with it.
    pub api_budget: Duration,
    /// Whether an invalid element of a list of ports or interfaces fails the pod. Upstream drops an
    /// invalid port.
    pub strict_annotations: bool,
    /// Whether a container that runs as the proxy's user fails the pod.
    pub strict_proxy_user: bool,
    /// Names of RuntimeClasses whose sandboxes ignore redirect rules. `None`: the built-in names.
    pub sandboxed_classes: Option<Vec<String>>,
    /// The first invalid value.
    pub problem: Option<Error>,
    // Settings on which the redirect depends. Numbers are not yet checked against their range.
    incoming_proxy_port: i64,
    outgoing_proxy_port: i64,
    proxy_uid: i64,
    proxy_gid: i64,
    ports_to_redirect: Vec<String>,
    inbound_ports_to_ignore: Vec<String>,
    outbound_ports_to_ignore: Vec<String>,
    /// The texts of each list of subnets, in the order of [`SubnetList::ALL`].
    subnets_to_ignore: [Vec<String>; SubnetList::ALL.len()],
    inner_interfaces: Vec<String>,
}

impl Config {
    /// Returns the CNI net dir, in which the agent writes the kubeconfig.
    pub fn net_dir(&self) -> Option<&Path> {
        self.kubeconfig.parent().filter(|dir| dir.is_absolute())
    }

    /// Fails if any value of the plugin entry is invalid.
    pub fn read(config: &Object) -> Result<Self, Error> {
        let config = Config::read_leniently(config);
        match config.problem {
            Some(problem) => Err(problem),
            None => Ok(config),
        }
    }

    /// Reads the plugin entry and takes invalid values as missing. [`Config::resolve`] fails
    /// with the first of them, so only meshed pods fail.
    pub fn read_leniently(config: &Object) -> Self {
        let mut kubernetes = Section::read_object("kubernetes", config);
        let kubeconfig = kubernetes.read("kubeconfig", "a path", section::string);
        let mut linkerd = Section::read_object("linkerd", config);
        // With true, upstream's plugin logs the rules and installs none: a meshed pod starts bare.
        // Upstream has no chart value for the key. Its chart renders false
        // (`templates/cni-plugin.yaml`), as do the manifests of its plugin's integration tests.
        linkerd.reject_unless_false("simulate", "meshed pods would start without redirect rules");
        let modes = "one of auto, native, nft, legacy and plain";
        let backends = linkerd.read("iptables-mode", modes, backends_of_mode);
        let ipv6 = linkerd.read("ipv6", "one of true, false and \"auto\"", parse_ipv6);
        let seconds = "a whole number from 1 to 60";
        let budget = linkerd.read("api-retry-seconds", seconds, api_budget::parse);
        Config {
            log_level: config.text("log_level").unwrap_or_default(),
            kubeconfig: kubeconfig.unwrap_or_default().into(),
            backends: backends.unwrap_or(Backend::AUTO),
            ipv6: ipv6.unwrap_or_default(),
            filter: PodFilter {
                exclude_namespaces: linkerd.strings("exclude-namespaces"),
                agent_namespace: linkerd.string("agent-namespace", DEFAULT_AGENT_NAME),
                agent_daemonset: linkerd.string("agent-daemonset", DEFAULT_AGENT_NAME),
            },
            api_budget: budget.unwrap_or(api_budget::DEFAULT),
            strict_annotations: linkerd.flag("strict-annotations"),
            strict_proxy_user: linkerd.flag("strict-proxy-user"),
            sandboxed_classes: linkerd.optional_strings("sandboxed-runtime-classes"),
            incoming_proxy_port: linkerd.number("incoming-proxy-port"),
            outgoing_proxy_port: linkerd.number("outgoing-proxy-port"),
            proxy_uid: linkerd.number("proxy-uid"),
            proxy_gid: linkerd.number("proxy-gid"),
            ports_to_redirect: linkerd.ports("ports-to-redirect"),
            inbound_ports_to_ignore: linkerd.ports(ignored_ports::INBOUND_KEY),
            outbound_ports_to_ignore: linkerd.ports(ignored_ports::OUTBOUND_KEY),
            subnets_to_ignore: SubnetList::ALL.map(|list| linkerd.strings(list.key())),
            inner_interfaces: linkerd.strings(ignored_ports::INNER_KEY),
            problem: kubernetes.problem.or(linkerd.problem),
        }
    }
}

fn backends_of_mode(value: &Value) -> Option<&'static [Backend]> {
    Backend::for_mode(value.as_str()?)
}

fn parse_ipv6(value: &Value) -> Option<Ipv6> {
    match value {
        Value::Bool(false) => Some(Ipv6::No),
        Value::Bool(true) => Some(Ipv6::Yes),
        Value::String(text) if text == "auto" => Some(Ipv6::Auto),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
