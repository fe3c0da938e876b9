//! The few fields of Kubernetes objects that the programs read or write.
//!
//! As in Go's clients, `null` stands for a field that is not there: Go itself writes
//! `"creationTimestamp":null`, for one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub(super) fn given<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// An answer of another kind is none, e.g. a Status, which has metadata too. Objects in
/// lists do not say their kind.
fn kind<'de, D: Deserializer<'de>>(field: D, wanted: &str) -> Result<(), D::Error> {
    match Option::<Cow<'de, str>>::deserialize(field)? {
        Some(kind) if kind != wanted => Err(D::Error::custom(format_args!(
            "an object of another kind came instead of a {wanted}"
        ))),
        _ => Ok(()),
    }
}

fn pod<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Pod")
}

fn namespace<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Namespace")
}

/// What an API server answers instead of an object.
#[derive(Debug, Deserialize)]
pub struct Status {
    pub message: Option<String>,
    pub reason: Option<String>,
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
    #[serde(deserialize_with = "given")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "given")]
    pub labels: BTreeMap<String, String>,
    /// RFC 3339 in UTC with whole seconds, so that the order of text is the order of time.
    /// Older API servers write `null` where there is none, as in each bookmark.
    #[serde(deserialize_with = "given")]
    pub creation_timestamp: String,
    #[serde(deserialize_with = "given")]
    pub owner_references: Vec<OwnerReference>,
}

/// A pod.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    #[serde(default, deserialize_with = "pod")]
    pub kind: (),
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "given")]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "given")]
    pub node_name: String,
    #[serde(deserialize_with = "given")]
    pub host_network: bool,
    /// Every pod has some: without, the object is no pod but `{}`, a list or a Status.
    pub containers: Option<Vec<Container>>,
    #[serde(deserialize_with = "given")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "given")]
    pub security_context: SecurityContext,
}

/// Of the environment, which can hold secrets, only the proxy's addresses are kept.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "given")]
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
    #[serde(default, deserialize_with = "given")]
    pub value: String,
}

/// Drops each other variable before the next is read: a pod may have a megabyte of them.
fn listen_addresses<'de, D: Deserializer<'de>>(env: D) -> Result<Vec<EnvVar>, D::Error> {
    struct Addresses;

    impl<'de> Visitor<'de> for Addresses {
        type Value = Vec<EnvVar>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_some<D: Deserializer<'de>>(self, env: D) -> Result<Self::Value, D::Error> {
            env.deserialize_seq(self)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut env: A) -> Result<Self::Value, A::Error> {
            let mut addresses = Vec::new();
            while let Some(var) = env.next_element::<EnvVar>()? {
                if var.name.starts_with("LINKERD2_PROXY_") && var.name.contains("_LISTEN_ADDR") {
                    addresses.push(var);
                }
            }
            Ok(addresses)
        }
    }

    env.deserialize_option(Addresses)
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(deserialize_with = "given")]
    pub phase: String,
    #[serde(rename = "podIPs", deserialize_with = "given")]
    pub ips: Vec<PodIp>,
    #[serde(deserialize_with = "given")]
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
    #[serde(deserialize_with = "given")]
    pub state: ContainerState,
    #[serde(deserialize_with = "given")]
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

/// A namespace, for its annotations and its end.
#[derive(Clone, Debug, Deserialize)]
pub struct Namespace {
    #[serde(default, deserialize_with = "namespace")]
    pub kind: (),
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
    #[serde(deserialize_with = "given")]
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
    /// Set if the API server has left out a part of the list.
    #[serde(rename = "continue")]
    pub continue_token: String,
}
