//! What `linkerd cni explain` says about one pod. The decision is made by the same code as in the
//! plugin, from the objects as they are now. Pure, except for [`fetch`].

mod fetch;
mod text;

pub use fetch::fetch;
pub use text::{RuleFormat, render};

use crate::cni::args::PodRef;
use crate::cni::error::Error;
use crate::config::annotation::is_injected;
use crate::config::mesh::Mesh;
use crate::config::pod::{self, ClusterLookup};
use crate::config::{Annotations, Config, Detection, Ipv6, PodFacts, ResolvedRedirect};
use crate::kube::types::{Pod, Service};
use crate::plugin::skip::{SkipReason, skip_reason};

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
        if let Some(reason) = skip_reason(&pod, &self.config, Some(&metadata.annotations)) {
            return PodDecision::Skipped(reason);
        }
        if self.is_by_annotations() {
            let facts = PodFacts::from_annotations(&pod.uid, metadata.annotations.clone());
            return self.resolve(&facts);
        }
        match pod::facts(self.pod.clone(), &pod, &mut Fetched(self)) {
            Ok(Mesh::Unmeshed(reason)) => PodDecision::Skipped(reason.into()),
            Ok(Mesh::Meshed(facts)) => self.resolve(&facts),
            Err(error) => PodDecision::Failed(error),
        }
    }

    fn resolve(&self, facts: &PodFacts) -> PodDecision {
        match self.config.resolve(facts) {
            Ok(resolved) => PodDecision::Redirected(resolved),
            Err(error) => PodDecision::Failed(error),
        }
    }

    /// Whether the plugin decides by annotations and plugin entry alone, if the runtime passes the
    /// pod's annotations.
    fn is_by_annotations(&self) -> bool {
        self.config.detection == Detection::Injector && is_injected(&self.pod.metadata.annotations)
    }

    /// Whether IPv6 is redirected too, and why.
    fn ipv6(&self) -> (bool, &'static str) {
        let has_ipv6 = self.pod.status.ips.iter().any(|address| address.ip.contains(':'));
        match (self.config.ipv6, has_ipv6) {
            (Ipv6::Yes, _) => (true, "disableIPv6=false"),
            (Ipv6::Auto, _) => (true, "disableIPv6=auto, if the node's kernel has IPv6"),
            (Ipv6::No, false) => (false, "disableIPv6=true; the pod has no IPv6 address"),
            (Ipv6::No, true) => (
                false,
                "disableIPv6=true; the pod has an IPv6 address, and its IPv6 traffic bypasses the proxy",
            ),
        }
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
