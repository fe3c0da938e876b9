//! Pods whose network cannot be set up, whoever is the cause: the plugin, the primary CNI or
//! another plugin, or a broken network config.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::extension::objects::{event_time, find_condition, items, text};
use crate::extension::parallel::in_parallel;
use crate::extension::report::{CheckResult, Severity, fail_to_read};
use crate::extension::requests::{Api, Error, get_list, get_optional};
use crate::kube::object_reader::namespace_path;

/// Query for the kubelet's Events about pods whose sandbox could not be created. The network of a
/// pod is set up while its sandbox is created.
const FAILED_SANDBOX_QUERY: &str = "fieldSelector=reason%3DFailedCreatePodSandBox";
/// Condition of a pod whose sandbox has its network, of Kubernetes 1.29 and later.
const HAS_SANDBOX: &str = "PodReadyToStartContainers";
/// Largest number of pods that are read and named. Further pods are only counted, because more pods
/// with the same cause would add nothing.
const MAX_NAMED: usize = 50;

/// A pod whose sandbox could not be created, as the newest Event on it says.
struct FailedSandbox {
    namespace: String,
    name: String,
    uid: String,
    message: String,
}

impl FailedSandbox {
    fn from_event(event: &Value) -> FailedSandbox {
        let pod = &event["involvedObject"];
        FailedSandbox {
            namespace: text(&pod["namespace"]).to_owned(),
            name: text(&pod["name"]).to_owned(),
            uid: text(&pod["uid"]).to_owned(),
            message: text(&event["message"]).to_owned(),
        }
    }
}

/// Whether a pod with such an Event still waits for its sandbox.
enum SandboxState {
    /// The pod started, ended or is gone.
    NotAwaited,
    /// The pod waits on this node.
    Awaited(String),
    Unknown(Error),
}

/// Fails, and lists the pods that wait for their sandbox now.
pub fn check_sandboxes(api: &dyn Api) -> CheckResult {
    let mut sandboxes = match list_failed_sandboxes(api) {
        Ok(sandboxes) => sandboxes,
        Err(error) => return fail_to_read("the Events of pods", &error),
    };
    let unread_count = sandboxes.len().saturating_sub(MAX_NAMED);
    sandboxes.truncate(MAX_NAMED);
    let mut waiting = Vec::new();
    let mut unknown = Vec::new();
    for (failed, state) in in_parallel(sandboxes, |failed| read_state(api, failed)) {
        let FailedSandbox { namespace, name, message, .. } = failed;
        match state {
            SandboxState::NotAwaited => {}
            SandboxState::Awaited(node) => {
                waiting.push(format!("{namespace}/{name} on {node}: {message}"))
            }
            SandboxState::Unknown(error) => unknown.push(format!("{namespace}/{name}: {error}")),
        }
    }
    waiting.sort();
    unknown.sort();
    if unread_count > 0 {
        unknown.push(format!("{unread_count} more pods with such an Event"));
    }
    let summary = "pods whose network cannot be set up, so that they do not start; the message \
                   names the plugin that fails";
    Severity::Error.fail_if_any_or_unknown(summary, &waiting, &unknown)
}

/// Returns the newest Event on each pod, sorted by time, newest first.
fn list_failed_sandboxes(api: &dyn Api) -> Result<Vec<FailedSandbox>, Error> {
    let mut events: Vec<Value> = get_list(api, "/api/v1/events", FAILED_SANDBOX_QUERY)?;
    events.sort_by(|a, b| event_time(b).cmp(event_time(a)));
    let mut seen_uids = BTreeSet::new();
    let mut newest = Vec::new();
    for event in &events {
        let uid = text(&event["involvedObject"]["uid"]);
        let is_first_of_pod = seen_uids.insert(uid);
        if is_first_of_pod {
            newest.push(FailedSandbox::from_event(event));
        }
    }
    Ok(newest)
}

/// Reads the pod again, to see whether it still waits for its sandbox.
fn read_state(api: &dyn Api, failed: FailedSandbox) -> (FailedSandbox, SandboxState) {
    let path = format!("{}/pods/{}", namespace_path(&failed.namespace), failed.name);
    let state = match get_optional::<Value>(api, &path) {
        Ok(Some(pod)) if waits_for_sandbox(&pod, &failed.uid) => {
            SandboxState::Awaited(text(&pod["spec"]["nodeName"]).to_owned())
        }
        Ok(_) => SandboxState::NotAwaited,
        Err(error) => SandboxState::Unknown(error),
    };
    (failed, state)
}

/// Whether `pod` has this UID, so that it is the pod of the Event, and still waits for its sandbox.
fn waits_for_sandbox(pod: &Value, uid: &str) -> bool {
    let status = &pod["status"];
    let is_other_pod = pod["metadata"]["uid"] != uid;
    let is_terminating = pod["metadata"]["deletionTimestamp"].is_string();
    let has_ended = matches!(text(&status["phase"]), "Succeeded" | "Failed");
    if is_other_pod || is_terminating || has_ended {
        return false;
    }
    if find_condition(status, HAS_SANDBOX, "True").is_some() {
        return false;
    }
    // Before Kubernetes 1.29 a pod lacks the condition. Then the pod's addresses show whether its
    // network was set up.
    let lacks_address = items(&status["podIPs"]).next().is_none();
    lacks_address || find_condition(status, HAS_SANDBOX, "False").is_some()
}
