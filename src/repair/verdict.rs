//! Is this pod stranded by the race between the node's boot and the plugin, and should
//! its rules be looked at? Pure.

use crate::config::pod::is_meshed;
use crate::kube::types::{ContainerStatus, Pod};

/// The init container that tells whether a pod's traffic reaches the proxy.
pub const VALIDATOR: &str = "linkerd-network-validator";

/// What the validator exits with when it does not.
pub const NOT_REDIRECTED: i32 = 95;

/// The label that a stranded pod is given in the mode of that name.
pub const LABEL: &str = "linkerd.io/cni-stranded";

/// How it was found out that a pod runs without our rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Its validator says so.
    #[default]
    Validator,
    /// Its namespace was looked into.
    Audit,
}

/// A pod that runs without our rules, and what is needed to deal with just that pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranded {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    /// Of the pod when it was judged.
    pub version: String,
    /// What will make the pod anew: its first owner's UID, else the pod's own name.
    pub owner: String,
    /// RFC 3339 with whole seconds.
    pub created: String,
    /// It has [`LABEL`] already.
    pub labelled: bool,
    pub cause: Cause,
}

impl Stranded {
    /// The pod, found by `cause`.
    pub fn new(pod: &Pod, cause: Cause) -> Self {
        let metadata = &pod.metadata;
        Stranded {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            node: pod.spec.node_name.clone(),
            version: metadata.resource_version.clone(),
            owner: match metadata.owner_references.first() {
                Some(owner) => owner.uid.clone(),
                None => format!("{}/{}", metadata.namespace, metadata.name),
            },
            created: metadata.creation_timestamp.clone(),
            labelled: metadata.labels.get(LABEL).is_some_and(|is| is == "true"),
            cause,
        }
    }

    /// Whether both are the same pod, be it at another version.
    pub fn is_same(&self, other: &Stranded) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }

    /// Whether the pod is another controller's to deal with. The API server is asked for
    /// the pods of `node` only, but a pod that is deleted for its mistake is gone.
    pub fn is_elsewhere(&self, node: &str) -> bool {
        !self.node.is_empty() && self.node != node
    }
}

/// Looks at what the pod is now, not at how it came to be so: a pod that failed
/// before the controller started counts (D-46), and so does a first failure.
pub fn stranded(pod: &Pod) -> Option<Stranded> {
    let failing = pod
        .status
        .init_container_statuses
        .iter()
        .any(|container| container.name == VALIDATOR && failing(container));
    (failing && !is_spared(pod)).then(|| Stranded::new(pod, Cause::Validator))
}

/// Whether an audit looks into the pod's namespace: it runs, and has the containers by
/// which the plugin makes rules.
pub fn auditable(pod: &Pod) -> bool {
    !is_spared(pod) && pod.status.phase == "Running" && is_meshed(pod)
}

/// Goes already, or has no network of its own.
fn is_spared(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        || pod.spec.host_network
        || matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

/// The newest verdict of the validator counts: `state` if it has ended, else, while
/// it waits or runs again, `lastState`. `ready` stays true after the kubelet has
/// thrown the ended container away.
fn failing(validator: &ContainerStatus) -> bool {
    let newest = validator.state.terminated.as_ref();
    let newest = newest.or(validator.last_state.terminated.as_ref());
    !validator.ready && newest.is_some_and(|end| end.exit_code == NOT_REDIRECTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn validator(status: Value) -> Value {
        let mut status = status;
        status["name"] = json!(VALIDATOR);
        json!({"initContainerStatuses": [{"name": "other"}, status], "phase": "Pending"})
    }

    fn with(mut object: Value, path: &str, value: Value) -> Value {
        let (parent, key) = path.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        object
    }

    fn pod(status: Value) -> Value {
        json!({
            "metadata": {
                "namespace": "emojivoto",
                "name": "web-1",
                "uid": "u-1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {},
            "status": status,
        })
    }

    fn verdict(pod: Value) -> Option<Stranded> {
        stranded(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn only_a_validator_that_fails_with_95_now_strands_a_pod() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        for (name, status, expected) in [
            ("no status", json!({}), false),
            ("not yet run", validator(json!({"state": waiting})), false),
            ("first run", validator(json!({"state": running})), false),
            (
                "first failure",
                validator(json!({"state": ended(95)})),
                true,
            ),
            (
                "waits to be run again",
                validator(json!({"state": waiting, "lastState": ended(95)})),
                true,
            ),
            (
                "runs again",
                validator(json!({"state": running, "lastState": ended(95)})),
                true,
            ),
            (
                "failed again",
                validator(json!({"state": ended(95), "lastState": ended(95)})),
                true,
            ),
            (
                "failed again, otherwise",
                validator(json!({"state": ended(2), "lastState": ended(95)})),
                false,
            ),
            (
                "passed since",
                validator(json!({"state": ended(0), "lastState": ended(95), "ready": true})),
                false,
            ),
            (
                "passed since, the ended container is gone",
                validator(json!({"state": {}, "lastState": ended(95), "ready": true})),
                false,
            ),
            (
                "failed for another reason",
                validator(json!({"state": waiting, "lastState": ended(1)})),
                false,
            ),
            (
                "another container ends with 95",
                json!({"initContainerStatuses": [{"name": "other", "lastState": ended(95)}]}),
                false,
            ),
        ] {
            assert_eq!(verdict(pod(status)).is_some(), expected, "{name}");
        }
    }

    #[test]
    fn pods_that_go_or_are_not_ours_are_spared() {
        let failed = validator(json!({"lastState": {"terminated": {"exitCode": 95}}}));
        let going = json!("2026-01-01T00:00:00Z");
        for (name, pod) in [
            (
                "being deleted",
                with(pod(failed.clone()), "/metadata/deletionTimestamp", going),
            ),
            (
                "host network",
                with(pod(failed.clone()), "/spec/hostNetwork", json!(true)),
            ),
            (
                "finished",
                with(pod(failed.clone()), "/status/phase", json!("Succeeded")),
            ),
            (
                "failed for good",
                with(pod(failed), "/status/phase", json!("Failed")),
            ),
        ] {
            assert_eq!(verdict(pod), None, "{name}");
        }
    }

    #[test]
    fn only_running_meshed_pods_with_a_network_of_their_own_are_audited() {
        let running = json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "app"}, {"name": "linkerd-proxy"}]},
            "status": {"phase": "Running"},
        });
        let going = json!("2026-01-01T00:00:00Z");
        let init = json!([{"name": "linkerd-init"}]);
        for (name, pod, expected) in [
            ("running", running.clone(), true),
            (
                "not yet running",
                with(running.clone(), "/status/phase", json!("Pending")),
                false,
            ),
            (
                "being deleted",
                with(running.clone(), "/metadata/deletionTimestamp", going),
                false,
            ),
            (
                "host network",
                with(running.clone(), "/spec/hostNetwork", json!(true)),
                false,
            ),
            (
                "of linkerd-init",
                with(running.clone(), "/spec/initContainers", init),
                false,
            ),
            (
                "not meshed",
                with(running, "/spec/containers", json!([{"name": "app"}])),
                false,
            ),
        ] {
            let pod = serde_json::from_value(pod).unwrap();
            assert_eq!(auditable(&pod), expected, "{name}");
        }
    }

    #[test]
    fn the_owner_is_what_makes_the_pod_anew() {
        let failed = validator(json!({"lastState": {"terminated": {"exitCode": 95}}}));
        let bare = pod(failed);
        let owners = json!([{"kind": "ReplicaSet", "name": "web", "uid": "o-1"}]);
        let owned = with(bare.clone(), "/metadata/ownerReferences", owners);
        assert_eq!(verdict(bare).unwrap().owner, "emojivoto/web-1");
        assert_eq!(verdict(owned).unwrap().owner, "o-1");
    }
}
