//! The reasons for which a pod is not repaired: a repair would not help it, or failed. Pure.

use std::error::Error;
use std::time::Duration;

use crate::config::Config;
use crate::kube::{self, connection};
use crate::pod::skip::SkipReason;
use crate::repair::controller_metrics::Metrics;
use crate::repair::find::inspect::InspectError;
use crate::repair::find::netns_lookup::NetnsUnknown;
use crate::repair::find::stranded::{AfterDeletion, FoundBy, RepairFacts, StrandedPod};
use crate::repair::settings::RepairMode;
use crate::repair::turn::attempts::REPORT_INTERVAL;
use crate::verdict::{PodView, Verdict, verdict};

/// Time until a pod that no repair helps is checked again, and then reported again.
const RECHECK: Duration = REPORT_INTERVAL;

const UNMANAGED: &str = "the pod has no controller that would replace it, so it is not deleted; \
                             delete it and create it again, or set repairController.mode=in-place \
                             or repairController.deleteUnmanaged=true";

pub const COMPLETE: &str = "its linkerd-network-validator fails, although it has all its redirect \
                            rules; check its annotations config.linkerd.io/skip-outbound-ports and \
                            config.linkerd.io/skip-subnets, and its log";

const STATIC: &str = "it is a static pod, which keeps running although its mirror pod is deleted; \
                      move its manifest away until the pod is gone, then back, or set \
                      repairController.mode=in-place";

const UNANNOTATED: &str = "the pod has no annotation of a proxy, so its replacement starts without \
                           redirect rules, too, if no agent runs then; delete the pod while the \
                           agent on its node is ready, give the pod the annotation \
                           linkerd.io/proxy-version, or set repairController.mode=in-place";

pub const UNMESHED: &str = "the plugin installs no redirect rules in this pod (its containers or \
                            annotations say that it is not meshed); remove the init container \
                            linkerd-network-validator, or correct the annotations";

/// Why a pod was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum NotRepaired {
    #[error("{0}")]
    Unneeded(&'static str),
    /// The pod has all its rules, but the last run of its validator failed.
    #[error("Pod has all its redirect rules")]
    Complete,
    /// The pod is left unchanged for now, and the reason is reported in log and Event.
    #[error("{why}")]
    Skipped { why: String, retry: Retry },
    #[error(transparent)]
    NetnsUnknown(NetnsUnknown),
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("{0}")]
    Failed(#[from] Box<dyn Error>),
}

impl From<InspectError> for NotRepaired {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Netns(unknown) => NotRepaired::NetnsUnknown(unknown),
            InspectError::Rules(error) => NotRepaired::Failed(error),
        }
    }
}

/// When the repair of a skipped pod is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    After(Duration),
    /// After the pod's next event, or the next audit that finds the pod.
    WhenFoundAgain,
}

impl NotRepaired {
    pub fn skip(why: impl Into<String>, retry: Retry) -> Self {
        NotRepaired::Skipped { why: why.into(), retry }
    }

    /// Returns the reason to skip a pod that no repair helps in its present state.
    pub fn impossible(why: impl Into<String>) -> Self {
        NotRepaired::skip(why, Retry::After(RECHECK))
    }

    /// Counts a failed repair, and returns the text of its log line.
    pub fn count_failure(&self, mode: RepairMode, metrics: &Metrics) -> &'static str {
        if !self.is_failed_deletion(mode) {
            metrics.repair_errors.inc();
            return "Error repairing pod";
        }
        if self.is_timeout() {
            metrics.pods_delete_timeout.inc();
        } else {
            metrics.pods_delete_errors.inc();
        }
        "Error deleting pod"
    }

    /// Whether the failure counts as a failed deletion. Upstream's controller also has the metrics
    /// of failed deletions, which count only requests to the API server. So a failed inspection
    /// counts as a repair error, in mode `delete` too.
    fn is_failed_deletion(&self, mode: RepairMode) -> bool {
        let is_failed_request =
            matches!(self, NotRepaired::Request(_) | NotRepaired::Connection(_));
        mode == RepairMode::Delete && is_failed_request
    }

    fn is_timeout(&self) -> bool {
        match self {
            NotRepaired::Request(error) => error.is_timeout(),
            _ => false,
        }
    }
}

/// Fails if the plugin would install no rules in the pod, so that no repair helps. `config` is the
/// plugin entry; without it, the pod's containers alone decide.
pub fn check_redirected(pod: &StrandedPod, config: Option<&Config>) -> Result<(), NotRepaired> {
    // The plugin entry excludes pods by namespace and name. In place of a missing entry, an empty
    // one is used: it excludes no pod, so that the containers alone decide.
    let empty = Config::default();
    let config = config.unwrap_or(&empty);
    let view = match pod.facts.skipped_by_containers {
        Some(reason) => PodView::Skip(reason),
        None => PodView::Incomplete,
    };
    match verdict(config, &pod.found.pod_ref(), view) {
        Verdict::NotCalled(_) => Err(no_rules(pod, UNMESHED.to_owned())),
        Verdict::Skipped(reason) => Err(no_rules(pod, skipped_by_plugin(reason))),
        Verdict::Redirected(_)
        | Verdict::Refused(..)
        | Verdict::Failed(_)
        | Verdict::Undecided(_) => Ok(()),
    }
}

/// Fails if a deletion may not help the pod:
///
/// - A static pod keeps running after the deletion of its mirror pod.
/// - A pod without an annotation of a proxy: while the node has no copy of its pods, the plugin
///   decides by the annotations, so it would skip the pod's replacement. The replacement would be
///   stranded and deleted, too, and so would the next one.
/// - Nothing replaces a pod without a controller, so it is deleted only if the settings say so.
///   Once a controller adopts the pod, the change is an event, and the pod is checked again.
pub fn check_replacement(facts: &RepairFacts, delete_unmanaged: bool) -> Result<(), NotRepaired> {
    let is_skipped = facts.skipped_by_annotations.is_some();
    match facts.after_deletion {
        AfterDeletion::KeepsRunning => Err(NotRepaired::impossible(STATIC)),
        AfterDeletion::Gone => {
            if delete_unmanaged {
                Ok(())
            } else if is_skipped {
                Err(NotRepaired::impossible(UNANNOTATED))
            } else {
                Err(NotRepaired::skip(UNMANAGED, Retry::WhenFoundAgain))
            }
        }
        AfterDeletion::Replaced => {
            if is_skipped {
                Err(NotRepaired::impossible(UNANNOTATED))
            } else {
                Ok(())
            }
        }
    }
}

/// Explains why a repair does not help: the plugin would install no rules in the pod's replacement,
/// either.
fn skipped_by_plugin(reason: SkipReason) -> String {
    let remedy = match reason {
        SkipReason::AgentPod => {
            "it has the name of a pod of the agent's DaemonSet: give the pod another name"
        }
        SkipReason::ExcludedNamespace => {
            "remove the proxy from the pod, or its namespace from the chart's excludeNamespaces"
        }
        SkipReason::NoPod
        | SkipReason::NoProxyAnnotation
        | SkipReason::InjectionDisabled
        | SkipReason::NoProxy
        | SkipReason::ProxyInit => return UNMESHED.to_owned(),
    };
    format!("the plugin installs no redirect rules in this pod ({}); {remedy}", reason.text())
}

/// Returns why a pod is not repaired in which the plugin installs no rules. If its validator
/// failed, the pod is stuck without a repair, so it is reported. A running pod simply needs no
/// rules.
pub fn no_rules(pod: &StrandedPod, why: String) -> NotRepaired {
    match pod.found.found_by {
        FoundBy::Validator => NotRepaired::impossible(why),
        FoundBy::Audit => NotRepaired::Unneeded("Pod needs no redirect rules"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_inspection_is_not_counted_as_a_failed_deletion() {
        let error = NotRepaired::Failed("HTTP 500".into());
        let metrics = Metrics::default();
        assert_eq!(error.count_failure(RepairMode::Delete, &metrics), "Error repairing pod");
        assert_eq!((metrics.repair_errors.get(), metrics.pods_delete_errors.get()), (1, 0));
    }

    #[test]
    fn a_pod_that_no_repair_helps_is_checked_again_when_its_next_report_is_due() {
        let is_static =
            RepairFacts { after_deletion: AfterDeletion::KeepsRunning, ..RepairFacts::default() };
        let pod = StrandedPod::default();
        for (name, reason) in [
            ("a static pod", check_replacement(&is_static, true).unwrap_err()),
            ("an unmeshed pod", no_rules(&pod, UNMESHED.to_owned())),
            ("unreadable rules", NotRepaired::impossible("unreadable")),
        ] {
            let NotRepaired::Skipped { retry: Retry::After(wait), .. } = reason else {
                panic!("{name}: {reason}");
            };
            assert_eq!(wait, Duration::from_secs(40 * 60), "{name}");
        }
    }
}
