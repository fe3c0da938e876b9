//! Facts about a pod that decide on its redirect, from the pod's object and two other objects.
//! Pure.

use serde::{Deserialize, Serialize};

use super::Decision;
use super::annotation::Annotations;
use super::container_user::ContainerUser;
use super::containers;
use super::exposure::{self, Exposure};
use super::inherited_annotations::{inherit, needs_namespace, redirect_annotations};
use super::mesh::{NotAPod, Proxy, find_proxy};
use crate::cni::args::PodRef;
use crate::kube::types::{Metadata, Pod};
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

impl From<&Metadata> for PodRef {
    fn from(Metadata { namespace, name, uid, .. }: &Metadata) -> PodRef {
        PodRef { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }
}

/// The facts in the object of a meshed pod, and which other objects complete them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    pub facts: PodFacts,
    /// Ways around the rules that no rule depends on.
    pub exposure: Exposure,
    /// Whether annotations of the namespace may apply.
    pub needs_namespace: bool,
    /// Whether the pod reaches the ports of the API server's Service without the proxy.
    pub is_control_plane: bool,
}

/// Returns the facts in a pod's object, or why its containers need no redirect.
pub fn object_facts(pod: Pod) -> Result<Decision<ObjectFacts>, NotAPod> {
    let proxy = match find_proxy(&pod)? {
        Decision::Redirect(proxy) => proxy,
        Decision::Skip(reason) => return Ok(Decision::Skip(reason)),
    };
    let component = pod.metadata.labels.get(CONTROL_PLANE_LABEL);
    Ok(Decision::Redirect(ObjectFacts {
        needs_namespace: needs_namespace(&pod.metadata.annotations),
        is_control_plane: component.is_some_and(|component| !component.is_empty()),
        exposure: exposure::exposure(&pod),
        facts: PodFacts {
            proxy,
            early_containers: containers::before_proxy(&pod),
            app_containers: containers::beside_proxy(&pod),
            uid: pod.metadata.uid,
            annotations: redirect_annotations(pod.metadata.annotations),
            runtime_class: pod.spec.runtime_class_name,
            ..PodFacts::default()
        },
    }))
}

impl ObjectFacts {
    /// Whether other objects than the pod complete the facts.
    pub fn needs_objects(&self) -> bool {
        self.needs_namespace || self.is_control_plane
    }

    /// Returns the complete facts: `of_namespace` are the namespace's annotations, which apply
    /// where the pod has none.
    pub fn complete(&self, of_namespace: Annotations, api_ports: Vec<PortRange>) -> PodFacts {
        let mut facts = self.facts.clone();
        inherit(&mut facts.annotations, of_namespace);
        PodFacts { api_ports, ..facts }
    }
}

impl PodFacts {
    /// Returns the facts in the annotations that the runtime passes to the plugin. They do not tell
    /// what the container `linkerd-proxy` states and whether the pod belongs to the control plane.
    pub fn from_annotations(uid: &str, annotations: Annotations) -> Self {
        PodFacts {
            uid: uid.to_owned(),
            annotations: redirect_annotations(annotations),
            ..PodFacts::default()
        }
    }
}
