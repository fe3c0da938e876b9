//! The fields of Kubernetes objects that the programs read or write.
//!
//! A `null` field is read as missing, as in Go's clients: Go writes `"creationTimestamp":null`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// Declares objects whose fields may be missing or `null`.
macro_rules! objects {
    ($($(#[$of_struct:meta])* pub struct $name:ident {
        $($(#[$of_field:meta])* pub $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$of_struct])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$of_field])* #[serde(deserialize_with = "null_as_default")] pub $field: $type,)*
        }
    )*};
}
pub(crate) use objects;

pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// Decodes environment variables, and keeps only the proxy's listen addresses, because a pod may
/// have a megabyte of other variables.
fn deserialize_listen_addresses<'de, D: Deserializer<'de>>(
    env: D,
) -> Result<Vec<EnvVar>, D::Error> {
    let mut vars: Vec<EnvVar> = null_as_default(env)?;
    vars.retain(|EnvVar { name, .. }| {
        name.starts_with("LINKERD2_PROXY_") && name.contains("_LISTEN_ADDR")
    });
    Ok(vars)
}

/// Annotation of a mirror pod, which stands for a static pod: the UID that kubelet gave the static
/// pod. The mirror pod's own UID differs. `kubernetes.io/config.hash` has the same value, but can
/// be added to an existing pod; the API server rejects an update that adds this annotation.
pub const STATIC_POD_UID: &str = "kubernetes.io/config.mirror";

/// Annotation in which Multus lists the networks of a pod, with their addresses.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: PodStatus,
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
    #[serde(deserialize_with = "deserialize_listen_addresses")]
    pub env: Vec<EnvVar>,
}

impl PodStatus {
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}

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

pub type AnyObject = Object<IgnoredAny>;

pub type Namespace = AnyObject;

pub type Service = Object<ServiceSpec>;

objects! {
    pub struct ApiStatus {
        /// `Status`. Empty or another name if a proxy sent the object.
        pub kind: String,
        pub code: u16,
        pub message: Option<String>,
        pub reason: Option<String>,
    }

    /// The fields by which a response shows that it is the requested object.
    pub struct ObjectIdentity {
        pub kind: String,
        pub metadata: Metadata,
    }

    pub struct Metadata {
        pub name: String,
        pub namespace: String,
        pub uid: String,
        pub resource_version: String,
        /// When the grace period of a deletion ends, RFC 3339.
        pub deletion_timestamp: Option<String>,
        /// Zero if the object is deleted by force.
        pub deletion_grace_period_seconds: Option<u64>,
        pub annotations: BTreeMap<String, String>,
        pub labels: BTreeMap<String, String>,
        /// RFC 3339 in UTC with whole seconds, so that comparing texts compares times.
        pub creation_timestamp: String,
        pub owner_references: Vec<OwnerReference>,
    }

    pub struct EnvVar {
        pub name: String,
        pub value: String,
    }

    pub struct PodSpec {
        pub node_name: String,
        pub host_network: bool,
        /// Name of the pod's RuntimeClass. Empty for the runtime's default.
        pub runtime_class_name: String,
        /// `None` means that the object is not a pod but `{}`, a list or a Status: every pod has
        /// containers.
        pub containers: Option<Vec<Container>>,
        pub init_containers: Vec<Container>,
        pub ephemeral_containers: Vec<Container>,
        pub security_context: SecurityContext,
    }

    pub struct SecurityContext {
        pub run_as_user: Option<i64>,
        pub run_as_group: Option<i64>,
        pub run_as_non_root: Option<bool>,
        pub allow_privilege_escalation: Option<bool>,
        pub privileged: bool,
        pub capabilities: Capabilities,
    }

    pub struct Capabilities {
        pub add: Vec<String>,
        pub drop: Vec<String>,
    }

    pub struct PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pub phase: String,
        /// When the kubelet accepted the pod, before it made the pod's sandbox. RFC 3339, by the
        /// node's clock.
        pub start_time: Option<String>,
        pub conditions: Vec<PodCondition>,
        #[serde(rename = "podIPs")]
        pub ips: Vec<PodIp>,
        pub init_container_statuses: Vec<ContainerStatus>,
        pub container_statuses: Vec<ContainerStatus>,
        pub ephemeral_container_statuses: Vec<ContainerStatus>,
    }

    pub struct PodCondition {
        #[serde(rename = "type")]
        pub kind: String,
        /// `True`, `False` or `Unknown`.
        pub status: String,
        /// When `status` changed last. RFC 3339, by the clock of the component that wrote it.
        pub last_transition_time: Option<String>,
    }

    pub struct PodIp {
        pub ip: String,
    }

    pub struct ContainerStatus {
        pub name: String,
        /// For an init container: whether it has completed.
        pub ready: bool,
        pub state: ContainerState,
        pub last_state: ContainerState,
        pub user: StatusUser,
    }

    pub struct StatusUser {
        pub linux: LinuxUser,
    }

    /// User and group of the container's first process. Kubernetes has them from 1.35 on (1.33 with
    /// its defaults), if the container runtime reports them: see the feature gate
    /// `SupplementalGroupsPolicy`.
    #[derive(Copy, PartialEq, Eq)]
    pub struct LinuxUser {
        pub uid: Option<i64>,
        pub gid: Option<i64>,
    }

    pub struct ContainerState {
        pub running: Option<IgnoredAny>,
        pub terminated: Option<Terminated>,
    }

    pub struct Terminated {
        pub exit_code: i32,
    }

    pub struct ServiceSpec {
        pub ports: Vec<ServicePort>,
    }

    pub struct ServicePort {
        pub port: u16,
        /// A number, or the name of a container's port.
        pub target_port: Option<serde_json::Value>,
    }

    pub struct OwnerReference {
        pub api_version: String,
        pub kind: String,
        pub name: String,
        pub uid: String,
        /// Whether the owner is the object's controller, which replaces a deleted object.
        pub controller: bool,
    }

    pub struct ListMetadata {
        pub resource_version: String,
        /// Not empty if the API server returned only a part of the list.
        #[serde(rename = "continue")]
        pub continue_token: String,
    }
}
