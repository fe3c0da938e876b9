//! Reads the plugin entry. Computes a pod's redirect from the entry, the annotations of the pod and
//! its namespace, and the proxy container. Pure.

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

/// Default name of the agent's namespace and of its DaemonSet.
const DEFAULT_AGENT_NAME: &str = "linkerd-cni";

/// A pod's redirect, and what the pod's author should know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRedirect {
    pub redirect: Redirect,
    /// [`Config::ipv6`], except that `auto` becomes [`Ipv6::No`] if the proxy listens on IPv4 only:
    /// redirected connections over IPv6 would be refused.
    pub ipv6: Ipv6,
    /// Invalid elements that are ignored.
    pub ignored: Vec<Ignored>,
    /// Names of init containers that run before the proxy and whose connections are redirected.
    pub blocked_init_containers: Vec<String>,
    /// Names of containers whose connections bypass the proxy because they run as the proxy's user.
    pub exempt_containers: Vec<String>,
}

/// The members of the plugin entry that the plugin uses. Other members are ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub log_level: String,
    pub kubeconfig: PathBuf,
    pub backends: &'static [Backend],
    pub ipv6: Ipv6,
    pub filter: PodFilter,
    /// Time limit for the API requests of one ADD or CHECK. The chart does not set its key
    /// (`api-retry-seconds`), which tests use to shorten the time.
    pub api_budget: Duration,
    /// Whether an invalid port or interface fails the pod. Otherwise it is ignored, as upstream
    /// does with ports.
    pub strict_annotations: bool,
    /// Whether a container that runs as the proxy's user fails the pod.
    pub strict_proxy_user: bool,
    /// Names of RuntimeClasses whose sandboxes ignore redirect rules. `None`: the built-in names.
    pub sandboxed_classes: Option<Vec<String>>,
    /// The error for the first invalid value.
    pub problem: Option<Error>,
    // Settings that the redirect depends on. The ranges of numbers are not checked yet.
    incoming_proxy_port: i64,
    outgoing_proxy_port: i64,
    proxy_uid: i64,
    proxy_gid: i64,
    ports_to_redirect: Vec<String>,
    inbound_ports_to_ignore: Vec<String>,
    outbound_ports_to_ignore: Vec<String>,
    /// The elements of each list of subnets, in the order of [`SubnetList::ALL`].
    subnets_to_ignore: [Vec<String>; SubnetList::ALL.len()],
    inner_interfaces: Vec<String>,
}

impl Config {
    /// Returns the CNI net dir, which is the directory of the kubeconfig. `None`: the kubeconfig
    /// has no absolute path.
    pub fn net_dir(&self) -> Option<&Path> {
        self.kubeconfig.parent().filter(|dir| dir.is_absolute())
    }

    /// Reads the plugin entry. Fails if any value is invalid.
    pub fn read(config: &Object) -> Result<Self, Error> {
        let config = Config::read_leniently(config);
        match config.problem {
            Some(problem) => Err(problem),
            None => Ok(config),
        }
    }

    /// Reads the plugin entry. Treats invalid values as missing, and keeps the error for the first
    /// one. [`Config::resolve`] fails with this error, so that only meshed pods fail.
    pub fn read_leniently(config: &Object) -> Self {
        let mut kubernetes = Section::read_object("kubernetes", config);
        let kubeconfig = kubernetes.read("kubeconfig", "a path", section::string);
        let mut linkerd = Section::read_object("linkerd", config);
        // If this is true, upstream's plugin only logs the rules, and meshed pods start without
        // them. Upstream has no chart value for the key. Its chart renders false
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
