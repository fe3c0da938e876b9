//! Decides from the evidence whether an agent that stops uninstalls. Pure.

use std::time::{Duration, Instant};

use super::evidence::{Evidence, Round, TokenFacts};
use crate::agent::api_thread::CHECK_PERIOD;
use crate::agent::own_pod::Deletion;

/// Time for which the API server must reject every token before that proves an uninstall. A single
/// rejection may come from an API server that is starting or lags behind the others.
const REJECTION_TIME: Duration = Duration::from_secs(4);
/// Longest time between the last acceptance of the plugin's token and the signal, if no deletion of
/// the agent's pod was shown. After a longer time, the API server may have got another signing key
/// long before the signal.
const ACCEPTED_WITHIN: Duration = CHECK_PERIOD.saturating_add(Duration::from_secs(60));

/// Time after [`Evidence::end`] for which an agent with proof waits for the end of a newer one. If
/// both are stopped at the same time, a newer agent without proof ends at its `end`. An uninstall
/// takes less than a second of the time that is reserved for it.
pub const TIME_BESIDE_NEWER_AGENT: Duration = Duration::from_secs(2);
/// Time after the end of a newer agent in which the kubelet may start its container again.
const RETURN_TIME: Duration = Duration::from_secs(5);

const NEWER_AGENT_RUNS: &str = "a newer agent runs on this node";
const NEWER_AGENT_RAN: &str = "a newer agent ran on this node until now and may start again";
const REJECTED: &str = "the API server rejected every token of the release (HTTP 401)";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Uninstall(String),
    /// Leave the plugin installed for the next agent.
    LeaveInPlace(String),
    AskAgain(String),
}

use Verdict::{AskAgain, LeaveInPlace, Uninstall};

/// Decides from all evidence so far. The last round of requests counts, except that rejections
/// count only as a series. Never asks again [`TIME_BESIDE_NEWER_AGENT`] after [`Evidence::end`],
/// and without a newer agent never after [`Evidence::end`].
pub fn verdict(evidence: &Evidence, now: Instant) -> Verdict {
    let verdict = match evidence.rounds.last() {
        None => AskAgain("the API server did not respond".into()),
        Some((_, round)) => judge(evidence, round),
    };
    match verdict {
        Uninstall(why) => after_newer_agent(evidence, why, now),
        AskAgain(why) if now >= evidence.end => LeaveInPlace(format!(
            "no proof of an uninstall within {} s; last finding: {why}",
            evidence.end.duration_since(evidence.begin).as_secs()
        )),
        verdict => verdict,
    }
}

/// Decides for an agent with the proof `why`: it uninstalls after a newer agent, if there is one.
fn after_newer_agent(evidence: &Evidence, why: String, now: Instant) -> Verdict {
    if evidence.newer_agent_runs {
        // The newer agent may be stopped, too. If so, it may have no proof: an agent that starts
        // when its ServiceAccount is gone never has. If it stays, the plugin is its own.
        if now >= evidence.end + TIME_BESIDE_NEWER_AGENT {
            return LeaveInPlace(format!("{NEWER_AGENT_RUNS}, although {why}"));
        }
        return AskAgain(format!("{why}, but {NEWER_AGENT_RUNS}"));
    }
    // Perhaps only the container of the newer agent restarts.
    if let Some(seen) = evidence.newer_agent_seen
        && now < evidence.end.min(seen + RETURN_TIME)
    {
        return AskAgain(format!("{why}, but {NEWER_AGENT_RAN}"));
    }
    Uninstall(why)
}

fn judge(evidence: &Evidence, last: &Round) -> Verdict {
    match last {
        // The kubelet sends SIGTERM not only to end a pod, but also to restart a container of it.
        Round::PodStays => LeaveInPlace("the agent's pod is not being deleted".into()),
        Round::NamespaceBeingDeleted => {
            Uninstall("the agent's namespace is being deleted".to_owned())
        }
        // The newer agent is in a pod of the other DaemonSet, and uninstalls by its own proof.
        Round::DaemonSetReplaced(why) if evidence.newer_agent_seen.is_some() => {
            LeaveInPlace(format!("the plugin is left to a newer agent on this node: {why}"))
        }
        Round::DaemonSetEnds(why) | Round::DaemonSetReplaced(why) | Round::OutOfScope(why) => {
            if evidence.own_pod.is_being_deleted() {
                Uninstall(why.clone())
            } else {
                AskAgain(format!("{why}, but nothing shows that the agent's pod is being deleted"))
            }
        }
        Round::InScope => LeaveInPlace(
            "the DaemonSet exists, and nothing shows that this node is out of its scope".into(),
        ),
        Round::TokensRejected { own, plugin } => judge_rejection(evidence, *own, *plugin),
        Round::OwnTokenRejected(why) => {
            AskAgain(format!("the API server rejected the agent's own token (HTTP 401), and {why}"))
        }
        Round::Unclear(why) => AskAgain(why.clone()),
        Round::Unreachable(error) => AskAgain(format!("the API server is unreachable: {error}")),
    }
}

/// Judges a rejection of both tokens.
fn judge_rejection(evidence: &Evidence, own: TokenFacts, plugin: TokenFacts) -> Verdict {
    if let Some(why) = doubt(evidence, own, plugin) {
        if evidence.older_agent_ran && stays_in_doubt(evidence) {
            return LeaveInPlace(format!(
                "an older agent ran on this node when this one started, and decides: {REJECTED}, \
                 which proves nothing to this one: {why}"
            ));
        }
        return AskAgain(format!("{REJECTED}, which proves nothing: {why}"));
    }
    if rejection_time(&evidence.rounds) < REJECTION_TIME {
        return AskAgain(REJECTED.into());
    }
    let seconds = REJECTION_TIME.as_secs();
    Uninstall(format!("{REJECTED}, in every response for {seconds} s"))
}

/// Returns why the rejection of both tokens does not prove that their ServiceAccounts are gone.
fn doubt(evidence: &Evidence, own: TokenFacts, plugin: TokenFacts) -> Option<String> {
    if own.has_expired {
        return Some("the agent's own token has expired".into());
    }
    if plugin.has_expired {
        return Some("the plugin's token has expired".into());
    }
    early_rejection(evidence).or_else(|| doubt_by_pod(evidence, plugin))
}

/// Returns whether no later rejection is proof: the API server rejected a token too early, or never
/// accepted the agent's own.
fn stays_in_doubt(evidence: &Evidence) -> bool {
    evidence.before.own_token.accepted.is_none() || early_rejection(evidence).is_some()
}

/// Returns which token the API server rejected before the deletion of the agent's pod was shown, or
/// before the signal. Then it may have got another signing key.
fn early_rejection(evidence: &Evidence) -> Option<String> {
    let Evidence { before, begin, .. } = evidence;
    let (limit, event) = match evidence.own_pod.deletion {
        Deletion::Graceful { shown, .. } if shown < *begin => (shown, "its pod was deleted"),
        _ => (*begin, "the agent was stopped"),
    };
    if let Some(rejected) = before.own_token.rejected
        && rejected < limit
    {
        let seconds = (limit - rejected).as_secs();
        return Some(format!("it rejected the agent's own token {seconds} s before {event}"));
    }
    // With another signing key, no later request with the agent's own token is accepted either.
    if let Some(rejected) = before.plugin_token.rejected
        && rejected < limit
        && before.own_token.accepted.is_none_or(|accepted| accepted < rejected)
    {
        let seconds = (limit - rejected).as_secs();
        return Some(format!("it rejected the plugin's token {seconds} s before {event}"));
    }
    None
}

/// Returns why the tokens may have ended with the agent's pod, or with a signing key.
///
/// A graceful deletion leaves a token that is bound to the pod valid until the pod is gone. Without
/// a deletion that was shown, only a plugin's token that is bound to no pod is proof.
fn doubt_by_pod(evidence: &Evidence, plugin: TokenFacts) -> Option<String> {
    let Evidence { before, begin, rounds, .. } = evidence;
    match evidence.own_pod.deletion {
        Deletion::Graceful { token_ends, .. } => {
            if rounds.last().is_none_or(|(when, _)| *when <= token_ends) {
                return None;
            }
            Some("the grace period of the agent's pod, and so its token, has ended".into())
        }
        Deletion::Forced => {
            Some("the agent's pod is gone or was deleted by force, and its token with it".into())
        }
        Deletion::NotDeleted => Some("the agent's pod is not being deleted".into()),
        Deletion::Unknown if before.disconnected.is_some() => {
            Some("the watch of the agent's pod had failed before the agent was stopped".into())
        }
        Deletion::Unknown if !plugin.outlives_pod => Some(
            "no deletion of the agent's pod was shown, and the plugin's token is bound to a pod"
                .into(),
        ),
        Deletion::Unknown => match before.plugin_token.accepted {
            Some(accepted) if *begin <= accepted + ACCEPTED_WITHIN => None,
            _ => Some(format!(
                "it did not accept the plugin's token in the {} minutes before the agent was stopped",
                ACCEPTED_WITHIN.as_secs() / 60
            )),
        },
    }
}

/// Returns the time between the first and the last of the latest rounds that found both tokens
/// rejected, without another round between them.
fn rejection_time(rounds: &[(Instant, Round)]) -> Duration {
    let Some((last, _)) = rounds.last() else { return Duration::ZERO };
    let mut first = *last;
    for (when, round) in rounds.iter().rev() {
        if !matches!(round, Round::TokensRejected { .. }) {
            break;
        }
        first = *when;
    }
    *last - first
}
