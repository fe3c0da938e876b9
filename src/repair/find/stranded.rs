//! Decides which pods are stranded and which pods are audited. Pure.
//!
//! A stranded pod started before the plugin was chained: it has no redirect rules, and its
//! validator exits with 95. An audit also finds running meshed pods that lost rules.
//! [`StrandedPod`] describes both.

use std::net::IpAddr;

use crate::cni::args::PodRef;
use crate::kube::pod_stream::FromPod;
use crate::kube::types::{ContainerStatus, Pod, STATIC_POD_UID};
use crate::pod::containers::VALIDATOR;
use crate::pod::mesh::{self, is_meshed};
use crate::pod::skip::{SkipReason, skipped_by_annotations};

/// Exit code of the validator if the traffic is not redirected.
const NOT_REDIRECTED: i32 = 95;

/// Label that the proxy injector sets. Upstream's controller repairs only pods with this label.
pub const INJECTED_LABEL: &str = "linkerd.io/control-plane-ns";

/// How a pod without redirect rules was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FoundBy {
    /// Its validator exited with [`NOT_REDIRECTED`].
    #[default]
    Validator,
    /// An audit read the rules in its netns.
    Audit,
}

/// A pod without redirect rules, reduced to the fields that a repair needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrandedPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    /// resourceVersion of the pod when it was found.
    pub resource_version: String,
    /// Identifies the object that replaces the pod: UID of the pod's controller or else of its first
    /// owner, or `namespace/name` of a pod without owner.
    pub owner_key: String,
    /// Whether an owner of the pod is its controller, which replaces the pod after a deletion.
    pub has_controller: bool,
    /// Whether the pod is the mirror pod of a static pod, whose controller is the node.
    pub is_mirror: bool,
    /// creationTimestamp: RFC 3339 with whole seconds.
    pub created: String,
    /// Why the plugin skips a pod with these annotations, such as the pod that replaces this one,
    /// unless it asks the API server for every pod. `None` for a pod of the injector, which also
    /// injects the replacement.
    pub skipped_by_annotations: Option<SkipReason>,
    /// Why the plugin skips a pod with these containers. `None` for a meshed pod.
    pub skipped_by_containers: Option<SkipReason>,
    /// Address of the pod's network; `None` before the pod has one.
    pub address: Option<IpAddr>,
    /// UID by which the container runtime knows the pod, if it differs: that of a static pod.
    pub static_uid: Option<String>,
    pub found_by: FoundBy,
}

impl StrandedPod {
    /// Returns the pod if it may need a repair by its present status alone: a first failure of the
    /// validator counts, and so does a failure from before the controller started. Whether a running
    /// pod lacks rules is not known from its object.
    ///
    /// Never a pod that is terminating or finished, or has no netns of its own.
    pub fn found(pod: &Pod, found_by: FoundBy) -> Option<Self> {
        let may_need_repair = match found_by {
            // Other programs may use the validator's name.
            FoundBy::Validator => is_validator_failed(pod) && (is_injected(pod) || is_meshed(pod)),
            FoundBy::Audit => runs(pod) && is_meshed(pod),
        };
        let is_exempt = pod.metadata.deletion_timestamp.is_some()
            || pod.spec.host_network
            || pod.status.has_ended();
        if !may_need_repair || is_exempt {
            return None;
        }
        let metadata = &pod.metadata;
        let owners = &metadata.owner_references;
        let controller = owners.iter().find(|owner| owner.controller);
        Some(StrandedPod {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            node: pod.spec.node_name.clone(),
            resource_version: metadata.resource_version.clone(),
            owner_key: match controller.or(owners.first()) {
                Some(owner) => owner.uid.clone(),
                None => format!("{}/{}", metadata.namespace, metadata.name),
            },
            has_controller: controller.is_some(),
            is_mirror: controller.is_some_and(|owner| owner.kind == "Node"),
            created: metadata.creation_timestamp.clone(),
            skipped_by_annotations: match is_injected(pod) {
                true => None,
                false => skipped_by_annotations(&metadata.annotations),
            },
            skipped_by_containers: mesh::skip_reason(pod),
            address: pod.status.ips.iter().find_map(|ip| ip.ip.parse().ok()),
            static_uid: metadata.annotations.get(STATIC_POD_UID).cloned(),
            found_by,
        })
    }

    pub fn pod_ref(&self) -> PodRef {
        PodRef { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    pub fn api_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

impl FromPod for StrandedPod {
    fn from_pod(pod: Pod) -> Option<Self> {
        StrandedPod::found(&pod, FoundBy::Validator)
    }
}

fn is_injected(pod: &Pod) -> bool {
    pod.metadata.labels.contains_key(INJECTED_LABEL)
}

/// Whether at least one container of the pod runs. The phase of a pod stays `Pending` as long as one of
/// its containers cannot start.
fn runs(pod: &Pod) -> bool {
    let status = &pod.status;
    status.phase == "Running"
        || status.container_statuses.iter().any(|one| one.state.running.is_some())
}

/// Whether the validator's newest run exited with [`NOT_REDIRECTED`].
///
/// The newest run is in `state` after it has exited. While the validator waits or runs
/// again, it is in `lastState`. After a success, `ready` stays true even when the kubelet
/// has removed the exited container.
fn is_validator_failed(pod: &Pod) -> bool {
    let is_failed = |validator: &ContainerStatus| {
        let newest = validator.state.terminated.as_ref();
        let newest = newest.or(validator.last_state.terminated.as_ref());
        !validator.ready && newest.is_some_and(|exit| exit.exit_code == NOT_REDIRECTED)
    };
    let mut statuses = pod.status.init_container_statuses.iter();
    statuses.any(|container| container.name == VALIDATOR && is_failed(container))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use testkit::chart::yaml;

    use super::*;

    /// The cases of a test, each with its pod: a change of one of the pods of `tests.yaml`, by JSON pointer.
    fn cases(name: &str) -> Vec<(Pod, Value)> {
        let all = yaml(include_str!("tests.yaml"));
        let case = |case: &Value| {
            let mut pod = all["pods"][case[0].as_str().unwrap()].clone();
            for (pointer, value) in case[1].as_object().unwrap() {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                match pod.pointer_mut(pointer) {
                    Some(there) => *there = value.clone(),
                    None => pod.pointer_mut(parent).unwrap()[key] = value.clone(),
                }
            }
            (serde_json::from_value(pod).unwrap(), case.clone())
        };
        all[name].as_array().unwrap().iter().map(case).collect()
    }

    fn verdict(pod: &Pod) -> Option<StrandedPod> {
        StrandedPod::found(pod, FoundBy::Validator)
    }

    #[test]
    fn a_pod_is_stranded_while_its_validator_fails_and_audited_while_it_runs_meshed() {
        for (pod, case) in cases("found") {
            let found_by = match case[0].as_str() {
                Some("running") => FoundBy::Audit,
                _ => FoundBy::Validator,
            };
            assert_eq!(json!(StrandedPod::found(&pod, found_by).is_some()), case[2], "{case}");
        }
    }

    #[test]
    fn a_pod_that_the_injector_did_not_label_is_stranded_only_if_it_is_meshed() {
        for (pod, case) in cases("skipped") {
            let found = verdict(&pod).unwrap();
            assert_eq!(json!(found.skipped_by_annotations), case[2], "{case}");
        }
    }

    #[test]
    fn the_owner_key_is_the_controller_or_the_first_owner_or_the_name_of_a_pod_without_owner() {
        for (pod, case) in cases("owners") {
            let found = verdict(&pod).unwrap();
            assert_eq!(json!([found.owner_key, found.has_controller]), case[2], "{case}");
        }
    }
}
