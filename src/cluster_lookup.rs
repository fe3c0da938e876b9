//! Reads the objects that complete the facts in a pod object: the pod's namespace, and the API
//! server's Service. Plugin, agent, repair controller and `linkerd cni` read these objects in
//! different ways, so each of them implements [`ClusterLookup`] or uses an [`ObjectReader`].

use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::failure::Failure;
use crate::kube::object_reader::ObjectReader;
use crate::kube::types::{Pod, Service, ServicePort};
use crate::pod::Decision;
use crate::pod::annotation::Annotations;
use crate::pod::facts::{ObjectFacts, PodFacts, object_facts};
use crate::pod::mesh::NotAPod;
use crate::redirect::ports::PortRange;

/// Ports of the API server if its Service cannot be read. Upstream's plugin has the same.
const DEFAULT_API_PORTS: [u16; 2] = [443, 6443];

/// Reads the objects besides the pod on which its redirect may depend.
pub trait ClusterLookup {
    /// Returns the annotations of a namespace.
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error>;
    /// Returns the Service `default/kubernetes`.
    fn api_service(&mut self) -> Result<Service, Error>;
}

impl ClusterLookup for ObjectReader {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error> {
        self.namespace_annotations(name).map_err(read_error)
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.api_server_service().map_err(read_error)
    }
}

/// Returns the error for an object that the agent or the repair controller cannot read.
fn read_error(error: impl ToString) -> Error {
    let remedy = "check the API server, and that this program's ServiceAccount may get the object";
    Error::new(Failure::ApiError, error.to_string()).with_details(remedy)
}

/// Returns the facts about a pod, or why its containers need no redirect.
pub fn read_facts(
    object: Pod,
    pod: &PodRef,
    lookup: &mut impl ClusterLookup,
) -> Result<Decision<PodFacts>, Error> {
    match object_facts(object).map_err(|problem| pod_error(problem, pod))? {
        Decision::Redirect(object_facts) => {
            let facts = complete_facts(&object_facts, &pod.namespace, lookup)?;
            Ok(Decision::Redirect(facts))
        }
        Decision::Skip(reason) => Ok(Decision::Skip(reason)),
    }
}

/// Returns the error for a response of the API server that is no pod.
pub fn pod_error(problem: NotAPod, pod: &PodRef) -> Error {
    Error::new(Failure::UnexpectedResponse, format!("cannot read pod {pod}: {problem}"))
}

/// Completes the facts in a pod object with its namespace's annotations and the API server's ports.
/// Reads the namespace only if its annotations may apply, and the Service only for a control-plane
/// pod. Without the Service, uses [`DEFAULT_API_PORTS`].
pub fn complete_facts(
    facts: &ObjectFacts,
    namespace: &str,
    lookup: &mut impl ClusterLookup,
) -> Result<PodFacts, Error> {
    let namespace_annotations =
        if facts.needs_namespace { lookup.namespace(namespace)? } else { Annotations::new() };
    let api_ports =
        if facts.is_control_plane { api_ports(lookup.api_service()) } else { Vec::new() };
    Ok(facts.complete(namespace_annotations, api_ports))
}

/// Returns the API server's ports, which are excluded from the redirect of a control-plane pod: the
/// proxy needs the control plane, so the control plane must reach the API server without the proxy.
fn api_ports(service: Result<Service, Error>) -> Vec<PortRange> {
    let problem = match service {
        Ok(service) if service.spec.ports.is_empty() => "it has no ports".to_owned(),
        Ok(service) => return service.spec.ports.iter().flat_map(service_ports).collect(),
        Err(error) => error.to_string(),
    };
    tracing::error!(
        "linkerd-cni: using the default ports {DEFAULT_API_PORTS:?} of Service \
         default/kubernetes: {problem}"
    );
    DEFAULT_API_PORTS.map(PortRange::from).to_vec()
}

/// Returns the port, and the target port if it is a number. A target port that is the name of a
/// container's port is left out.
fn service_ports(port: &ServicePort) -> Vec<PortRange> {
    let mut ports = vec![PortRange::from(port.port)];
    let target = port.target_port.as_ref().and_then(serde_json::Value::as_u64);
    if let Some(target) = target.and_then(|target| u16::try_from(target).ok()) {
        ports.push(PortRange::from(target));
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_yields_its_port_and_its_numeric_target_port() {
        let service: Service = serde_json::from_str(
            r#"{"metadata":{},"spec":{"ports":[
                {"port":443,"targetPort":6443},{"port":80,"targetPort":"web"}]}}"#,
        )
        .unwrap();
        let ports = service.spec.ports.iter().flat_map(service_ports);
        assert_eq!(ports.map(|range| range.first).collect::<Vec<_>>(), [443, 6443, 80]);
    }
}
