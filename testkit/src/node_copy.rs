//! The node's copy of its pods, as an agent publishes it.

use std::path::Path;

use linkerd2_cni::cni::Error;
use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::kube::types::Service;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::pod::facts::{ClusterLookup, facts};
use linkerd2_cni::pod_copy;

/// The namespace has no annotations, and the pod is not of the control plane.
struct NoLookups;

impl ClusterLookup for NoLookups {
    fn namespace(&mut self, _: &str) -> Result<Annotations, Error> {
        Ok(Annotations::new())
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        Err(Error::new(Failure::Internal, "not a pod of the control plane"))
    }
}

/// Publishes a pod object for the namespace, name and UID that the runtime passes.
pub fn publish(run_dir: &Path, [namespace, name, uid]: [&str; 3], object: &str) {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    let decision = facts(serde_json::from_str(object).unwrap(), &pod, &mut NoLookups).unwrap();
    pod_copy::create(run_dir).unwrap();
    pod_copy::publish(run_dir, pod, decision).unwrap();
}
