//! One attempt to repair one pod: checks whether the pod still needs a repair, then applies
//! the repair mode.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Instant;

use serde_json::json;

use super::api_path::pod_path;
use super::eviction::{self, Effect};
use super::history::History;
use super::host_dirs::HostDirs;
use super::in_place::{self, PodRules};
use super::inspect_rules::{self, Inspection, Inspector, ReadFrom};
use super::metrics::Metrics;
use super::rate_limit::RepairBudget;
use super::stranded_pod::{FoundBy, LABEL, StrandedPod, is_auditable};
use super::{RepairMode, Shared};
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::kube::connection::{self, Connection};
use crate::kube::types::Pod;
use crate::kube::{self, Client};
use crate::pod::skip::Detection;
use crate::pod::skip::SkipReason;

/// Why the worker skips a pod whose rules it cannot read.
const UNREADABLE: &str = "the pod's network namespace has a table of iptables-legacy, or too many \
                          rules, which the repair controller cannot read; delete the pod to \
                          replace it";

/// Why the worker does not delete a pod without a controller.
const UNMANAGED: &str = "the pod has no controller that would replace it, so it is not deleted; \
                         delete it and create it again, or set repairController.mode=in-place or \
                         repairController.deleteUnmanaged=true";

/// Why the worker does not delete a mirror pod.
const STATIC: &str = "it is a static pod, which keeps running although its mirror pod is deleted; \
                      move its manifest away until the pod is gone, then back, or set \
                      repairController.mode=in-place";

/// Why no repair helps while the plugin only logs the rules.
const SIMULATED: &str = "the plugin installs no redirect rules in this pod (simulate is set in the \
                         plugin entry); set simulate to false";

/// Why no repair helps an unmeshed pod.
const UNMESHED: &str = "the plugin installs no redirect rules in this pod (its containers or \
                        annotations say that it is not meshed); remove the init container \
                        linkerd-network-validator, or correct the annotations";

/// One attempt to repair a pod. Borrows settings and state of the worker.
pub struct RepairAttempt<'a> {
    pub connection: &'a mut Connection,
    pub mode: RepairMode,
    /// Whether mode `delete` deletes pods without a controller.
    pub delete_unmanaged: bool,
    pub host: &'a HostDirs,
    pub budget: &'a mut RepairBudget,
    /// Pods or owners that were repaired recently.
    pub repaired: &'a History,
    pub shared: &'a Shared,
}

/// Why an attempt, or its Event, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error(transparent)]
    Inspect(#[from] inspect_rules::Error),
    #[error(transparent)]
    InPlace(#[from] in_place::Error),
}

impl Error {
    /// HTTP status of the API server's response, if there was a response.
    fn status_code(&self) -> Option<u16> {
        match self {
            Error::Request(error) => error.code(),
            _ => None,
        }
    }

    /// Whether an API request timed out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_timeout())
    }

    /// Counts this error of publishing an Event.
    pub fn count_unpublished(&self, metrics: &Metrics) {
        match self.is_timeout() {
            true => metrics.events_publish_timeouts.inc(),
            false => metrics.events_publish_errors.inc(),
        };
    }
}

/// Result of an attempt.
pub enum RepairOutcome {
    /// The repair mode was applied. `missing_rules` is empty if the rules were not read.
    /// `dry_run` is whether the pod was deleted after a dry run of its eviction.
    Repaired { missing_rules: Vec<String>, dry_run: bool },
    /// The pod does not need a repair, for this reason.
    NotNeeded(&'static str),
    /// The pod has all its rules, but the last run of its validator failed.
    Complete,
    /// The pod, or the one that it replaces, was repaired recently. When the pod may be repaired.
    RepairedRecently(Instant),
    /// The pod cannot be repaired, for this reason.
    CannotRepair(String),
    /// The eviction is rejected, for this reason.
    EvictionRejected(String),
    /// The pod is not deleted, because no controller would replace it. The explanation.
    Unmanaged(&'static str),
}

/// A pod that needs a repair, after the check.
struct NeededRepair {
    pod: StrandedPod,
    /// The rules to install; `None` if the pod's netns was not inspected.
    rules: Option<PodRules>,
    /// The missing rules; empty if the pod's netns was not inspected.
    missing_rules: Vec<String>,
}

impl NeededRepair {
    fn without_inspection(pod: StrandedPod) -> Self {
        NeededRepair { pod, rules: None, missing_rules: Vec::new() }
    }
}

impl RepairAttempt<'_> {
    /// Applies the repair mode to the pod if the pod still needs a repair.
    pub fn run(mut self, pod: &StrandedPod) -> Result<RepairOutcome, Error> {
        if self.is_labelled(pod) {
            return Ok(RepairOutcome::NotNeeded("Pod is already labelled"));
        }
        let NeededRepair { pod, rules, missing_rules } = match self.check(pod)? {
            Continue(repair) => repair,
            Break(outcome) => return Ok(outcome),
        };
        if self.mode == RepairMode::Delete && pod.is_mirror {
            return Ok(RepairOutcome::CannotRepair(STATIC.to_owned()));
        }
        if let Some(reason) = self.replacement_skipped(&pod) {
            return Ok(RepairOutcome::CannotRepair(skipped_by_plugin(reason)));
        }
        if let Some(end) = self.repaired.held_until(&pod, Instant::now()) {
            return Ok(RepairOutcome::RepairedRecently(end));
        }
        let result = match self.apply(&pod, rules.as_ref()) {
            // The pod changed after the check: try once more with its new version.
            Err(error) if error.status_code() == Some(409) => match self.read_again(&pod)? {
                Some((pod, _)) if !self.is_labelled(&pod) => self.apply(&pod, rules.as_ref()),
                _ => return Ok(RepairOutcome::NotNeeded("Pod is gone or needs no repair")),
            },
            result => result,
        };
        // A rejected request changed nothing and costs no budget. A request without a
        // response may have been carried out.
        let is_rejected = match &result {
            Ok(effect) => !matches!(effect, Effect::Applied | Effect::AppliedAfterDryRun),
            Err(error) => error.status_code().is_some(),
        };
        if !is_rejected {
            self.budget.spend(&pod.namespace, Instant::now());
        }
        match result {
            Ok(Effect::Applied) => Ok(RepairOutcome::Repaired { missing_rules, dry_run: false }),
            Ok(Effect::AppliedAfterDryRun) => {
                Ok(RepairOutcome::Repaired { missing_rules, dry_run: true })
            }
            Ok(Effect::EvictionRejected(why)) => Ok(RepairOutcome::EvictionRejected(why)),
            Ok(Effect::Unmanaged) => Ok(RepairOutcome::Unmanaged(UNMANAGED)),
            Err(error) if error.status_code() == Some(404) => {
                Ok(RepairOutcome::NotNeeded("Pod is gone"))
            }
            Err(error) if error.status_code() == Some(409) => {
                self.shared.unrepaired.add(pod.found_by, Instant::now());
                Ok(RepairOutcome::NotNeeded(
                    "Pod keeps changing; the next list or audit finds it again",
                ))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks whether the pod still needs a repair. Reads the pod again, because the list,
    /// watch event or audit may be old by now. A pod with a failed validator is
    /// deleted without this read: the preconditions of the deletion name the version that was
    /// found.
    ///
    /// `Break` ends the attempt, because no repair is necessary or possible.
    fn check(
        &mut self,
        pod: &StrandedPod,
    ) -> Result<ControlFlow<RepairOutcome, NeededRepair>, Error> {
        let config = self.host.config();
        if config.as_ref().is_ok_and(|config| config.simulate) {
            return Ok(Break(no_rules_outcome(pod, SIMULATED.to_owned())));
        }
        if let Some(reason) = config.as_ref().ok().and_then(|config| skipped_by_name(pod, config)) {
            return Ok(Break(no_rules_outcome(pod, skipped_by_plugin(reason))));
        }
        if pod.unmeshed {
            return Ok(Break(no_rules_outcome(pod, UNMESHED.to_owned())));
        }
        let must_inspect = self.mode == RepairMode::InPlace || pod.found_by == FoundBy::Audit;
        if self.mode == RepairMode::Delete && !must_inspect {
            return Ok(Continue(NeededRepair::without_inspection(pod.clone())));
        }
        let Some((pod, object)) = self.read_again(pod)? else {
            return Ok(Break(RepairOutcome::NotNeeded("Pod is gone or needs no repair")));
        };
        if self.is_labelled(&pod) {
            return Ok(Break(RepairOutcome::NotNeeded("Pod is already labelled")));
        }
        if !must_inspect {
            return Ok(Continue(NeededRepair::without_inspection(pod)));
        }
        let client = self.connection.client()?;
        let config = config.map_err(inspect_rules::Error::from)?;
        let mut inspector = Inspector::new(config, self.host, ReadFrom::Etcd);
        let inspection = inspector.inspect(&client, object)?;
        Ok(match inspection {
            Inspection::NotApplicable => Break(no_rules_outcome(&pod, UNMESHED.to_owned())),
            // The failed validator proves that the rules are wrong, which today's values may mend.
            Inspection::Drifted(rules) if pod.found_by == FoundBy::Validator => {
                Continue(NeededRepair { pod, rules: Some(rules), missing_rules: Vec::new() })
            }
            Inspection::Complete | Inspection::Drifted(_) => Break(match pod.found_by {
                FoundBy::Validator => RepairOutcome::Complete,
                FoundBy::Audit => RepairOutcome::NotNeeded("Pod has all its redirect rules"),
            }),
            Inspection::Unreadable => Break(RepairOutcome::CannotRepair(UNREADABLE.into())),
            Inspection::Missing(rules, missing_rules) => {
                Continue(NeededRepair { pod, rules: Some(rules), missing_rules })
            }
        })
    }

    /// Deletes or labels the pod or installs its rules, as the repair mode says.
    fn apply(&mut self, pod: &StrandedPod, rules: Option<&PodRules>) -> Result<Effect, Error> {
        match self.mode {
            RepairMode::Delete if !(pod.has_controller || self.delete_unmanaged) => {
                return Ok(Effect::Unmanaged);
            }
            RepairMode::Delete => {
                return Ok(eviction::evict_or_delete(&self.connection.client()?, pod)?);
            }
            RepairMode::Label => label(&self.connection.client()?, pod)?,
            RepairMode::InPlace => rules.map_or(Ok(()), PodRules::install)?,
            RepairMode::Report => {}
        }
        Ok(Effect::Applied)
    }

    /// Returns why the plugin would skip a pod that replaces this one in mode `delete`: then that pod
    /// would be deleted too, and so on. Nothing replaces a pod without a controller.
    fn replacement_skipped(&self, pod: &StrandedPod) -> Option<SkipReason> {
        let is_replaced = pod.has_controller || !self.delete_unmanaged;
        let reason = pod
            .skipped_by_annotations
            .filter(|_| self.mode == RepairMode::Delete && is_replaced)?;
        let asks_for_each_pod =
            self.host.config().is_ok_and(|config| config.filter.detection == Detection::Api);
        (!asks_for_each_pod).then_some(reason)
    }

    /// Whether the repair mode is [`RepairMode::Label`] and the pod has the label.
    fn is_labelled(&self, pod: &StrandedPod) -> bool {
        self.mode == RepairMode::Label && pod.labelled
    }

    /// Reads the pod from the API server. Returns `None` if the pod is gone, was replaced
    /// by another pod of the same name, or is no longer stranded or auditable.
    fn read_again(&mut self, pod: &StrandedPod) -> Result<Option<(StrandedPod, Pod)>, Error> {
        let object: Pod = match self.connection.client()?.get(&pod_path(pod)) {
            Err(error) if error.code() == Some(404) => return Ok(None),
            object => object?,
        };
        let may_need_repair = match pod.found_by {
            FoundBy::Validator => StrandedPod::by_validator(&object).is_some(),
            FoundBy::Audit => is_auditable(&object),
        };
        let is_same = object.metadata.uid == pod.uid;
        let found =
            (is_same && may_need_repair).then(|| (StrandedPod::new(&object, pod.found_by), object));
        Ok(found)
    }
}

/// Returns why the plugin skips the pod, by its namespace and name.
fn skipped_by_name(pod: &StrandedPod, config: &Config) -> Option<SkipReason> {
    let name =
        PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() };
    config.filter.skip_reason(&name, None)
}

/// Explains why a repair does not help: the plugin would skip the pod's replacement, too.
fn skipped_by_plugin(reason: SkipReason) -> String {
    let remedy = match reason {
        SkipReason::NoProxyAnnotation | SkipReason::InjectionDisabled => {
            "set the chart's podDetection to api or repairController.mode to in-place, or give the \
             pod the annotation linkerd.io/proxy-version"
        }
        SkipReason::AgentPod => {
            "it has the name of a pod of the agent's DaemonSet: give the pod another name"
        }
        _ => "remove the proxy from the pod, or its namespace from the chart's excludeNamespaces",
    };
    format!("the plugin installs no redirect rules in this pod ({}); {remedy}", reason.text())
}

/// Outcome for a pod in which the plugin installs no rules. A pod with a failed validator is stuck,
/// so it is reported.
fn no_rules_outcome(pod: &StrandedPod, why: String) -> RepairOutcome {
    match pod.found_by {
        FoundBy::Validator => RepairOutcome::CannotRepair(why),
        FoundBy::Audit => RepairOutcome::NotNeeded("Pod needs no redirect rules"),
    }
}

/// Sets [`LABEL`] on exactly the pod that was found. Fails with status 409 if the pod has
/// changed, or is another pod of the same name.
fn label(client: &Client, pod: &StrandedPod) -> Result<(), kube::Error> {
    let patch = json!({"metadata": {
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "labels": {LABEL: "true"},
    }});
    client.merge_patch(&pod_path(pod), &patch)
}
