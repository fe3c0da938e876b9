//! Decides what the plugin does with a pod, from the plugin entry and the facts about the pod.
//! Pure.
//!
//! ADD, CHECK, `linkerd cni explain`, `linkerd cni bypass` with the agent's metric of the same
//! paths, and the repair controller take their verdict from [`verdict`], so they agree.

pub mod bypass_paths;
mod container_paths;
pub mod outcome;
pub mod reason;
pub mod refusal;
#[cfg(test)]
mod tests;

use crate::cni::Error;
use crate::cni::args::PodRef;
use crate::config::{Config, ResolvedRedirect};
use crate::pod::Decision;
use crate::pod::facts::PodFacts;
use crate::pod::skip::SkipReason;
use refusal::Refusal;

/// What the caller has read of a pod, besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodView<'a> {
    /// The container runtime does not call the plugin for the pod.
    NotCalled(NotCalled),
    /// The pod needs no redirect, by its containers or, if these are unknown, by its annotations.
    Skip(SkipReason),
    /// Not all facts are read. The pod's name may decide without them.
    Incomplete,
    /// All facts of a meshed pod.
    Complete(&'a PodFacts),
}

impl<'a> From<&'a Decision<PodFacts>> for PodView<'a> {
    fn from(facts: &'a Decision<PodFacts>) -> Self {
        match facts {
            Decision::Skip(reason) => PodView::Skip(*reason),
            Decision::Redirect(facts) => PodView::Complete(facts),
        }
    }
}

/// Why the plugin is not called for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCalled {
    /// The pod uses the node's network namespace, for which a runtime calls no plugin.
    HostNetwork,
    /// Multus calls the plugin only for pods whose annotation names it, and not for this one.
    NotAttached,
}

impl NotCalled {
    pub fn text(self) -> &'static str {
        match self {
            NotCalled::HostNetwork => {
                "spec.hostNetwork is true: the pod uses the node's network namespace"
            }
            NotCalled::NotAttached => {
                "Multus does not call the plugin: no annotation k8s.v1.cni.cncf.io/networks names \
                 linkerd-cni"
            }
        }
    }
}

/// What the plugin does with a pod. Callers match all variants, so that a new variant does not
/// compile until each caller handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rules are installed, and the pod starts.
    NotCalled(NotCalled),
    /// ADD installs no rules, and the pod starts.
    Skipped(SkipReason),
    /// ADD installs the rules of this redirect.
    Redirected(ResolvedRedirect),
    /// ADD fails, because rules would not redirect all traffic of the pod. A pod that runs already
    /// was accepted by other values, and keeps the rules of this redirect.
    Refused(Refusal, ResolvedRedirect),
    /// ADD fails: a value of the plugin entry, an annotation or the proxy's user is invalid.
    Failed(Error),
    /// The name does not decide, and facts are missing, for this reason. [`verdict`] never returns
    /// it for [`PodView::Complete`].
    Undecided(String),
}

/// Returns what the plugin does with the pod. The name decides before the containers, so that pods
/// of excluded namespaces and of the agent depend on nothing else.
pub fn verdict(config: &Config, pod: &PodRef, view: PodView<'_>) -> Verdict {
    match (view, config.filter.skip_reason(pod)) {
        (PodView::NotCalled(why), _) => Verdict::NotCalled(why),
        (_, Some(reason)) | (PodView::Skip(reason), None) => Verdict::Skipped(reason),
        (PodView::Incomplete, None) => Verdict::Undecided("facts about the pod are missing".into()),
        (PodView::Complete(facts), None) => redirect_verdict(config, facts),
    }
}

fn redirect_verdict(config: &Config, facts: &PodFacts) -> Verdict {
    let resolved = match config.resolve(facts) {
        Ok(resolved) => resolved,
        Err(error) => return Verdict::Failed(error),
    };
    match refusal::find_refusal(config, facts, &resolved) {
        Some(refusal) => Verdict::Refused(refusal, resolved),
        None => Verdict::Redirected(resolved),
    }
}
