//! What `linkerd cni explain` says about one pod. The decision is made by the same code as in the
//! plugin, from the objects as they are now. Pure, except for [`fetch`].

mod fetch;
mod text;

pub use fetch::fetch;
pub use text::{RuleFormat, render};

use crate::cni::args::PodRef;
use crate::cni::error::Error;
use crate::config::{Config, ResolvedRedirect};
use crate::kube::types::{Pod, Service};
use crate::pod::Decision;
use crate::pod::annotation::{Annotations, is_injected};
use crate::pod::facts::{self, ClusterLookup, PodFacts};
use crate::pod::skip::SkipReason;
use crate::redirect::Ipv6;

/// The objects on which the plugin's decision depends, and what the pod's node reports.
#[derive(Debug)]
pub struct PodInputs {
    pub pod: Pod,
    pub namespace_annotations: Result<Annotations, Error>,
    /// The Service of the API server. Only control-plane pods need it.
    pub api_service: Result<Service, Error>,
    pub config: Config,
    pub report: NodeReport,
}

/// What the pod's node reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The agent's pod, and `ready` or why not.
    pub agent: Option<(String, String)>,
    /// Lines of the agent's log about the pod, oldest first.
    pub records: Vec<String>,
    /// Events on the pod from Linkerd's CNI, and failed attempts to create its network.
    pub events: Vec<String>,
}

/// What the plugin decides for the pod.
#[derive(Debug)]
pub enum PodDecision {
    /// The runtime calls no plugin for a pod in the node's network namespace.
    HostNetwork,
    Skipped(SkipReason),
    Redirected(ResolvedRedirect),
    /// The pod cannot start.
    Failed(Error),
}

impl PodInputs {
    /// Decides as the plugin does for an ADD with annotations from the runtime.
    pub fn decide(&self) -> PodDecision {
        if self.pod.spec.host_network {
            return PodDecision::HostNetwork;
        }
        let metadata = &self.pod.metadata;
        let pod = PodRef {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
        };
        if let Some(reason) = self.config.filter.skip_reason(&pod, Some(&metadata.annotations)) {
            return PodDecision::Skipped(reason);
        }
        if self.is_by_annotations() {
            let facts = PodFacts::from_annotations(&pod.uid, metadata.annotations.clone());
            return self.resolve(&facts);
        }
        match facts::facts(self.pod.clone(), &pod, &mut Fetched(self)) {
            Ok(Decision::Skip(reason)) => PodDecision::Skipped(reason),
            Ok(Decision::Redirect(facts)) => self.resolve(&facts),
            Err(error) => PodDecision::Failed(error),
        }
    }

    fn resolve(&self, facts: &PodFacts) -> PodDecision {
        match self.config.resolve(facts) {
            Ok(resolved) => match self.config.refusal(&resolved) {
                Some(error) => PodDecision::Failed(error),
                None => PodDecision::Redirected(resolved),
            },
            Err(error) => PodDecision::Failed(error),
        }
    }

    /// Whether the plugin decides by annotations and plugin entry alone, if the runtime passes the
    /// pod's annotations.
    fn is_by_annotations(&self) -> bool {
        self.config.trusts_injector() && is_injected(&self.pod.metadata.annotations)
    }

    /// Whether IPv6 is redirected too, and why.
    fn ipv6(&self, resolved: &ResolvedRedirect) -> (bool, String) {
        let why = match (self.config.ipv6, resolved.ipv6) {
            (_, Ipv6::Yes) => return (true, "disableIPv6=false".to_owned()),
            (_, Ipv6::Auto) => {
                return (true, "ipv6: auto, if the node's kernel has IPv6".to_owned());
            }
            (Ipv6::Auto, Ipv6::No) => "ipv6: auto, and the proxy listens on IPv4 only",
            (_, Ipv6::No) => "disableIPv6=true",
        };
        let has_ipv6 = self.pod.status.ips.iter().any(|address| address.ip.contains(':'));
        let effect = match has_ipv6 {
            true => "the pod has an IPv6 address, and its IPv6 traffic bypasses the proxy",
            false => "the pod has no IPv6 address",
        };
        (false, format!("{why}; {effect}"))
    }
}

/// Answers the plugin's look-ups from the fetched objects.
struct Fetched<'i>(&'i PodInputs);

impl ClusterLookup for Fetched<'_> {
    fn namespace(&mut self, _: &str) -> Result<Annotations, Error> {
        self.0.namespace_annotations.clone()
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.0.api_service.clone()
    }
}

#[cfg(test)]
mod tests;
