//! The facts that a pod's redirect depends on. They come from the pod object, its namespace and the
//! API server's Service. Pure.

use serde::{Deserialize, Serialize};

use super::Decision;
use super::annotation::Annotations;
use super::container_user::ContainerUser;
use super::containers;
use super::exposure::{Exposure, find_exposure};
use super::inherited_annotations::{inherit, needs_namespace, redirect_annotations};
use super::mesh::{NotAPod, Proxy, find_proxy};
use crate::cni::args::PodRef;
use crate::kube::types::{Metadata, Pod};
use crate::redirect::ports::PortRange;

/// Facts about a pod and its proxy. Where a fact is missing, the plugin entry's value applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    pub uid: String,
    /// Annotations that change redirect rules, each with the pod's value or, if the pod lacks it,
    /// the namespace's.
    pub annotations: Annotations,
    pub proxy: Proxy,
    /// Name of the pod's RuntimeClass. Empty without one, or if the pod object was not read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runtime_class: String,
    /// Ports of the API server, which control-plane pods reach without the proxy. Empty for other
    /// pods.
    pub api_ports: Vec<PortRange>,
    /// Init containers that run before the proxy. Empty if the pod object was not read.
    pub early_containers: Vec<ContainerUser>,
    /// Containers that run beside the proxy. Empty if the pod object was not read.
    pub app_containers: Vec<ContainerUser>,
}

/// Label of control-plane pods, which must reach the API server without the proxy.
pub const CONTROL_PLANE_LABEL: &str = "linkerd.io/control-plane-component";

impl From<&Metadata> for PodRef {
    fn from(Metadata { namespace, name, uid, .. }: &Metadata) -> PodRef {
        PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }
}

/// The facts in the object of a meshed pod, and which other objects are needed to complete them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    pub facts: PodFacts,
    pub exposure: Exposure,
    /// Whether annotations of the namespace may apply.
    pub needs_namespace: bool,
    /// Whether the pod belongs to the control plane, which reaches the API server without the
    /// proxy.
    pub is_control_plane: bool,
}

/// Returns the facts in a pod object, or why its containers need no redirect.
pub fn object_facts(pod: Pod) -> Result<Decision<ObjectFacts>, NotAPod> {
    let proxy = match find_proxy(&pod)? {
        Decision::Redirect(proxy) => proxy,
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
    };
    let needs_namespace = needs_namespace(&pod.metadata.annotations);
    let is_control_plane = is_control_plane(&pod);
    let exposure = find_exposure(&pod);
    let facts = PodFacts {
        proxy,
        early_containers: containers::before_proxy(&pod),
        app_containers: containers::beside_proxy(&pod),
        uid: pod.metadata.uid,
        annotations: redirect_annotations(pod.metadata.annotations),
        runtime_class: pod.spec.runtime_class_name,
        ..PodFacts::default()
    };
    Ok(Decision::Redirect(ObjectFacts { facts, exposure, needs_namespace, is_control_plane }))
}

fn is_control_plane(pod: &Pod) -> bool {
    match pod.metadata.labels.get(CONTROL_PLANE_LABEL) {
        Some(component) => !component.is_empty(),
        None => false,
    }
}

impl ObjectFacts {
    /// Returns true if the namespace or the API server's Service must be read to complete the
    /// facts.
    pub fn needs_objects(&self) -> bool {
        self.needs_namespace || self.is_control_plane
    }

    /// Returns the complete facts. The namespace's annotations apply where the pod has none.
    pub fn complete(
        &self,
        namespace_annotations: Annotations,
        api_ports: Vec<PortRange>,
    ) -> PodFacts {
        let mut facts = self.facts.clone();
        inherit(&mut facts.annotations, namespace_annotations);
        PodFacts { api_ports, ..facts }
    }
}

impl PodFacts {
    /// Returns the facts in the annotations that the runtime passes to the plugin. The annotations
    /// tell neither what the container `linkerd-proxy` sets, nor whether the pod belongs to the
    /// control plane.
    pub fn from_annotations(uid: &str, annotations: Annotations) -> Self {
        PodFacts {
            uid: uid.to_owned(),
            annotations: redirect_annotations(annotations),
            ..PodFacts::default()
        }
    }
}
