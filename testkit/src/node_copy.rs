//! The node's copy of its pods, as an agent publishes it.

use std::path::Path;

use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::pod::facts::facts;
use linkerd2_cni::pod_copy;

use crate::lookup::FakeCluster;

/// Publishes a pod object, of a namespace without annotations, for the namespace, name and UID that the runtime passes.
pub fn publish(run_dir: &Path, [namespace, name, uid]: [&str; 3], object: &str) {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    let decision =
        facts(serde_json::from_str(object).unwrap(), &pod, &mut FakeCluster::default()).unwrap();
    pod_copy::create(run_dir).unwrap();
    pod_copy::publish(run_dir, pod, decision).unwrap();
}
