//! Pods whose network cannot be set up, whoever is the cause: the plugin, the primary CNI or
//! another plugin, or a broken network config.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::extension::objects::{condition, event_time, items, text};
use crate::extension::parallel::in_parallel;
use crate::extension::report::{CheckResult, Severity, unreadable};
use crate::extension::requests::{Api, Error, find, get_list};
use crate::kube::object_reader::namespace_path;

/// Query for the kubelet's Events about pods whose sandbox could not be created. The network of a
/// pod is set up while its sandbox is created.
const FAILED: &str = "fieldSelector=reason%3DFailedCreatePodSandBox";
/// Condition of a pod whose sandbox has its network, of Kubernetes 1.29 and later.
const HAS_SANDBOX: &str = "PodReadyToStartContainers";
/// Largest number of pods that are read and named. Further pods are only counted, because more pods
/// with the same cause would add nothing.
const MOST_NAMED: usize = 50;

/// A pod whose sandbox could not be created, as the newest Event on it says.
struct FailedSandbox {
    namespace: String,
    name: String,
    uid: String,
    message: String,
}

/// Whether a pod with such an Event still waits for its sandbox.
enum Sandbox {
    /// The pod started, ended or is gone.
    NotAwaited,
    /// The pod waits on this node.
    Awaited(String),
    Unknown(Error),
}

/// Fails with the pods that wait for their sandbox now.
pub fn awaited(api: &dyn Api) -> CheckResult {
    let mut failed = match failed_sandboxes(api) {
        Ok(failed) => failed,
        Err(why) => return unreadable("the Events of pods", &why),
    };
    let unread = failed.split_off(failed.len().min(MOST_NAMED)).len();
    let mut waiting = Vec::new();
    let mut unknown = Vec::new();
    for (failed, sandbox) in in_parallel(failed, |failed| look_up(api, failed)) {
        let FailedSandbox { namespace, name, message, .. } = failed;
        match sandbox {
            Sandbox::NotAwaited => {}
            Sandbox::Awaited(node) => {
                waiting.push(format!("{namespace}/{name} on {node}: {message}"))
            }
            Sandbox::Unknown(why) => unknown.push(format!("{namespace}/{name}: {why}")),
        }
    }
    waiting.sort();
    unknown.sort();
    if unread > 0 {
        unknown.push(format!("{unread} more pods with such an Event"));
    }
    let summary = "pods whose network cannot be set up, so that they do not start; the message \
                   names the plugin that fails";
    Severity::Error.if_any_or_unknown(summary, &waiting, &unknown)
}

/// Returns the newest Event on each pod, sorted by time, newest first.
fn failed_sandboxes(api: &dyn Api) -> Result<Vec<FailedSandbox>, Error> {
    let mut events: Vec<Value> = get_list(api, "/api/v1/events", FAILED)?;
    events.sort_by(|a, b| event_time(b).cmp(event_time(a)));
    let mut newest: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        newest.entry(text(&event["involvedObject"]["uid"])).or_insert(index);
    }
    let mut indices: Vec<usize> = newest.into_values().collect();
    indices.sort_unstable();
    Ok(indices.into_iter().map(|index| failed_sandbox(&events[index])).collect())
}

fn failed_sandbox(event: &Value) -> FailedSandbox {
    let pod = &event["involvedObject"];
    FailedSandbox {
        namespace: text(&pod["namespace"]).to_owned(),
        name: text(&pod["name"]).to_owned(),
        uid: text(&pod["uid"]).to_owned(),
        message: text(&event["message"]).to_owned(),
    }
}

fn look_up(api: &dyn Api, failed: FailedSandbox) -> (FailedSandbox, Sandbox) {
    let path = format!("{}/pods/{}", namespace_path(&failed.namespace), failed.name);
    let sandbox = match find::<Value>(api, &path) {
        Ok(Some(pod)) if waits(&pod, &failed.uid) => {
            Sandbox::Awaited(text(&pod["spec"]["nodeName"]).to_owned())
        }
        Ok(_) => Sandbox::NotAwaited,
        Err(why) => Sandbox::Unknown(why),
    };
    (failed, sandbox)
}

/// Whether `pod` has this UID, so that it is the pod of the Event, and still waits for its sandbox.
fn waits(pod: &Value, uid: &str) -> bool {
    let status = &pod["status"];
    let has_ended = matches!(text(&status["phase"]), "Succeeded" | "Failed");
    if pod["metadata"]["uid"] != uid
        || pod["metadata"]["deletionTimestamp"].is_string()
        || has_ended
    {
        return false;
    }
    if condition(status, HAS_SANDBOX, "True").is_some() {
        return false;
    }
    // Before Kubernetes 1.29 a pod lacks the condition. Then the pod's addresses show whether its
    // network was set up.
    condition(status, HAS_SANDBOX, "False").is_some() || items(&status["podIPs"]).next().is_none()
}
