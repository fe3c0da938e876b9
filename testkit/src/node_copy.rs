//! The node's copy of its pods, as an agent publishes it, and the objects besides a pod that decide
//! on its redirect.

use std::path::Path;

use linkerd2_cni::cluster_lookup::{ClusterLookup, read_facts};
use linkerd2_cni::cni::Error;
use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::kube::types::Service;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::pod_copy;
use serde_json::json;

/// Publishes a pod object, of a namespace without annotations, for the namespace, name and UID that
/// the runtime passes.
pub fn publish(run_dir: &Path, [namespace, name, uid]: [&str; 3], object: &str) {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    let decision =
        read_facts(serde_json::from_str(object).unwrap(), &pod, &mut FakeCluster::default())
            .unwrap();
    pod_copy::create(run_dir).unwrap();
    pod_copy::publish(run_dir, pod, decision).unwrap();
}

/// A cluster whose API server has a Service with this port and target port, or none.
#[derive(Default)]
pub struct FakeCluster {
    pub annotations: Annotations,
    pub api_ports: Option<[u16; 2]>,
}

impl ClusterLookup for FakeCluster {
    fn namespace(&mut self, _: &str) -> Result<Annotations, Error> {
        Ok(self.annotations.clone())
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        let [port, target] =
            self.api_ports.ok_or_else(|| Error::new(Failure::ApiUnreachable, "no Service"))?;
        let spec = json!({"ports": [{"port": port, "targetPort": target}]});
        Ok(serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap())
    }
}
