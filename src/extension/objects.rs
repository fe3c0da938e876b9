//! The fields of API objects that `linkerd cni` reads, besides those of [`crate::kube`]. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::kube::scheduling::{self, Placement, Taint};
use crate::kube::types::{ListMetadata, Metadata, null_as_default};

/// A list.
#[derive(Clone, Debug, Deserialize)]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default = "Vec::new")]
    pub items: Vec<T>,
}

/// An object of which only the metadata matter.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct AnyObject {
    #[serde(default)]
    pub metadata: Metadata,
}

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

/// The agent's DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentDaemonSet {
    pub metadata: Versioned,
    pub spec: AgentDaemonSetSpec,
    pub status: RolloutStatus,
}

/// Metadata with the generation of the spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Versioned {
    pub name: String,
    pub namespace: String,
    pub generation: u64,
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentDaemonSetSpec {
    pub template: AgentTemplate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentTemplate {
    pub spec: AgentPodSpec,
}

/// The `status` of a DaemonSet: numbers of nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    pub observed_generation: u64,
    pub desired_number_scheduled: u32,
    pub updated_number_scheduled: u32,
    pub number_ready: u32,
}

/// The agent's pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AgentPod {
    pub metadata: Metadata,
    pub spec: AgentPodSpec,
    pub status: AgentPodStatus,
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
    pub env: Vec<Variable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedPort {
    pub name: String,
    pub container_port: u16,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variable {
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentPodStatus {
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<Running>,
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

/// The status of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Running {
    pub name: String,
    pub state: RunState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RunState {
    pub waiting: Option<Waiting>,
}

/// Why a container does not run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Waiting {
    pub reason: String,
    #[serde(deserialize_with = "null_as_default")]
    pub message: String,
}

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    pub metadata: Metadata,
    pub spec: NodeObjectSpec,
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
    pub involved_object: Involved,
    #[serde(rename = "type")]
    pub kind: String,
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
pub struct Involved {
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
    pub fn is_ready(&self) -> bool {
        let conditions = &self.status.conditions;
        conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
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
