//! What `linkerd cni` reads of API objects, besides the types of [`crate::kube`]: each object is
//! reduced to the facts that are asked for. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, from_value};

use crate::kube::scheduling::{self, Placement};
pub use crate::kube::types::AnyObject;
use crate::kube::types::{ListMetadata, Metadata, null_as_default};

/// Annotation of an object that helm created: name of the release.
const RELEASE: &str = "meta.helm.sh/release-name";

#[derive(Deserialize)]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(default = "Vec::new")]
    pub items: Vec<T>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    pub metadata: Metadata,
    #[serde(deserialize_with = "null_as_default")]
    pub data: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct AgentDaemonSet {
    pub namespace: String,
    pub name: String,
    pub is_in_release: bool,
    /// Whether Kubernetes has processed the newest spec.
    pub is_observed: bool,
    /// Number of nodes in the scope.
    pub desired: u64,
    /// Number of nodes with a pod of the newest revision.
    pub updated: u64,
    pub placement: Placement,
    pub service_account: String,
    pub image: String,
    pub admin_port: Option<u16>,
    pub variables: BTreeMap<String, String>,
}

impl TryFrom<Value> for AgentDaemonSet {
    type Error = serde_json::Error;

    fn try_from(object: Value) -> Result<AgentDaemonSet, serde_json::Error> {
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let pods = &object["spec"]["template"]["spec"];
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let variables =
            items(&agent(pods)["env"]).map(|var| (text(&var["name"]), text(&var["value"])));
        Ok(AgentDaemonSet {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            is_in_release: metadata["annotations"][RELEASE].is_string(),
            is_observed: number(&status["observedGeneration"]) >= number(&metadata["generation"]),
            desired: number(&status["desiredNumberScheduled"]),
            updated: number(&status["updatedNumberScheduled"]),
            placement: Option::deserialize(pods)?.unwrap_or_default(),
            service_account: text(&pods["serviceAccountName"]),
            image: text(&agent(pods)["image"]),
            admin_port: admin_port(pods),
            variables: variables.collect(),
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Value")]
pub struct AgentPod {
    pub name: String,
    pub uid: String,
    pub node: String,
    /// Port of `/status`. `None` for upstream's agent, which has none.
    pub admin_port: Option<u16>,
    pub is_ready: bool,
    /// Why the pod is not scheduled.
    pub unscheduled: Option<String>,
    /// A container that waits.
    pub waiting: Option<WaitingContainer>,
}

/// A container that waits: its name, and why.
#[derive(Clone, Debug)]
pub struct WaitingContainer {
    pub name: String,
    pub reason: String,
    /// May be empty.
    pub message: String,
}

impl From<Value> for AgentPod {
    fn from(object: Value) -> AgentPod {
        let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
        let condition = |kind: &str, value: &str| {
            items(&status["conditions"])
                .find(|found| found["type"] == kind && found["status"] == value)
        };
        let waiting = |container: &Value| {
            let cause = container["state"]["waiting"].as_object()?;
            let field = |name: &str| cause.get(name).map(text).unwrap_or_default();
            let name = text(&container["name"]);
            Some(WaitingContainer { name, reason: field("reason"), message: field("message") })
        };
        AgentPod {
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            node: text(&spec["nodeName"]),
            admin_port: admin_port(spec),
            is_ready: condition("Ready", "True").is_some(),
            unscheduled: condition("PodScheduled", "False").map(|found| text(&found["message"])),
            waiting: items(&status["containerStatuses"]).find_map(waiting),
        }
    }
}

/// An injected pod, where Multus calls the plugin.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Value")]
pub struct InjectedPod {
    pub name: String,
    /// Whether Multus has to call the plugin for the pod, and does not.
    pub lacks_attachment: bool,
}

impl From<Value> for InjectedPod {
    fn from(object: Value) -> InjectedPod {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let networks = text(&metadata["annotations"]["k8s.v1.cni.cncf.io/networks"]);
        // A JSON list, or names with namespace before and interface behind.
        let is_attached = match serde_json::from_str::<Vec<Value>>(&networks) {
            Ok(list) => list.iter().any(|network| network["name"] == "linkerd-cni"),
            Err(_) => networks.split(',').any(|network| {
                let name = network.trim().split('@').next().unwrap_or_default();
                name.rsplit('/').next() == Some("linkerd-cni")
            }),
        };
        let has = |list: &str, name: &str| items(&spec[list]).any(|found| found["name"] == name);
        let has_proxy = ["containers", "initContainers"].map(|list| has(list, "linkerd-proxy"));
        let is_meshed = has_proxy.contains(&true) && !has("initContainers", "linkerd-init");
        let has_ended = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let needs_one = is_meshed && !has_ended && spec["hostNetwork"] != true;
        InjectedPod {
            name: format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"])),
            lacks_attachment: needs_one && !is_attached,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub struct NodeObject {
    pub name: String,
    /// Decides whether a DaemonSet runs on the node.
    pub scheduling: scheduling::Node,
}

impl TryFrom<Value> for NodeObject {
    type Error = serde_json::Error;

    fn try_from(object: Value) -> Result<NodeObject, serde_json::Error> {
        let name = text(&object["metadata"]["name"]);
        Ok(NodeObject { name, scheduling: from_value(object)? })
    }
}

/// An Event of the core group.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Value")]
pub struct EventObject {
    /// Kind, name and UID of the object that it is about.
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub reason: String,
    pub is_warning: bool,
    pub message: String,
    /// Time of the newest occurrence, RFC 3339.
    pub time: String,
}

impl From<Value> for EventObject {
    fn from(object: Value) -> EventObject {
        let involved = &object["involvedObject"];
        let times = ["lastTimestamp", "eventTime"].map(|key| text(&object[key]));
        EventObject {
            kind: text(&involved["kind"]),
            name: text(&involved["name"]),
            uid: text(&involved["uid"]),
            reason: text(&object["reason"]),
            is_warning: object["type"] == "Warning",
            message: text(&object["message"]),
            time: times.into_iter().find(|time| !time.is_empty()).unwrap_or_default(),
        }
    }
}

/// Returns the agent's container in the spec of a pod, which both charts call `install-cni`.
fn agent(spec: &Value) -> &Value {
    items(&spec["containers"]).find(|found| found["name"] == "install-cni").unwrap_or(&Value::Null)
}

fn admin_port(spec: &Value) -> Option<u16> {
    let port = items(&agent(spec)["ports"]).find(|port| port["name"] == "install-admin")?;
    port["containerPort"].as_u64()?.try_into().ok()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns a text field; missing and `null` are empty.
fn text(field: &Value) -> String {
    field.as_str().unwrap_or_default().to_owned()
}
