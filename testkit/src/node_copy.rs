//! Publishes pods in the node's copy as an agent does, with a fake cluster for the objects that
//! complete the facts about a pod.

use std::path::Path;

use linkerd2_cni::cluster_lookup::{ClusterLookup, read_facts};
use linkerd2_cni::cni::Error;
use linkerd2_cni::cni::args::PodRef;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::kube::types::Service;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::pod_copy;
use serde_json::json;

/// Publishes the pod of the JSON text `object`, for the namespace, name and UID that the runtime
/// passes to the plugin. The pod's namespace has no annotations.
pub fn publish(run_dir: &Path, [namespace, name, uid]: [&str; 3], object: &str) {
    let pod = PodRef { namespace: namespace.into(), name: name.into(), uid: uid.into() };
    let decision =
        read_facts(serde_json::from_str(object).unwrap(), &pod, &mut FakeCluster::default())
            .unwrap();
    pod_copy::create(run_dir).unwrap();
    pod_copy::publish(run_dir, pod, decision).unwrap();
}

/// A cluster in which each namespace has the same annotations.
#[derive(Default)]
pub struct FakeCluster {
    /// Annotations of each namespace.
    pub annotations: Annotations,
    /// Port and target port of the API server's Service. `None`: the Service cannot be read.
    pub api_ports: Option<[u16; 2]>,
}

impl ClusterLookup for FakeCluster {
    fn namespace(&mut self, _: &str) -> Result<Annotations, Error> {
        Ok(self.annotations.clone())
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        let Some([port, target_port]) = self.api_ports else {
            return Err(Error::new(Failure::ApiUnreachable, "no Service"));
        };
        let spec = json!({"ports": [{"port": port, "targetPort": target_port}]});
        Ok(serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap())
    }
}
