//! What the API server says of the pod: is it meshed, and what do its annotations want?

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cni::args::PodRef;
use crate::cni::error::{Error, code};
use crate::config::{Annotations, Config, annotation};
use crate::kube::config as kubeconfig;
use crate::kube::types::{Container, Namespace, Pod, Service, ServicePort};
use crate::kube::{self, Client, Deadlines};
use crate::ports::PortRange;

const PROXY: &str = "linkerd-proxy";
/// A pod with this init container has its rules made by it.
const PROXY_INIT: &str = "linkerd-init";
/// On a pod of the control plane, which must reach the API server without the proxy.
pub const CONTROL_PLANE_LABEL: &str = "linkerd.io/control-plane-component";
/// Used when the API server's Service cannot be read (contract 4.5).
const USUAL_API_PORTS: [u16; 2] = [443, 6443];

/// Each phase of a request (connect with TLS, answer, body).
const PHASE_DEADLINE: Duration = Duration::from_secs(5);

const NO_API_SERVER: &str = "what answers is no Kubernetes API server, or the answer was cut short; the runtime tries again";

/// What the rules of a meshed pod depend on.
#[derive(Debug)]
pub struct Facts {
    /// The annotations of interest: the pod's, or else its namespace's.
    pub annotations: Annotations,
    /// Ports of the API server, for a pod of the control plane; else none.
    pub api_ports: Vec<PortRange>,
}

/// Asks the API server; `None` for a pod that is not meshed or that `linkerd-init`
/// looks after. One request, and one more (the namespace) for a meshed pod without
/// all five annotations; a control-plane pod takes one more (the Service).
pub fn ask(pod: &PodRef, config: &Config) -> Result<Option<Facts>, Error> {
    let client = client(config)?;
    let PodRef { namespace, name } = pod;
    let found: Pod = client
        .get(&format!("/api/v1/namespaces/{namespace}/pods/{name}"))
        .map_err(|error| api_error(&error, pod))?;
    Reader::default().facts(&client, pod, found)
}

/// Learns what the rules of pods depend on, and remembers what they have in common.
#[derive(Debug, Default)]
pub struct Reader {
    /// Known annotations of each namespace asked for.
    namespaces: BTreeMap<String, Annotations>,
}

impl Reader {
    /// The facts of a pod that was `found`; `None` as with [`ask`].
    pub fn facts(
        &mut self,
        client: &Client,
        pod: &PodRef,
        found: Pod,
    ) -> Result<Option<Facts>, Error> {
        let PodRef { namespace, name } = pod;
        let Some(containers) = &found.spec.containers else {
            return Err(Error::new(
                code::API_ANSWER,
                format!("the API server's answer for pod {namespace}/{name} is no pod: it has no spec.containers"),
            )
            .with_details(NO_API_SERVER));
        };
        if !is_meshed(containers, &found.spec.init_containers) {
            tracing::debug!("linkerd-cni: {namespace}/{name} is not for linkerd-cni, skipping");
            return Ok(None);
        }

        let mut annotations = known(found.metadata.annotations);
        if annotations.len() < annotation::ALL.len() {
            for (key, value) in self.namespace(client, pod)? {
                let value = || value.clone();
                annotations.entry(key.clone()).or_insert_with(value);
            }
        }

        let is_control_plane = found
            .metadata
            .labels
            .get(CONTROL_PLANE_LABEL)
            .is_some_and(|component| !component.is_empty());
        let api_ports = if is_control_plane {
            api_ports(client)
        } else {
            Vec::new()
        };
        Ok(Some(Facts {
            annotations,
            api_ports,
        }))
    }

    fn namespace(&mut self, client: &Client, pod: &PodRef) -> Result<&Annotations, Error> {
        let name = &pod.namespace;
        if !self.namespaces.contains_key(name) {
            let found: Namespace = client
                .get(&format!("/api/v1/namespaces/{name}"))
                .map_err(|error| api_error(&error, pod))?;
            let annotations = known(found.metadata.annotations);
            self.namespaces.insert(name.clone(), annotations);
        }
        Ok(self.namespaces.entry(name.clone()).or_default())
    }
}

/// Whether a pod with these containers should have rules of ours.
pub fn is_meshed(containers: &[Container], init: &[Container]) -> bool {
    let named = |name| move |container: &Container| container.name == name;
    !init.iter().any(named(PROXY_INIT)) && containers.iter().chain(init).any(named(PROXY))
}

/// Those of the annotations that we know, without the empty ones: an empty value on
/// the pod does not hide the namespace's.
fn known(annotations: Annotations) -> Annotations {
    annotations
        .into_iter()
        .filter(|(key, value)| annotation::ALL.contains(&key.as_str()) && !value.is_empty())
        .collect()
}

fn client(config: &Config) -> Result<Client, Error> {
    let unusable = |problem: String| {
        Error::new(code::KUBECONFIG, problem).with_details(
            "the agent (DaemonSet linkerd-cni) writes the kubeconfig; see whether it is ready on this node",
        )
    };
    if config.kubeconfig.as_os_str().is_empty() {
        return Err(unusable(
            "network configuration of linkerd-cni: \"kubernetes\": \"kubeconfig\" is not set"
                .into(),
        ));
    }
    let access =
        kubeconfig::read(&config.kubeconfig).map_err(|error| unusable(error.to_string()))?;
    Client::new(&access, "linkerd-cni", Deadlines::each(PHASE_DEADLINE))
        .map_err(|error| unusable(error.to_string()))
}

fn api_ports(client: &Client) -> Vec<PortRange> {
    let service = client.get::<Service>("/api/v1/namespaces/default/services/kubernetes");
    match service {
        Ok(service) => service.spec.ports.iter().flat_map(both_ports).collect(),
        Err(error) => {
            tracing::error!(
                "linkerd-cni: could not retrieve ports from 'kubernetes' service, taking {USUAL_API_PORTS:?}: {error}"
            );
            USUAL_API_PORTS.map(PortRange::from).to_vec()
        }
    }
}

/// The Service's port and, if it is a number, the port behind it.
fn both_ports(port: &ServicePort) -> Vec<PortRange> {
    let target = port
        .target_port
        .as_ref()
        .and_then(serde_json::Value::as_u64)
        .and_then(|target| u16::try_from(target).ok());
    [Some(port.port), target]
        .into_iter()
        .flatten()
        .map(PortRange::from)
        .collect()
}

fn api_error(error: &kube::Error, pod: &PodRef) -> Error {
    let PodRef { namespace, name } = pod;
    let msg = format!("cannot tell whether pod {namespace}/{name} is meshed: {error}");
    let (code, remedy) = match error.code() {
        Some(401 | 403) => (
            code::API_REFUSED,
            "the API server refuses the token in the kubeconfig or its rights; the agent (DaemonSet linkerd-cni) renews it, see whether it is ready on this node",
        ),
        Some(404) => (
            code::POD_NOT_FOUND,
            "the pod is gone, or the kubeconfig is of another cluster",
        ),
        Some(_) => (
            code::API_ANSWER,
            "the API server has a problem; the runtime tries again",
        ),
        None if error.is_unreadable() => (code::API_ANSWER, NO_API_SERVER),
        None => (
            code::API_UNREACHABLE,
            "the node cannot reach the API server, or not in time; the runtime tries again",
        ),
    };
    Error::new(code, msg).with_details(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::types::PodSpec;

    #[test]
    fn only_the_names_of_containers_decide_whether_a_pod_is_meshed() {
        let cases = [
            (r#"{"containers":[{"name":"app"}]}"#, false),
            (
                r#"{"containers":[{"name":"app"},{"name":"linkerd-proxy"}]}"#,
                true,
            ),
            (
                r#"{"containers":[{"name":"app"}],"initContainers":[{"name":"linkerd-proxy"}]}"#,
                true,
            ),
            (
                r#"{"containers":[{"name":"linkerd-proxy"}],"initContainers":[{"name":"linkerd-init"}]}"#,
                false,
            ),
            (
                r#"{"containers":[{"name":"linkerd-init"},{"name":"linkerd-proxy"}]}"#,
                true,
            ),
            (r#"{"containers":[]}"#, false),
        ];
        for (spec, wanted) in cases {
            let spec: PodSpec = serde_json::from_str(spec).unwrap();
            let containers = spec.containers.unwrap();
            assert_eq!(is_meshed(&containers, &spec.init_containers), wanted);
        }
    }

    #[test]
    fn a_service_gives_its_port_and_the_numeric_port_behind_it() {
        let service: Service = serde_json::from_str(
            r#"{"metadata":{},"spec":{"ports":[{"port":443,"targetPort":6443},{"port":80,"targetPort":"web"}]}}"#,
        )
        .unwrap();
        let ports: Vec<u16> = service
            .spec
            .ports
            .iter()
            .flat_map(both_ports)
            .map(|range| range.first)
            .collect();
        assert_eq!(ports, [443, 6443, 80]);
    }
}
