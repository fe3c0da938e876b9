//! What `linkerd cni explain` says about one pod. The decision is made by the same code as in the
//! plugin, from the objects as they are now. Pure, except for [`fetch`].

mod fetch;
mod text;

pub use fetch::{existing_config, fetch, unreadable};
pub use text::render;

use crate::cni::args::PodRef;
use crate::cni::error::Error;
use crate::config::bypass::Bypass;
use crate::config::{Config, ResolvedRedirect};
use crate::kube::types::{Pod, Service};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{self, ClusterLookup};

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The agent's pod, and `ready` or why not.
    pub agent: Option<(String, String)>,
    /// Lines of the agent's log about the pod, oldest first.
    pub records: Vec<String>,
    /// Events on the pod from Linkerd's CNI, and failed attempts to create its network.
    pub events: Vec<String>,
}

impl PodInputs {
    /// Decides as the plugin does for an ADD if it knows the pod's containers.
    ///
    /// # Errors
    /// The plugin's error, with which the pod cannot start.
    pub fn decide(&self) -> Result<Decision<ResolvedRedirect>, Error> {
        let metadata = &self.pod.metadata;
        let pod = PodRef {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
        };
        if let Some(reason) = self.config.filter.skip_reason(&pod) {
            return Ok(Decision::Skip(reason));
        }
        let facts = match facts::facts(self.pod.clone(), &pod, &mut Fetched(self))? {
            Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
            Decision::Redirect(facts) => facts,
        };
        let resolved = self.config.resolve(&facts)?;
        match self.config.refusal(&resolved) {
            Some(error) => Err(error),
            None => Ok(Decision::Redirect(resolved)),
        }
    }
}

impl PodInputs {
    /// Returns the paths around the proxy. Empty if they are unknown, as the pod cannot start.
    pub fn bypasses(&self) -> Vec<Bypass> {
        match self.config.bypasses_of(self.pod.clone(), &mut Fetched(self)) {
            Ok(Decision::Redirect(found)) => found,
            _ => Vec::new(),
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
