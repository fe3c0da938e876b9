//! Collects the facts for a pod's redirect from API objects.

use serde::{Deserialize, Serialize};

use super::Decision;
use super::annotation::{self, Annotations};
use super::containers::{self, ContainerUser, Exposure};
use super::mesh::{NotAPod, Proxy, proxy};
use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::failure::Failure;
use crate::kube::object_reader::ObjectReader;
use crate::kube::types::{Metadata, Pod, Service, ServicePort};
use crate::redirect::ports::PortRange;

/// Facts about a pod and its proxy. For missing facts, the values of the plugin entry apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    pub uid: String,
    /// Annotations that change redirect rules: the pod's values, else the namespace's values.
    pub annotations: Annotations,
    pub proxy: Proxy,
    /// Name of the pod's RuntimeClass. Empty without one, or if the pod object was not read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runtime_class: String,
    /// Ports of the API server, which a control-plane pod reaches without the proxy. Empty
    /// for other pods.
    pub api_ports: Vec<PortRange>,
    /// Init containers that start before the proxy. Empty if the pod object was not read.
    pub early_containers: Vec<ContainerUser>,
    /// Containers that run beside the proxy. Empty if the pod object was not read.
    pub app_containers: Vec<ContainerUser>,
}

/// Label of control-plane pods, which must reach the API server without the proxy.
pub const CONTROL_PLANE_LABEL: &str = "linkerd.io/control-plane-component";
/// Ports of the API server if its Service cannot be read, as in upstream's plugin.
const DEFAULT_API_PORTS: [u16; 2] = [443, 6443];

/// Objects besides the pod on which its redirect may depend.
pub trait ClusterLookup {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error>;
    fn api_service(&mut self) -> Result<Service, Error>;
}

impl ClusterLookup for ObjectReader {
    fn namespace(&mut self, name: &str) -> Result<Annotations, Error> {
        self.namespace_annotations(name).map_err(unread)
    }

    fn api_service(&mut self) -> Result<Service, Error> {
        self.api_server_service().map_err(unread)
    }
}

/// In the agent or the repair controller.
fn unread(error: impl ToString) -> Error {
    let remedy = "check the API server, and that this program's ServiceAccount may get the object";
    Error::new(Failure::ApiError, error.to_string()).with_details(remedy)
}

impl From<&Metadata> for PodRef {
    fn from(Metadata { namespace, name, uid, .. }: &Metadata) -> PodRef {
        PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }
}

/// Looks up the namespace only if its annotations may apply, see [`needs_namespace`], and the API
/// server's Service only for a control-plane pod. Without the Service, uses [`DEFAULT_API_PORTS`].
pub fn facts(
    found: Pod,
    pod: &PodRef,
    lookup: &mut impl ClusterLookup,
) -> Result<Decision<PodFacts>, Error> {
    Ok(match own_facts(found).map_err(|problem| problem.of(pod))? {
        Decision::Redirect(own) => Decision::Redirect(own.complete(&pod.namespace, lookup)?),
        Decision::Skip(reason) => Decision::Skip(reason),
    })
}

impl NotAPod {
    pub fn of(self, pod: &PodRef) -> Error {
        Error::new(Failure::UnexpectedResponse, format!("cannot read pod {pod}: {self}"))
    }
}

/// The facts in the object of a meshed pod, and which other objects complete them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnFacts {
    pub facts: PodFacts,
    /// Ways around the rules that no rule depends on.
    pub exposure: Exposure,
    needs_namespace: bool,
    pub is_control_plane: bool,
}

pub fn own_facts(found: Pod) -> Result<Decision<OwnFacts>, NotAPod> {
    let proxy = match proxy(&found)? {
        Decision::Redirect(proxy) => proxy,
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
    };
    let component = found.metadata.labels.get(CONTROL_PLANE_LABEL);
    Ok(Decision::Redirect(OwnFacts {
        needs_namespace: needs_namespace(&found.metadata.annotations),
        is_control_plane: component.is_some_and(|component| !component.is_empty()),
        exposure: containers::exposure(&found),
        facts: PodFacts {
            proxy,
            early_containers: containers::before_proxy(&found),
            app_containers: containers::of_app(&found),
            uid: found.metadata.uid,
            annotations: known(found.metadata.annotations),
            runtime_class: found.spec.runtime_class_name,
            ..PodFacts::default()
        },
    }))
}

impl OwnFacts {
    pub fn needs_objects(&self) -> bool {
        self.needs_namespace || self.is_control_plane
    }

    /// Adds what the namespace and the API server's Service state, as [`facts`] does.
    pub fn complete(
        &self,
        namespace: &str,
        lookup: &mut impl ClusterLookup,
    ) -> Result<PodFacts, Error> {
        let mut facts = self.facts.clone();
        if self.needs_namespace {
            for (key, value) in known(lookup.namespace(namespace)?) {
                facts.annotations.entry(key).or_insert(value);
            }
        }
        if self.is_control_plane {
            facts.api_ports = api_ports(lookup.api_service());
        }
        Ok(facts)
    }
}

/// Whether a value of the namespace applies to a pod with these annotations: the pod lacks one of
/// [`annotation::INHERITED_KEYS`]. The proxy injector copies the namespace's values to its pods, but
/// does not replace an empty value. So on a pod with its mark, only an empty value counts as missing.
fn needs_namespace(annotations: &Annotations) -> bool {
    let is_injected = annotation::is_injected(annotations);
    annotation::INHERITED_KEYS.iter().any(|key| match annotations.get(*key) {
        Some(value) => value.is_empty(),
        None => !is_injected,
    })
}

impl PodFacts {
    /// Returns the facts in the annotations that the runtime passes to the plugin. They do not tell
    /// what the container `linkerd-proxy` states and whether the pod belongs to the control plane.
    pub fn from_annotations(uid: &str, annotations: Annotations) -> Self {
        PodFacts { uid: uid.to_owned(), annotations: known(annotations), ..PodFacts::default() }
    }
}

/// Keeps the annotations that change redirect rules ([`annotation::INHERITED_KEYS`],
/// [`annotation::PROXY_PORTS`]), without empty values: an empty value on the pod does not override
/// the namespace's value.
fn known(annotations: Annotations) -> Annotations {
    let keys = [&annotation::INHERITED_KEYS[..], &annotation::PROXY_PORTS].concat();
    annotations
        .into_iter()
        .filter(|(key, value)| keys.contains(&key.as_str()) && !value.is_empty())
        .collect()
}

/// Returns the API server's ports. A control-plane pod reaches them without the proxy, so that the
/// control plane does not depend on itself.
fn api_ports(service: Result<Service, Error>) -> Vec<PortRange> {
    let (ports, problem) = match service {
        Ok(service) => (service.spec.ports, "it has no ports".to_owned()),
        Err(error) => (Vec::new(), error.to_string()),
    };
    if ports.is_empty() {
        tracing::error!(
            "linkerd-cni: using the default ports {DEFAULT_API_PORTS:?} of Service \
             default/kubernetes: {problem}"
        );
        return DEFAULT_API_PORTS.map(PortRange::from).to_vec();
    }
    ports.iter().flat_map(both_ports).collect()
}

fn both_ports(port: &ServicePort) -> impl Iterator<Item = PortRange> {
    let target = port.target_port.as_ref().and_then(serde_json::Value::as_u64);
    let target = target.and_then(|target| u16::try_from(target).ok());
    [Some(port.port), target].into_iter().flatten().map(PortRange::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_yields_its_port_and_its_numeric_target_port() {
        let service: Service = serde_json::from_str(
            r#"{"metadata":{},"spec":{"ports":[{"port":443,"targetPort":6443},{"port":80,"targetPort":"web"}]}}"#,
        )
        .unwrap();
        let ports: Vec<u16> =
            service.spec.ports.iter().flat_map(both_ports).map(|range| range.first).collect();
        assert_eq!(ports, [443, 6443, 80]);
    }
}
