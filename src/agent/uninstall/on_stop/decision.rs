//! Decides whether an agent that is told to stop uninstalls. Pure.

use std::time::{Duration, Instant};

/// Time for which every account has to be rejected until that proves an uninstall. One
/// rejection may come from an API server that is just starting or lags behind the others.
pub const REJECTED: Duration = Duration::from_secs(4);

/// What one round of requests to the API server found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The DaemonSet stays, and this node is in its scope.
    Stays,
    /// Proof of an uninstall, in words.
    Uninstalled(String),
    /// HTTP 401 for every account that the agent has.
    Rejected,
    /// Any other answer, or no answer in time.
    Unclear(String),
    /// No API server is configured, or none accepts a connection.
    Unreachable(String),
}

/// What the agent does, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Uninstall(String),
    /// Leave everything in place for the next agent.
    Leave(String),
}

/// Takes the findings one after the other.
#[derive(Debug)]
pub struct Decider {
    /// The agent found no kubeconfig when it started and no API server ever answered, so
    /// all that is on the node is its own work.
    is_alone: bool,
    /// When the first of an unbroken series of rejections came.
    rejected: Option<Instant>,
}

impl Decider {
    pub fn new(is_alone: bool) -> Decider {
        Decider {
            is_alone,
            rejected: None,
        }
    }

    /// Takes the finding of one round; `None` asks for another round.
    pub fn take(&mut self, finding: &Finding, now: Instant) -> Option<Decision> {
        self.is_alone &= matches!(finding, Finding::Unreachable(_));
        self.rejected = match finding {
            Finding::Rejected => self.rejected.or(Some(now)),
            _ => None,
        };
        let since = self.rejected.unwrap_or(now);
        let is_proven = now.saturating_duration_since(since) >= REJECTED;
        match finding {
            Finding::Stays => Some(Decision::Leave(finding.to_string())),
            Finding::Uninstalled(why) => Some(Decision::Uninstall(why.clone())),
            Finding::Rejected if is_proven => Some(Decision::Uninstall(format!(
                "{finding}, in every answer for {} s",
                REJECTED.as_secs()
            ))),
            // Upstream's agent uninstalls on every stop.
            Finding::Unreachable(_) if self.is_alone => Some(Decision::Uninstall(format!(
                "this agent installed the plugin, and {finding}"
            ))),
            _ => None,
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Stays => f.write_str("the DaemonSet stays and this node is in its scope"),
            Finding::Uninstalled(why) | Finding::Unclear(why) => f.write_str(why),
            Finding::Rejected => {
                f.write_str("the API server rejects every account of the release (HTTP 401)")
            }
            Finding::Unreachable(why) => write!(f, "the API server cannot be reached: {why}"),
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

    /// Takes findings at these seconds; whether the last one ends it with an uninstall.
    /// None before may end it.
    fn uninstalls(is_alone: bool, findings: &[(u64, Finding)]) -> Option<bool> {
        let begin = Instant::now();
        let mut decider = Decider::new(is_alone);
        let mut last = None;
        for (second, finding) in findings {
            assert_eq!(last, None, "decided before {finding:?} in {findings:?}");
            last = decider.take(finding, begin + Duration::from_secs(*second));
        }
        last.map(|decision| matches!(decision, Decision::Uninstall(_)))
    }

    #[test]
    fn one_round_is_enough_where_the_daemonset_could_be_read() {
        for is_alone in [false, true] {
            assert_eq!(uninstalls(is_alone, &[(0, Finding::Stays)]), Some(false));
            let gone = Finding::Uninstalled("gone".into());
            assert_eq!(uninstalls(is_alone, &[(0, gone.clone())]), Some(true));
            let late = [(0, unclear()), (9, unreachable()), (20, gone)];
            assert_eq!(uninstalls(is_alone, &late), Some(true));
        }
    }

    #[test]
    fn rejections_are_proof_only_in_all_rounds_of_four_seconds() {
        let rejected = |at| (at, Finding::Rejected);
        for (findings, decision) in [
            (vec![rejected(0)], None),
            (vec![rejected(0), rejected(3)], None),
            (vec![rejected(0), rejected(4)], Some(true)),
            (vec![rejected(0), rejected(2), rejected(5)], Some(true)),
            (vec![(0, unclear()), rejected(10), rejected(13)], None),
            (
                vec![rejected(0), (2, unclear()), rejected(5), rejected(8)],
                None,
            ),
            (vec![rejected(0), (2, unreachable()), rejected(5)], None),
            (
                vec![rejected(0), (2, unclear()), rejected(5), rejected(9)],
                Some(true),
            ),
            (vec![rejected(0), (3, Finding::Stays)], Some(false)),
        ] {
            assert_eq!(uninstalls(false, &findings), decision, "{findings:?}");
        }
    }

    #[test]
    fn any_other_answer_is_never_proof_however_often_it_comes() {
        let often: Vec<_> = (0..1000).map(|second| (second, unclear())).collect();
        assert_eq!(uninstalls(true, &often), None);
        let often: Vec<_> = (0..1000).map(|second| (second, unreachable())).collect();
        assert_eq!(uninstalls(false, &often), None);
    }

    #[test]
    fn an_agent_that_was_always_alone_undoes_its_own_work_at_once() {
        assert_eq!(uninstalls(true, &[(0, unreachable())]), Some(true));
        assert_eq!(
            uninstalls(true, &[(0, unclear()), (1, unreachable())]),
            None
        );
    }
}
