//! Decides from the API server's responses whether an agent that stops uninstalls. Pure.

use std::time::{Duration, Instant};

/// Time for which the API server must reject every token before that proves an uninstall. A single
/// rejection may come from an API server that is starting or lags behind the others.
pub const REJECTION_TIME: Duration = Duration::from_secs(4);

/// Result of one round of requests to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The DaemonSet exists and is not being deleted, and this node is in its scope or cannot be
    /// read.
    InScope,
    /// This node is out of the DaemonSet's scope, but the agent's pod is not known to be deleted. The
    /// text is for logs.
    StillRunning(String),
    /// Proof of an uninstall, as a text for logs.
    Uninstalled(String),
    /// HTTP 401 for the agent's token and for the plugin's token.
    Rejected,
    /// Any other response, or a time-out.
    Unclear(String),
    /// No API server or namespace is configured, the agent's credential cannot be read, or the
    /// connection fails.
    Unreachable(String),
}

/// What the agent does when it stops, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopDecision {
    Uninstall(String),
    /// Leave the plugin installed for the next agent.
    LeaveInPlace(String),
}

/// Decides from a series of findings.
#[derive(Debug)]
pub struct Decider {
    /// The agent found no kubeconfig at its start and no API server ever responded, so it wrote
    /// everything on the node itself.
    offline_install: bool,
    /// When the current series of consecutive rejections began.
    rejected_since: Option<Instant>,
}

impl Decider {
    pub fn new(offline_install: bool) -> Decider {
        Decider { offline_install, rejected_since: None }
    }

    /// Decides from the finding of one round and those before. Returns `None` if another round is
    /// needed.
    pub fn decide(&mut self, finding: &Finding, now: Instant) -> Option<StopDecision> {
        self.offline_install &= matches!(finding, Finding::Unreachable(_));
        self.rejected_since = match finding {
            Finding::Rejected => self.rejected_since.or(Some(now)),
            _ => None,
        };
        let since = self.rejected_since.unwrap_or(now);
        let is_proven = now.saturating_duration_since(since) >= REJECTION_TIME;
        match finding {
            Finding::InScope | Finding::StillRunning(_) => {
                Some(StopDecision::LeaveInPlace(finding.to_string()))
            }
            Finding::Uninstalled(why) => Some(StopDecision::Uninstall(why.clone())),
            Finding::Rejected if is_proven => Some(StopDecision::Uninstall(format!(
                "{finding}, in every response for {} s",
                REJECTION_TIME.as_secs()
            ))),
            // No other agent's files are at risk. Upstream's agent uninstalls on every stop.
            Finding::Unreachable(_) if self.offline_install => Some(StopDecision::Uninstall(
                format!("no earlier agent installed the plugin, and {finding}"),
            )),
            _ => None,
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::InScope => f.write_str(
                "the DaemonSet exists, and nothing shows that this node is out of its scope",
            ),
            Finding::StillRunning(why) | Finding::Uninstalled(why) | Finding::Unclear(why) => {
                f.write_str(why)
            }
            Finding::Rejected => {
                f.write_str("the API server rejected every token of the release (HTTP 401)")
            }
            Finding::Unreachable(why) => write!(f, "the API server is unreachable: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unclear() -> Finding {
        Finding::Unclear("HTTP 403".into())
    }

    fn unreachable() -> Finding {
        Finding::Unreachable("connection refused".into())
    }

    /// Passes findings at these seconds. Returns whether the last one decides to uninstall; `None`
    /// if it does not decide. No earlier finding may decide.
    fn uninstalls(offline_install: bool, findings: &[(u64, Finding)]) -> Option<bool> {
        let begin = Instant::now();
        let mut decider = Decider::new(offline_install);
        let mut last = None;
        for (second, finding) in findings {
            assert_eq!(last, None, "decided before {finding:?} in {findings:?}");
            last = decider.decide(finding, begin + Duration::from_secs(*second));
        }
        last.map(|decision| matches!(decision, StopDecision::Uninstall(_)))
    }

    #[test]
    fn one_round_decides_if_the_daemonset_can_be_read() {
        for offline_install in [false, true] {
            assert_eq!(uninstalls(offline_install, &[(0, Finding::InScope)]), Some(false));
            let restarting = Finding::StillRunning("the pod is not being deleted".into());
            assert_eq!(uninstalls(offline_install, &[(0, restarting)]), Some(false));
            let gone = Finding::Uninstalled("gone".into());
            assert_eq!(uninstalls(offline_install, &[(0, gone.clone())]), Some(true));
            let late = [(0, unclear()), (9, unreachable()), (20, gone)];
            assert_eq!(uninstalls(offline_install, &late), Some(true));
        }
    }

    #[test]
    fn rejections_are_proof_only_after_four_seconds_without_another_response() {
        let rejected = |at| (at, Finding::Rejected);
        for (findings, decision) in [
            (vec![rejected(0)], None),
            (vec![rejected(0), rejected(3)], None),
            (vec![rejected(0), rejected(4)], Some(true)),
            (vec![rejected(0), rejected(2), rejected(5)], Some(true)),
            (vec![(0, unclear()), rejected(10), rejected(13)], None),
            (vec![rejected(0), (2, unclear()), rejected(5), rejected(8)], None),
            (vec![rejected(0), (2, unreachable()), rejected(5)], None),
            (vec![rejected(0), (2, unclear()), rejected(5), rejected(9)], Some(true)),
            (vec![rejected(0), (3, Finding::InScope)], Some(false)),
        ] {
            assert_eq!(uninstalls(false, &findings), decision, "{findings:?}");
        }
    }

    #[test]
    fn an_unclear_or_missing_response_is_never_proof_however_often_it_occurs() {
        let often: Vec<_> = (0..1000).map(|second| (second, unclear())).collect();
        assert_eq!(uninstalls(true, &often), None);
        let often: Vec<_> = (0..1000).map(|second| (second, unreachable())).collect();
        assert_eq!(uninstalls(false, &often), None);
    }

    #[test]
    fn an_agent_that_installed_offline_uninstalls_at_once_if_the_api_server_is_unreachable() {
        assert_eq!(uninstalls(true, &[(0, unreachable())]), Some(true));
        assert_eq!(uninstalls(true, &[(0, unclear()), (1, unreachable())]), None);
    }
}
