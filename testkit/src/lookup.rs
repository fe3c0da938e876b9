//! The objects besides a pod that decide on its redirect.

use linkerd2_cni::cni::Error;
use linkerd2_cni::failure::Failure;
use linkerd2_cni::kube::types::Service;
use linkerd2_cni::pod::annotation::Annotations;
use linkerd2_cni::pod::facts::ClusterLookup;
use serde_json::json;

/// A cluster whose namespaces have these annotations, and whose API server has a Service with this port and
/// target port, or none.
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
