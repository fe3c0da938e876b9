//! Decides which pods are stranded and which pods are audited. Pure.
//!
//! A stranded pod started before the plugin was chained: it has no redirect rules, and its
//! validator exits with 95. An audit also finds running meshed pods that lost rules.
//! [`StrandedPod`] describes both: the pod that was found, and the facts on which a repair depends.

use std::net::IpAddr;

use crate::cni::args::PodRef;
use crate::kube::pod_list::FromPod;
use crate::kube::types::{ContainerStatus, Metadata, OwnerReference, Pod, STATIC_POD_UID};
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
    /// The pod's validator exited with [`NOT_REDIRECTED`].
    #[default]
    Validator,
    /// An audit read the rules in the pod's netns.
    Audit,
}

/// A pod that may have no redirect rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrandedPod {
    pub found: FoundPod,
    pub facts: RepairFacts,
}

/// Identifies a pod and the version in which the controller found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub found_by: FoundBy,
}

/// Facts about a pod on which its repair depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairFacts {
    /// Identifies the object that replaces the pod: UID of the pod's controller or else of its
    /// first owner, or `namespace/name` of a pod without owner.
    pub owner_key: String,
    pub after_deletion: AfterDeletion,
    /// creationTimestamp: RFC 3339 with whole seconds.
    pub created: String,
    /// Why the plugin would skip the pod's replacement by the annotations alone, if neither the
    /// agent nor the API server gave the plugin the pod object. `None` for a pod with the
    /// injector's label, because the injector injects the replacement, too.
    pub skipped_by_annotations: Option<SkipReason>,
    /// Why the plugin skips a pod with these containers. `None` for a meshed pod.
    pub skipped_by_containers: Option<SkipReason>,
    /// Address of the pod's network; `None` before the pod has one.
    pub address: Option<IpAddr>,
    /// UID by which the container runtime knows a static pod. `None` for other pods.
    pub static_uid: Option<String>,
}

/// What happens after the pod's deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterDeletion {
    /// The pod has no controller: nothing replaces it.
    #[default]
    Gone,
    /// The pod's controller creates another pod.
    Replaced,
    /// The pod is the mirror pod of a static pod, which keeps running.
    KeepsRunning,
}

impl StrandedPod {
    /// Returns the pod if its present status alone shows that it may need a repair. So a first
    /// failure of the validator counts, and so does a failure from before the controller started.
    /// An audit takes each running meshed pod, because the object does not show whether rules are
    /// missing.
    ///
    /// Returns `None` for a pod that is terminating or finished, or has no netns of its own.
    pub fn from_object(pod: &Pod, found_by: FoundBy) -> Option<Self> {
        let may_need_repair = match found_by {
            // The pod must be injected or meshed, too: other programs may use the validator's name.
            FoundBy::Validator => is_validator_failed(pod) && (is_injected(pod) || is_meshed(pod)),
            FoundBy::Audit => runs(pod) && is_meshed(pod),
        };
        if !may_need_repair || is_exempt(pod) {
            return None;
        }
        Some(StrandedPod {
            found: FoundPod {
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
                resource_version: pod.metadata.resource_version.clone(),
                found_by,
            },
            facts: repair_facts(pod),
        })
    }
}

impl FoundPod {
    pub fn pod_ref(&self) -> PodRef {
        PodRef { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    pub fn api_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

fn repair_facts(pod: &Pod) -> RepairFacts {
    let metadata = &pod.metadata;
    RepairFacts {
        owner_key: owner_key(metadata),
        after_deletion: after_deletion(metadata),
        created: metadata.creation_timestamp.clone(),
        skipped_by_annotations: replacement_skipped_by_annotations(pod),
        skipped_by_containers: mesh::skip_reason(pod),
        address: pod.status.ips.iter().find_map(|ip| ip.ip.parse().ok()),
        static_uid: metadata.annotations.get(STATIC_POD_UID).cloned(),
    }
}

fn controller(metadata: &Metadata) -> Option<&OwnerReference> {
    metadata.owner_references.iter().find(|owner| owner.controller)
}

/// Returns [`RepairFacts::owner_key`].
fn owner_key(metadata: &Metadata) -> String {
    match controller(metadata).or(metadata.owner_references.first()) {
        Some(owner) => owner.uid.clone(),
        None => format!("{}/{}", metadata.namespace, metadata.name),
    }
}

fn after_deletion(metadata: &Metadata) -> AfterDeletion {
    let Some(controller) = controller(metadata) else { return AfterDeletion::Gone };
    let is_static_pod = controller.kind == "Node";
    if is_static_pod {
        return AfterDeletion::KeepsRunning;
    }
    AfterDeletion::Replaced
}

/// Returns [`RepairFacts::skipped_by_annotations`].
fn replacement_skipped_by_annotations(pod: &Pod) -> Option<SkipReason> {
    if is_injected(pod) {
        return None;
    }
    skipped_by_annotations(&pod.metadata.annotations)
}

impl FromPod for StrandedPod {
    fn from_pod(pod: Pod) -> Option<Self> {
        StrandedPod::from_object(&pod, FoundBy::Validator)
    }
}

fn is_injected(pod: &Pod) -> bool {
    pod.metadata.labels.contains_key(INJECTED_LABEL)
}

/// Whether the pod is terminating or finished, or has no netns of its own.
fn is_exempt(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || pod.spec.host_network || pod.status.has_ended()
}

/// Whether a meshed pod does not run yet, so that no audit can judge it and another audit has to
/// follow. After a reboot the pod's netns may be older than the plugin, and the kubelet may skip
/// the validator, which would have found that.
pub fn is_starting(pod: &Pod) -> bool {
    is_meshed(pod) && !runs(pod) && !is_exempt(pod)
}

/// Whether at least one container of the pod runs. The phase of a pod stays `Pending` as long as
/// one of its containers cannot start.
fn runs(pod: &Pod) -> bool {
    if pod.status.phase == "Running" {
        return true;
    }
    let mut containers = pod.status.container_statuses.iter();
    containers.any(|container| container.state.running.is_some())
}

/// Whether the validator's newest run exited with [`NOT_REDIRECTED`].
fn is_validator_failed(pod: &Pod) -> bool {
    let mut containers = pod.status.init_container_statuses.iter();
    let Some(validator) = containers.find(|container| container.name == VALIDATOR) else {
        return false;
    };
    // After a success, `ready` stays true even when the kubelet has removed the exited container.
    if validator.ready {
        return false;
    }
    last_exit_code(validator) == Some(NOT_REDIRECTED)
}

/// Returns the exit code of a container's newest run. After the run has exited, its exit code is in
/// `state`. While the container waits for a restart or runs again, the exit code is in `lastState`.
fn last_exit_code(status: &ContainerStatus) -> Option<i32> {
    let ContainerStatus { state, last_state, .. } = status;
    let exit = state.terminated.as_ref().or(last_state.terminated.as_ref())?;
    Some(exit.exit_code)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Value, json};
    use testkit::chart::yaml;
    use testkit::table::rows_of;

    use super::*;

    const TESTS: &str = include_str!("tests.yaml");

    /// A row of `tests.yaml`: a pod of its `pods`, changes by JSON pointer, and what is expected.
    #[derive(Deserialize)]
    struct Row<E> {
        pod: String,
        #[serde(default)]
        changes: BTreeMap<String, Value>,
        #[serde(flatten)]
        expected: E,
    }

    impl<E> Row<E> {
        fn pod(&self) -> Pod {
            let mut pod = yaml(TESTS)["pods"][&self.pod].clone();
            for (pointer, value) in &self.changes {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                match pod.pointer_mut(pointer) {
                    Some(there) => *there = value.clone(),
                    None => pod.pointer_mut(parent).unwrap()[key] = value.clone(),
                }
            }
            serde_json::from_value(pod).unwrap()
        }

        fn stranded(&self) -> StrandedPod {
            StrandedPod::from_object(&self.pod(), FoundBy::Validator).unwrap()
        }
    }

    #[derive(Deserialize)]
    struct IsFound {
        is_found: bool,
    }

    #[test]
    fn a_failed_validator_or_a_running_proxy_makes_a_pod_a_candidate() {
        for (name, row) in rows_of::<Row<IsFound>>(TESTS, "found") {
            let found_by = match row.pod.as_str() {
                "running" => FoundBy::Audit,
                _ => FoundBy::Validator,
            };
            let is_found = StrandedPod::from_object(&row.pod(), found_by).is_some();
            assert_eq!(is_found, row.expected.is_found, "{name}");
        }
    }

    #[derive(Deserialize)]
    struct Starts {
        is_starting: bool,
    }

    #[test]
    fn a_meshed_pod_that_does_not_run_yet_is_starting() {
        for (name, row) in rows_of::<Row<Starts>>(TESTS, "starting") {
            assert_eq!(is_starting(&row.pod()), row.expected.is_starting, "{name}");
        }
    }

    #[derive(Deserialize)]
    struct Skipped {
        skipped: Value,
    }

    #[test]
    fn a_pod_without_the_injectors_label_may_be_skipped_by_annotations() {
        for (name, row) in rows_of::<Row<Skipped>>(TESTS, "skipped") {
            let skipped = row.stranded().facts.skipped_by_annotations;
            assert_eq!(json!(skipped), row.expected.skipped, "{name}");
        }
    }

    #[derive(Deserialize)]
    struct Owner {
        owner_key: String,
        after_deletion: String,
    }

    #[test]
    fn the_owner_key_is_the_controller_else_first_owner_else_pod_name() {
        for (name, row) in rows_of::<Row<Owner>>(TESTS, "owners") {
            let facts = row.stranded().facts;
            assert_eq!(facts.owner_key, row.expected.owner_key, "{name}");
            let after_deletion = format!("{:?}", facts.after_deletion);
            assert_eq!(after_deletion, row.expected.after_deletion, "{name}");
        }
    }
}
