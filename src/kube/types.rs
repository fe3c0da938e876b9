//! The few fields of Kubernetes objects that the programs read or write.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// What an API server answers instead of an object.
#[derive(Debug, Deserialize)]
pub struct Status {
    pub message: Option<String>,
}

/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/>
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub deletion_timestamp: Option<String>,
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    /// RFC 3339 in UTC with whole seconds, so that the order of text is the order of time.
    /// Older API servers write `null` where there is none, as in each bookmark.
    #[serde(deserialize_with = "or_default")]
    pub creation_timestamp: String,
    pub owner_references: Vec<OwnerReference>,
}

fn or_default<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    Option::deserialize(text).map(Option::unwrap_or_default)
}

/// A pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: String,
    pub host_network: bool,
    /// Every pod has some: without, the object is no pod but `{}`, a list or a Status.
    pub containers: Option<Vec<Container>>,
    pub init_containers: Vec<Container>,
    pub security_context: SecurityContext,
}

/// Of the environment, which can hold secrets, only the proxy's addresses are kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub security_context: SecurityContext,
    #[serde(deserialize_with = "listen_addresses")]
    pub env: Vec<EnvVar>,
}

/// Who a container, or a pod's containers, run as.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct EnvVar {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

fn listen_addresses<'de, D: Deserializer<'de>>(env: D) -> Result<Vec<EnvVar>, D::Error> {
    let env: Option<Vec<EnvVar>> = Option::deserialize(env)?;
    let is_address =
        |var: &EnvVar| var.name.starts_with("LINKERD2_PROXY_") && var.name.contains("_LISTEN_ADDR");
    Ok(env.into_iter().flatten().filter(is_address).collect())
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    #[serde(rename = "podIPs")]
    pub ips: Vec<PodIp>,
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    /// Of an init container: that it has done its work.
    pub ready: bool,
    pub state: ContainerState,
    pub last_state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
}

/// A DaemonSet, for whether it is to stay.
#[derive(Clone, Debug, Deserialize)]
pub struct DaemonSet {
    pub metadata: Metadata,
}

/// A namespace, for its annotations and its end.
#[derive(Clone, Debug, Deserialize)]
pub struct Namespace {
    pub metadata: Metadata,
}

/// A Service, for its ports.
#[derive(Clone, Debug, Deserialize)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    pub port: u16,
    /// A number, or the name of a container's port.
    #[serde(default)]
    pub target_port: Option<serde_json::Value>,
}

/// Options of a DELETE.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteOptions {
    /// Seconds; the pod's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<u32>,
    pub preconditions: Preconditions,
}

/// The object is only deleted if it is still the one that was looked at.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preconditions {
    pub uid: String,
    pub resource_version: String,
}

/// What keeps an object there, e.g. the ReplicaSet of a pod.
#[derive(Clone, Debug, Deserialize)]
pub struct OwnerReference {
    pub uid: String,
}

/// What a list says about itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// Where a watch goes on from.
    pub resource_version: String,
    /// What to ask the next page with; empty on the last one.
    #[serde(rename = "continue")]
    pub continue_token: String,
}
