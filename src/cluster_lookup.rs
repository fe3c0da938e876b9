//! Reads the objects besides a pod that complete the facts for its redirect: the namespace, and the
//! API server's Service. Plugin, agent, repair controller and `linkerd cni` each read them in their
//! own way, as a [`ClusterLookup`].

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

/// Ports of the API server if its Service cannot be read, as in upstream's plugin.
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
    let object_facts = object_facts(object).map_err(|problem| pod_error(problem, pod))?;
    match object_facts {
        Decision::Redirect(known) => {
            Ok(Decision::Redirect(complete_facts(&known, &pod.namespace, lookup)?))
        }
        Decision::Skip(reason) => Ok(Decision::Skip(reason)),
    }
}

/// Returns the error for a response that is no pod.
pub fn pod_error(problem: NotAPod, pod: &PodRef) -> Error {
    Error::new(Failure::UnexpectedResponse, format!("cannot read pod {pod}: {problem}"))
}

/// Adds to the facts in a pod's object what the namespace and the API server's Service state.
/// Reads the namespace only if its annotations may apply, and the Service only for a control-plane
/// pod. Without the Service, uses [`DEFAULT_API_PORTS`].
pub fn complete_facts(
    known: &ObjectFacts,
    namespace: &str,
    lookup: &mut impl ClusterLookup,
) -> Result<PodFacts, Error> {
    let of_namespace =
        if known.needs_namespace { lookup.namespace(namespace)? } else { Annotations::new() };
    let api_ports =
        if known.is_control_plane { api_ports(lookup.api_service()) } else { Vec::new() };
    Ok(known.complete(of_namespace, api_ports))
}

/// Returns the API server's ports. A control-plane pod reaches them without the proxy, so that the
/// control plane does not depend on itself.
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

/// Returns the port, and the target port if it is a number.
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
