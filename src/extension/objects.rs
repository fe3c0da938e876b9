//! The fields of API objects that `linkerd cni` reads, besides those of [`crate::kube`]. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::kube::scheduling::{self, Placement, Taint};
use crate::kube::types::{EnvVar, ListMetadata, Metadata, null_as_default};

/// A list.
#[derive(Deserialize)]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default = "Vec::new")]
    pub items: Vec<T>,
}

/// An object, reduced to the parts that are read of its kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Object<Spec = IgnoredAny, Status = IgnoredAny, Meta = Metadata> {
    pub metadata: Meta,
    pub spec: Spec,
    pub status: Status,
}

/// The agent's DaemonSet.
pub type AgentDaemonSet = Object<AgentDaemonSetSpec, RolloutStatus, VersionedMetadata>;
/// The agent's pod.
pub type AgentPod = Object<AgentPodSpec, AgentPodStatus>;
/// A node.
pub type NodeObject = Object<NodeObjectSpec>;

/// Annotation of an object that helm created: name of the release.
pub const RELEASE: &str = "meta.helm.sh/release-name";
/// Annotation of an object that helm created: namespace of the release.
pub const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";

/// A ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    pub data: BTreeMap<String, String>,
}

/// Metadata with the generation of the spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VersionedMetadata {
    pub namespace: String,
    pub name: String,
    pub generation: u64,
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentDaemonSetSpec {
    pub template: Object<AgentPodSpec>,
}

/// The `status` of a DaemonSet: numbers of nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    pub observed_generation: u64,
    pub desired_number_scheduled: u32,
    pub updated_number_scheduled: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentPodSpec {
    #[serde(flatten)]
    pub placement: Placement,
    pub service_account_name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<AgentContainer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentContainer {
    pub name: String,
    pub image: String,
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<NamedPort>,
    #[serde(deserialize_with = "null_as_default")]
    pub env: Vec<EnvVar>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedPort {
    pub name: String,
    pub container_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentPodStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    pub name: String,
    /// By `waiting`, `running` or `terminated`.
    #[serde(deserialize_with = "null_as_default")]
    pub state: BTreeMap<String, Option<StateCause>>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StateCause {
    pub reason: String,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObjectSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub taints: Vec<Taint>,
    #[serde(rename = "podCIDRs", deserialize_with = "null_as_default")]
    pub pod_cidrs: Vec<String>,
}

/// An Event of the core group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EventObject {
    pub involved_object: InvolvedObject,
    pub reason: String,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
    #[serde(deserialize_with = "null_as_default")]
    pub last_timestamp: String,
    #[serde(deserialize_with = "null_as_default")]
    pub event_time: String,
}

/// The object of an Event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct InvolvedObject {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl AgentPodSpec {
    /// Returns the agent's container, which both charts call `install-cni`.
    fn agent(&self) -> Option<&AgentContainer> {
        self.containers.iter().find(|container| container.name == "install-cni")
    }

    /// Returns the agent's image, or an empty text.
    pub fn image(&self) -> &str {
        self.agent().map_or("", |agent| &agent.image)
    }

    /// Returns the value of a variable of the agent's container.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let variable = self.agent()?.env.iter().find(|variable| variable.name == name)?;
        Some(&variable.value)
    }

    /// Returns the port of `/status` and `/metrics`. `None` for upstream's agent, which has none.
    pub fn admin_port(&self) -> Option<u16> {
        let port = self.agent()?.ports.iter().find(|port| port.name == "install-admin")?;
        Some(port.container_port)
    }
}

impl AgentPod {
    /// Returns the condition of this type, such as `Ready`, if it has this status.
    pub fn condition(&self, kind: &str, status: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|found| found.kind == kind && found.status == status)
    }

    pub fn is_ready(&self) -> bool {
        self.condition("Ready", "True").is_some()
    }
}

impl NodeObject {
    /// Returns the fields that decide whether a DaemonSet runs on the node.
    pub fn scheduling(&self) -> scheduling::Node {
        let spec = scheduling::NodeSpec { taints: self.spec.taints.clone() };
        scheduling::Node { metadata: self.metadata.clone(), spec }
    }
}

impl EventObject {
    /// Returns the time of the newest occurrence, RFC 3339.
    pub fn time(&self) -> &str {
        match self.last_timestamp.is_empty() {
            true => &self.event_time,
            false => &self.last_timestamp,
        }
    }
}
