//! The fields of Kubernetes objects that the programs read or write.
//!
//! A `null` field is read as missing, as in Go's clients: Go writes `"creationTimestamp":null`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a field; `null` is the default value.
pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// Rejects an object of an unexpected kind, e.g. a Status, which has metadata too. Objects in lists
/// have no kind.
fn kind<'de, D: Deserializer<'de>>(field: D, wanted: &str) -> Result<(), D::Error> {
    match Option::<Cow<'de, str>>::deserialize(field)? {
        Some(kind) if kind != wanted => {
            Err(D::Error::custom(format_args!("unexpected kind of object, expected {wanted}")))
        }
        _ => Ok(()),
    }
}

fn pod<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Pod")
}

fn namespace<'de, D: Deserializer<'de>>(field: D) -> Result<(), D::Error> {
    kind(field, "Namespace")
}

/// Annotation of a mirror pod, which stands for a static pod: the UID that kubelet gave the static
/// pod. The mirror pod's own UID differs. `kubernetes.io/config.hash` has the same value, but can be
/// added to an existing pod; the API server rejects an update that adds this annotation.
pub const STATIC_POD_UID: &str = "kubernetes.io/config.mirror";

/// Whether a program reads the annotation: it is Linkerd's, Helm's or [`STATIC_POD_UID`].
fn is_read(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_linkerds = domain == "linkerd.io" || domain.ends_with(".linkerd.io");
    is_linkerds || domain == "meta.helm.sh" || key == STATIC_POD_UID
}

/// Keeps the annotations that a program reads and drops each other one before the next is read: an
/// object may have 256 KiB of annotations.
fn annotations<'de, D: Deserializer<'de>>(field: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Read;

    impl<'de> Visitor<'de> for Read {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_some<D: Deserializer<'de>>(self, field: D) -> Result<Self::Value, D::Error> {
            field.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut field: A) -> Result<Self::Value, A::Error> {
            let mut annotations = BTreeMap::new();
            while let Some(key) = field.next_key::<String>()? {
                match is_read(&key) {
                    true => drop(annotations.insert(key, field.next_value()?)),
                    false => drop(field.next_value::<IgnoredAny>()?),
                }
            }
            Ok(annotations)
        }
    }

    field.deserialize_option(Read)
}

/// The error object of the API server.
#[derive(Debug, Deserialize)]
pub struct ApiStatus {
    pub message: Option<String>,
    pub reason: Option<String>,
}

/// Metadata of an object:
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/>
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub deletion_timestamp: Option<String>,
    /// Those that a program reads, see [`is_read`].
    #[serde(deserialize_with = "annotations")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// RFC 3339 in UTC with whole seconds, so that comparing texts compares times. Older API
    /// servers write `null` if it is missing, as in each bookmark.
    #[serde(deserialize_with = "null_as_default")]
    pub creation_timestamp: String,
    #[serde(deserialize_with = "null_as_default")]
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
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: PodStatus,
}

/// The `spec` of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub node_name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub host_network: bool,
    /// `None` means that the object is not a pod but `{}`, a list or a Status: every pod has
    /// containers.
    pub containers: Option<Vec<Container>>,
    #[serde(deserialize_with = "null_as_default")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "null_as_default")]
    pub security_context: SecurityContext,
}

/// A container. Environment variables can hold secrets, so `env` has only the proxy's listen
/// addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub security_context: SecurityContext,
    /// `Always` for an init container that is a native sidecar.
    pub restart_policy: Option<String>,
    #[serde(deserialize_with = "listen_addresses")]
    pub env: Vec<EnvVar>,
}

/// User and group of a container, or of all containers of a pod.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
}

/// One environment variable of a container.
#[derive(Clone, Debug, Deserialize)]
pub struct EnvVar {
    pub name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub value: String,
}

/// Keeps the proxy's listen addresses and drops each other variable before the next is read: a
/// pod may have a megabyte of variables.
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

/// The `status` of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(deserialize_with = "null_as_default")]
    pub phase: String,
    #[serde(rename = "podIPs", deserialize_with = "null_as_default")]
    pub ips: Vec<PodIp>,
    #[serde(deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

/// The status of one container of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    /// For an init container: whether it has completed.
    pub ready: bool,
    #[serde(deserialize_with = "null_as_default")]
    pub state: ContainerState,
    #[serde(deserialize_with = "null_as_default")]
    pub last_state: ContainerState,
}

/// The state of a container, without details of a container that waits or runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    pub running: Option<IgnoredAny>,
    pub terminated: Option<Terminated>,
}

/// How a container terminated.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated {
    pub exit_code: i32,
}

/// A namespace; its metadata has the annotations and the deletion time.
#[derive(Clone, Debug, Deserialize)]
pub struct Namespace {
    #[serde(default, deserialize_with = "namespace")]
    pub kind: (),
    pub metadata: Metadata,
}

/// An object, reduced to its metadata and a part of its `spec`.
#[derive(Clone, Debug, Deserialize)]
pub struct Object<S: Default> {
    pub metadata: Metadata,
    #[serde(
        default,
        deserialize_with = "null_as_default",
        bound(deserialize = "S: Deserialize<'de>")
    )]
    pub spec: S,
}

/// A Service, reduced to its ports.
pub type Service = Object<ServiceSpec>;

/// The `spec` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ServicePort>,
}

/// One port of a Service.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    pub port: u16,
    /// A number, or the name of a container's port.
    #[serde(default)]
    pub target_port: Option<serde_json::Value>,
}

/// The owner of an object, e.g. the ReplicaSet of a pod.
#[derive(Clone, Debug, Deserialize)]
pub struct OwnerReference {
    #[serde(default)]
    pub kind: String,
    pub uid: String,
    /// Whether the owner is the object's controller, which replaces a deleted object.
    #[serde(default, deserialize_with = "null_as_default")]
    pub controller: bool,
}

/// Metadata of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMetadata {
    /// Version from which a watch continues.
    pub resource_version: String,
    /// Not empty if the API server returned only a part of the list.
    #[serde(rename = "continue")]
    pub continue_token: String,
}
