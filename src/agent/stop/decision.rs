//! Decides from the evidence whether an agent that stops uninstalls. Pure.

use std::time::{Duration, Instant};

use super::evidence::{AgentPod, Evidence, Round, TokenFacts};
use crate::agent::api::CHECK_PERIOD;

/// Time for which the API server must reject every token before that proves an uninstall. A single
/// rejection may come from an API server that is starting or lags behind the others.
const REJECTION_TIME: Duration = Duration::from_secs(4);
/// Longest time between the last acceptance of the plugin's token and the signal. After a longer time,
/// as in an outage, the API server may have got another signing key long before the signal.
const ACCEPTED_WITHIN: Duration = CHECK_PERIOD.saturating_add(Duration::from_secs(60));

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Uninstall(String),
    /// Leave the plugin installed for the next agent.
    LeaveInPlace(String),
    AskAgain(String),
}

use Verdict::{AskAgain, LeaveInPlace, Uninstall};

/// Decides from all evidence so far. The last round of requests counts, except that rejections count
/// only as a series. Never asks again after [`Evidence::end`].
pub fn verdict(evidence: &Evidence, now: Instant) -> Verdict {
    if evidence.newer_agent_runs {
        return LeaveInPlace("a newer agent runs on this node".into());
    }
    let verdict = match evidence.rounds.last() {
        None => AskAgain("the API server did not respond".into()),
        Some((_, round)) => judge(evidence, round),
    };
    match verdict {
        AskAgain(why) if now >= evidence.end => LeaveInPlace(format!(
            "no proof of an uninstall within {} s; last finding: {why}",
            evidence.end.duration_since(evidence.begin).as_secs()
        )),
        verdict => verdict,
    }
}

fn judge(evidence: &Evidence, last: &Round) -> Verdict {
    let daemonset = &evidence.daemonset;
    match last {
        Round::BeingDeleted(what) => Uninstall(format!("{what} is being deleted")),
        Round::DaemonSetGone(AgentPod::Stays) => LeaveInPlace(format!(
            "DaemonSet {daemonset} does not exist, but the agent's pod is not being deleted"
        )),
        Round::DaemonSetGone(AgentPod::Unclear(why)) => AskAgain(why.clone()),
        Round::DaemonSetGone(_) if evidence.before.daemonset_seen => {
            Uninstall(format!("DaemonSet {daemonset} does not exist"))
        }
        Round::DaemonSetGone(_) => AskAgain(format!(
            "DaemonSet {daemonset} does not exist, and this agent never saw it: set \
             LINKERD_CNI_DAEMONSET if it has another name"
        )),
        Round::InScope => LeaveInPlace(
            "the DaemonSet exists, and nothing shows that this node is out of its scope".into(),
        ),
        Round::OutOfScope(why, AgentPod::Deleted) => Uninstall(why.clone()),
        // Kubernetes keeps running pods on a node with a new `NoSchedule` taint.
        Round::OutOfScope(why, AgentPod::Stays) => {
            LeaveInPlace(format!("{why}, but the agent's pod is not being deleted"))
        }
        Round::OutOfScope(why, AgentPod::Unreadable(error)) => {
            LeaveInPlace(format!("{why}, but {error}"))
        }
        Round::OutOfScope(_, AgentPod::Unclear(why)) | Round::Unclear(why) => AskAgain(why.clone()),
        Round::Rejected { own, plugin: Ok(plugin) } => rejected(evidence, *own, *plugin),
        Round::Rejected { plugin: Err(why), .. } => {
            AskAgain(format!("the API server rejected the agent's own token (HTTP 401), and {why}"))
        }
        Round::Unreachable(error) => {
            let why = format!("the API server is unreachable: {error}");
            // No other agent's files are at risk. Upstream's agent uninstalls on every stop.
            let is_response = |round: &Round| !matches!(round, Round::Unreachable(_));
            let was_reached = evidence.before.reached
                || evidence.rounds.iter().any(|(_, round)| is_response(round));
            if evidence.found_empty_node && !was_reached {
                return Uninstall(format!("no earlier agent installed the plugin, and {why}"));
            }
            AskAgain(why)
        }
    }
}

/// Judges a rejection of both tokens. The agent's `own` token is revoked with its pod, so it alone
/// proves nothing. A plugin's token that is bound to no pod is valid as long as its ServiceAccount
/// is.
fn rejected(evidence: &Evidence, own: TokenFacts, plugin: TokenFacts) -> Verdict {
    const EVERY: &str = "the API server rejected every token of the release (HTTP 401)";
    let (before, begin) = (&evidence.before, evidence.begin);
    let tokens = [
        (own, before.own_token, "the agent's own token"),
        (plugin, before.plugin_token, "the plugin's token"),
    ];
    let doubt = tokens.into_iter().find_map(|(facts, history, whose)| match history.rejected {
        _ if facts.has_expired => Some(format!("{whose} has expired")),
        Some(since) => {
            let seconds = begin.saturating_duration_since(since).as_secs();
            Some(format!("it rejected {whose} {seconds} s before the agent was stopped"))
        }
        None => None,
    });
    let doubt = doubt.or_else(|| match before.plugin_token.accepted {
        _ if !plugin.outlives_pod => {
            Some("the plugin's token is bound to a pod, and revoked with it".into())
        }
        Some(accepted) if begin <= accepted + ACCEPTED_WITHIN => None,
        _ => Some(format!(
            "it did not accept the plugin's token in the {} minutes before the agent was stopped",
            ACCEPTED_WITHIN.as_secs() / 60
        )),
    });
    match doubt {
        Some(why) => AskAgain(format!("{EVERY}, which proves nothing: {why}")),
        None if rejected_for(&evidence.rounds) < REJECTION_TIME => AskAgain(EVERY.into()),
        None => {
            let seconds = REJECTION_TIME.as_secs();
            Uninstall(format!("{EVERY}, in every response for {seconds} s"))
        }
    }
}

/// How long the last rounds, without another between them, found both tokens rejected.
fn rejected_for(rounds: &[(Instant, Round)]) -> Duration {
    let is_rejected = |round: &Round| matches!(round, Round::Rejected { plugin: Ok(_), .. });
    let series = rounds.iter().rev().take_while(|(_, round)| is_rejected(round));
    let times: Vec<Instant> = series.map(|(when, _)| *when).collect();
    let (last, first) = (times.first(), times.last());
    last.zip(first).map_or(Duration::ZERO, |(last, first)| *last - *first)
}
