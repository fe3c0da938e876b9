//! The plugin's verdict on one pod of the cluster, and the pod's paths around the proxy, for
//! `linkerd cni explain` and `linkerd cni bypass`. All objects are read as they are now.

use std::collections::BTreeMap;

use super::requests::{Api, Error, get};
use crate::cluster_lookup::{ClusterLookup, complete_facts, pod_error};
use crate::cni::Error as CniError;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::failure::Failure;
use crate::kube::object_reader::{API_SERVICE, namespace_path};
use crate::kube::types::{Namespace, Pod, Service};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::containers::has_ipv6_address;
use crate::pod::facts::{ObjectFacts, PodFacts, object_facts};
use crate::pod::skip::SkipReason;
use crate::verdict::bypass_paths::{BypassPath, bypass_paths};
use crate::verdict::{PodView, Verdict, verdict};

/// Reads the objects that the plugin would look up, each of them once.
pub struct CachedLookup<'a> {
    api: &'a dyn Api,
    namespaces: BTreeMap<String, Result<Annotations, CniError>>,
    service: Option<Result<Service, CniError>>,
}

impl<'a> CachedLookup<'a> {
    pub fn new(api: &'a dyn Api) -> Self {
        CachedLookup { api, namespaces: BTreeMap::new(), service: None }
    }
}

impl ClusterLookup for CachedLookup<'_> {
    fn namespace(&mut self, name: &str) -> Result<Annotations, CniError> {
        if let Some(annotations) = self.namespaces.get(name) {
            return annotations.clone();
        }
        let annotations = match get::<Namespace>(self.api, &namespace_path(name)) {
            Ok(namespace) => Ok(namespace.metadata.annotations),
            Err(error) => Err(read_error(&error)),
        };
        self.namespaces.insert(name.to_owned(), annotations.clone());
        annotations
    }

    fn api_service(&mut self) -> Result<Service, CniError> {
        if let Some(service) = &self.service {
            return service.clone();
        }
        let service = get(self.api, API_SERVICE).map_err(|error| read_error(&error));
        self.service = Some(service.clone());
        service
    }
}

/// Returns the error of a failed request as the plugin would report it.
fn read_error(error: &Error) -> CniError {
    CniError::new(Failure::ApiError, error.to_string())
}

/// What the plugin does with a pod.
pub struct ExaminedPod {
    /// Why the pod's containers need no redirect. `None` for a meshed pod.
    pub unmeshed: Option<SkipReason>,
    pub verdict: Verdict,
    /// The paths around the proxy of a meshed pod.
    pub paths: Vec<BypassPath>,
}

impl ExaminedPod {
    fn without_paths(unmeshed: Option<SkipReason>, verdict: Verdict) -> ExaminedPod {
        ExaminedPod { unmeshed, verdict, paths: Vec::new() }
    }
}

/// Decides as ADD does if ADD knows the pod's containers. A failed look-up is the error with which
/// ADD would fail. Looks up no object if the pod's network, name or containers decide.
pub fn examine(config: &Config, object: Pod, lookup: &mut impl ClusterLookup) -> ExaminedPod {
    let pod = PodRef::from(&object.metadata);
    let has_ipv6 = has_ipv6_address(&object);
    let is_in_host_network = object.spec.host_network;
    let facts = match object_facts(object) {
        Ok(facts) => facts,
        Err(problem) => {
            return ExaminedPod::without_paths(None, Verdict::Failed(pod_error(problem, &pod)));
        }
    };
    let view = match &facts {
        _ if is_in_host_network => PodView::HostNetwork,
        Decision::Skip(reason) => PodView::Skip(*reason),
        Decision::Redirect(_) => PodView::Incomplete,
    };
    let early = verdict(config, &pod, view);
    let known = match facts {
        Decision::Skip(reason) => return ExaminedPod::without_paths(Some(reason), early),
        Decision::Redirect(known) => known,
    };
    if early != Verdict::Undecided {
        return with_paths(config, early, &known, &known.facts, has_ipv6);
    }
    match complete_facts(&known, &pod.namespace, lookup) {
        Ok(facts) => {
            let verdict = verdict(config, &pod, PodView::Complete(&facts));
            with_paths(config, verdict, &known, &facts, has_ipv6)
        }
        Err(error) => ExaminedPod::without_paths(None, Verdict::Failed(error)),
    }
}

/// Completes the verdict on a meshed pod with the pod's paths around the proxy.
fn with_paths(
    config: &Config,
    verdict: Verdict,
    known: &ObjectFacts,
    facts: &PodFacts,
    has_ipv6: bool,
) -> ExaminedPod {
    let paths = bypass_paths(config, &verdict, known, facts, has_ipv6);
    ExaminedPod { unmeshed: None, verdict, paths }
}
