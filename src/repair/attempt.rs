//! One attempt to repair one pod: checks whether the pod still needs the repair, then
//! applies the repair mode.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Instant;

use super::Shared;
use super::api_path::pod_path;
use super::budget::RepairBudget;
use super::connection::{self, Connection};
use super::history::History;
use super::host::Host;
use super::inspect::{self, Finding, Inspector, PodRules, ReadFrom};
use super::mode::RepairMode;
use super::pod_requests::{self, Effect};
use super::verdict::{Cause, StrandedPod, is_auditable};
use crate::kube;
use crate::kube::types::Pod;

/// One attempt to repair a pod, with what it needs of the worker.
pub struct Attempt<'a> {
    pub connection: &'a mut Connection,
    pub mode: RepairMode,
    pub host: &'a Host,
    pub budget: &'a mut RepairBudget,
    /// Pods or owners repaired recently.
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
    Inspect(#[from] inspect::Error),
}

impl Error {
    /// HTTP status of the API server's response, if there was a response.
    fn status_code(&self) -> Option<u16> {
        match self {
            Error::Request(error) => error.code(),
            _ => None,
        }
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Request(error) if error.is_timeout())
    }
}

/// Result of an attempt.
pub enum Outcome {
    /// The repair mode was applied. `missing_rules` is empty if the rules were not read.
    Repaired { missing_rules: Vec<String> },
    /// The pod does not need a repair, for this reason.
    NotNeeded(&'static str),
    /// The pod, or a pod of the same owner, was repaired a moment ago.
    RepairedRecently,
    /// The pod cannot be repaired, for this reason.
    CannotRepair(String),
    /// A disruption budget refused the eviction; the API server's message.
    EvictionRefused(String),
}

/// A pod that needs the repair.
struct Repair {
    pod: StrandedPod,
    /// The rules to install; `None` if the pod's netns was not inspected.
    rules: Option<PodRules>,
    /// The missing rules; empty if the pod's netns was not inspected.
    missing_rules: Vec<String>,
}

impl Repair {
    fn without_inspection(pod: StrandedPod) -> Self {
        Repair { pod, rules: None, missing_rules: Vec::new() }
    }
}

impl Attempt<'_> {
    /// Applies the repair mode to the pod if the pod still needs the repair.
    pub fn run(mut self, pod: &StrandedPod) -> Result<Outcome, Error> {
        if self.is_labelled(pod) {
            return Ok(Outcome::NotNeeded("Pod has its label"));
        }
        let Repair { pod, rules, missing_rules } = match self.check(pod)? {
            Continue(repair) => repair,
            Break(outcome) => return Ok(outcome),
        };
        if !self.repaired.allows(&pod, Instant::now()) {
            return Ok(Outcome::RepairedRecently);
        }
        let result = match self.apply(&pod, rules.as_ref()) {
            // The pod changed after the check: try once more with its new version.
            Err(error) if error.status_code() == Some(409) => match self.read_again(&pod)? {
                Some((pod, _)) if !self.is_labelled(&pod) => self.apply(&pod, rules.as_ref()),
                _ => return Ok(Outcome::NotNeeded("Pod is gone or well")),
            },
            result => result,
        };
        // A refused request changed nothing and costs no budget. A request without a
        // response may have been carried out.
        let refused = match &result {
            Ok(effect) => *effect != Effect::Applied,
            Err(error) => error.status_code().is_some(),
        };
        if !refused {
            self.budget.spend(Instant::now());
        }
        match result {
            Ok(Effect::Applied) => Ok(Outcome::Repaired { missing_rules }),
            Ok(Effect::RefusedByDisruptionBudget(why)) => Ok(Outcome::EvictionRefused(why)),
            Err(error) if error.status_code() == Some(404) => Ok(Outcome::NotNeeded("Pod is gone")),
            Err(error) if error.status_code() == Some(409) => {
                self.shared.missed.add(Instant::now());
                Ok(Outcome::NotNeeded("Pod keeps changing; later again"))
            }
            Err(error) => Err(error),
        }
    }

    /// Checks whether the pod still needs a repair. Reads the pod again, because the list,
    /// watch event or audit may be old by now. The deletion of a pod with a failed
    /// validator skips this: its preconditions name the version that was found.
    ///
    /// `Break` ends the attempt, because no repair is necessary or possible.
    fn check(&mut self, pod: &StrandedPod) -> Result<ControlFlow<Outcome, Repair>, Error> {
        let must_inspect = self.mode == RepairMode::InPlace || pod.cause == Cause::Audit;
        if self.mode == RepairMode::Delete && !must_inspect {
            return Ok(Continue(Repair::without_inspection(pod.clone())));
        }
        let Some((pod, object)) = self.read_again(pod)? else {
            return Ok(Break(Outcome::NotNeeded("Pod is gone or well")));
        };
        if self.is_labelled(&pod) {
            return Ok(Break(Outcome::NotNeeded("Pod has its label")));
        }
        if !must_inspect {
            return Ok(Continue(Repair::without_inspection(pod)));
        }
        let client = self.connection.client()?;
        let finding = Inspector::new(self.host, ReadFrom::Etcd)?.inspect(&client, object)?;
        Ok(match finding {
            Finding::NotApplicable => Break(Outcome::NotNeeded("Pod is none of ours")),
            Finding::Complete => Break(Outcome::NotNeeded("Pod has its rules")),
            Finding::Unreadable => Break(Outcome::CannotRepair(UNREADABLE.into())),
            Finding::Missing(rules, missing_rules) => {
                Continue(Repair { pod, rules: Some(rules), missing_rules })
            }
        })
    }

    /// Deletes or labels the pod or installs its rules, as the repair mode says.
    fn apply(&mut self, pod: &StrandedPod, rules: Option<&PodRules>) -> Result<Effect, Error> {
        match self.mode {
            RepairMode::Delete => {
                return Ok(pod_requests::remove(&self.connection.client()?, pod)?);
            }
            RepairMode::Label => pod_requests::label(&self.connection.client()?, pod)?,
            RepairMode::InPlace => rules.map_or(Ok(()), PodRules::restore)?,
            RepairMode::Report => {}
        }
        Ok(Effect::Applied)
    }

    /// Returns `true` if the label of [`RepairMode::Label`] is the repair and is present.
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
        let may_need_repair = match pod.cause {
            Cause::Validator => StrandedPod::by_validator(&object).is_some(),
            Cause::Audit => is_auditable(&object),
        };
        let is_same = object.metadata.uid == pod.uid;
        let found =
            (is_same && may_need_repair).then(|| (StrandedPod::new(&object, pod.cause), object));
        Ok(found)
    }
}

const UNREADABLE: &str = "iptables-legacy has rules in the pod's network namespace, which cannot be read from here; \
                          delete the pod to have it made anew";
