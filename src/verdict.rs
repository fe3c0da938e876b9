//! Decides what the plugin does with a pod, from the plugin entry and the facts about the pod.
//! Pure.
//!
//! ADD, CHECK, the repair controller, `linkerd cni explain`, `linkerd cni bypass` and the agent's
//! metric of bypass paths agree, because all of them call [`verdict`].

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

/// What the caller knows about a pod besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodView<'a> {
    /// The plugin is not called for the pod.
    NotCalled(NotCalled),
    /// The pod needs no redirect rules according to its containers or, if these are unknown, its
    /// annotations.
    Skip(SkipReason),
    /// Some facts are unknown. The pod's name may be enough to decide.
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
    /// The pod uses the node's network namespace. Runtimes call no plugin for such pods.
    HostNetwork,
    /// Multus calls the plugin only for pods with an annotation that names the plugin's network.
    /// This pod has no such annotation.
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

/// What the plugin does with a pod. Callers match every variant without a wildcard, so the compiler
/// finds the callers that do not handle a new variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The plugin is not called, and the pod starts without rules.
    NotCalled(NotCalled),
    /// ADD installs no rules, and the pod starts.
    Skipped(SkipReason),
    /// ADD installs the rules of this redirect.
    Redirected(ResolvedRedirect),
    /// ADD fails, because rules would not redirect all traffic of the pod. A pod that is already
    /// running was accepted with earlier settings, and keeps the rules of this redirect.
    Refused(Refusal, ResolvedRedirect),
    /// ADD fails: a value of the plugin entry, an annotation or the proxy's user is invalid.
    Failed(Error),
    /// The pod's name is not enough to decide, and facts are missing for the given reason.
    /// [`verdict`] never returns this variant for [`PodView::Complete`].
    Undecided(String),
}

/// Returns what the plugin does with the pod. The pod's name takes precedence over its containers:
/// the agent's pods and pods in excluded namespaces must not depend on anything else.
pub fn verdict(config: &Config, pod: &PodRef, view: PodView<'_>) -> Verdict {
    let is_called = !matches!(view, PodView::NotCalled(_));
    if is_called && let Some(reason) = config.filter.skip_reason(pod) {
        return Verdict::Skipped(reason);
    }
    match view {
        PodView::NotCalled(why) => Verdict::NotCalled(why),
        PodView::Skip(reason) => Verdict::Skipped(reason),
        PodView::Incomplete => Verdict::Undecided("facts about the pod are missing".to_owned()),
        PodView::Complete(facts) => verdict_of_meshed_pod(config, facts),
    }
}

fn verdict_of_meshed_pod(config: &Config, facts: &PodFacts) -> Verdict {
    let resolved = match config.resolve(facts) {
        Ok(resolved) => resolved,
        Err(error) => return Verdict::Failed(error),
    };
    match refusal::find_refusal(config, facts, &resolved) {
        Some(refusal) => Verdict::Refused(refusal, resolved),
        None => Verdict::Redirected(resolved),
    }
}
