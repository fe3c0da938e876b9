//! Decides from the evidence whether an agent that stops uninstalls. Pure.

use std::time::{Duration, Instant};

use super::evidence::{Evidence, Round, TokenFacts};
use crate::agent::api_history::ApiHistory;
use crate::agent::api_thread::CHECK_PERIOD;
use crate::agent::own_pod::Deletion;

/// Time for which the API server must reject every token before that counts as proof of an
/// uninstall. A single rejection may come from an API server that is starting or lags behind the
/// others.
const REJECTION_TIME: Duration = Duration::from_secs(4);
/// If no deletion of the agent's pod was shown, a rejection of the tokens is proof only if the
/// plugin's token was accepted within this time before the signal. If the last acceptance is older,
/// the API server may have got another signing key in between.
const ACCEPTED_WITHIN: Duration = CHECK_PERIOD.saturating_add(Duration::from_secs(60));

/// Time after [`Evidence::end`] for which an agent with proof waits for the end of a newer one. If
/// both agents are stopped at the same time, a newer agent without proof ends at the same `end`, so
/// a short wait is enough. There is time left for the uninstall, which needs less than a second.
pub const TIME_BESIDE_NEWER_AGENT: Duration = Duration::from_secs(2);
/// Time after the end of a newer agent in which the kubelet may start the container of that agent
/// again.
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

/// Decides from all evidence so far. Only the last round of requests counts, except for rejections
/// of the tokens, of which several in a row are needed. After [`Evidence::end`], the verdict is
/// [`Verdict::AskAgain`] only for [`TIME_BESIDE_NEWER_AGENT`], and only if a newer agent runs.
pub fn verdict(evidence: &Evidence, now: Instant) -> Verdict {
    let verdict = match evidence.rounds.last() {
        None => AskAgain("the API server did not respond".into()),
        Some((_, round)) => judge(evidence, round),
    };
    match verdict {
        Uninstall(why) => wait_for_newer_agent(evidence, why, now),
        AskAgain(why) if now >= evidence.end => LeaveInPlace(format!(
            "no proof of an uninstall within {} s; last finding: {why}",
            evidence.end.duration_since(evidence.begin).as_secs()
        )),
        verdict => verdict,
    }
}

/// Decides for an agent that has the proof `why`. If there is a newer agent on the node, this one
/// uninstalls only after that has ended.
fn wait_for_newer_agent(evidence: &Evidence, why: String, now: Instant) -> Verdict {
    if evidence.newer_agent_runs {
        // If the newer agent is being stopped too, this one has to uninstall, because the newer one
        // may have no proof: an agent that starts when its ServiceAccount is already gone never
        // gets any. If the newer agent keeps running, it needs the plugin.
        if now >= evidence.end + TIME_BESIDE_NEWER_AGENT {
            return LeaveInPlace(format!("{NEWER_AGENT_RUNS}, although {why}"));
        }
        return AskAgain(format!("{why}, but {NEWER_AGENT_RUNS}"));
    }
    // The newer agent has ended, but perhaps only its container is restarting.
    if let Some(seen) = evidence.newer_agent_seen
        && now < evidence.end.min(seen + RETURN_TIME)
    {
        return AskAgain(format!("{why}, but {NEWER_AGENT_RAN}"));
    }
    Uninstall(why)
}

fn judge(evidence: &Evidence, last: &Round) -> Verdict {
    match last {
        // The kubelet sends SIGTERM also if it only restarts a container of a pod that stays.
        Round::PodStays => LeaveInPlace("the agent's pod is not being deleted".into()),
        Round::NamespaceBeingDeleted => {
            Uninstall("the agent's namespace is being deleted".to_owned())
        }
        // The newer agent is in a pod of the new DaemonSet, and looks for proof of its own.
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
    if rejected_for(&evidence.rounds) < REJECTION_TIME {
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
    if let Some(why) = early_rejection(evidence) {
        return Some(why);
    }
    doubt_about_pod(evidence, plugin)
}

/// Returns whether further rejections cannot become proof either, because the API server rejected a
/// token too early, or never accepted the agent's own token.
fn stays_in_doubt(evidence: &Evidence) -> bool {
    evidence.history.own_token.accepted.is_none() || early_rejection(evidence).is_some()
}

/// Returns which token the API server rejected too early: before it showed the deletion of the
/// agent's pod, or before the signal if it showed no deletion. An early rejection is no proof,
/// because the API server may have got another signing key.
fn early_rejection(evidence: &Evidence) -> Option<String> {
    let Evidence { history, begin, .. } = evidence;
    let mut limit = *begin;
    let mut event = "the agent was stopped";
    if let Deletion::Graceful { shown, .. } = evidence.own_pod.deletion
        && shown < *begin
    {
        limit = shown;
        event = "its pod was deleted";
    }
    if let Some(rejected) = history.own_token.rejected
        && rejected < limit
    {
        let seconds = (limit - rejected).as_secs();
        return Some(format!("it rejected the agent's own token {seconds} s before {event}"));
    }
    if let Some(rejected) = history.plugin_token.rejected
        && rejected < limit
        && !own_token_was_accepted_since(history, rejected)
    {
        let seconds = (limit - rejected).as_secs();
        return Some(format!("it rejected the plugin's token {seconds} s before {event}"));
    }
    None
}

/// Returns whether the agent's own token was accepted after the plugin's was `rejected`. If so, the
/// reason was not another signing key: with another key, the API server would have rejected both.
fn own_token_was_accepted_since(history: &ApiHistory, rejected: Instant) -> bool {
    match history.own_token.accepted {
        Some(accepted) => accepted >= rejected,
        None => false,
    }
}

/// Returns why the tokens may be rejected for another reason than the end of their ServiceAccounts:
/// because the agent's pod has ended, or because the API server has got another signing key.
///
/// During a graceful deletion, a token that is bound to the pod stays valid until the pod is gone.
/// So a rejection in this time is proof. If no deletion was shown, the rejection is proof only if
/// the plugin's token is bound to no pod.
fn doubt_about_pod(evidence: &Evidence, plugin: TokenFacts) -> Option<String> {
    match evidence.own_pod.deletion {
        Deletion::Graceful { token_ends, .. } => {
            if let Some((last_round, _)) = evidence.rounds.last()
                && *last_round > token_ends
            {
                let why = "the grace period of the agent's pod, and so its token, has ended";
                return Some(why.into());
            }
            None
        }
        Deletion::Forced => {
            Some("the agent's pod is gone or was deleted by force, and its token with it".into())
        }
        Deletion::NotDeleted => Some("the agent's pod is not being deleted".into()),
        Deletion::Unknown => doubt_without_deletion(evidence, plugin),
    }
}

/// Returns why the tokens may be rejected for another reason than the end of their ServiceAccounts,
/// if no deletion of the agent's pod was shown.
fn doubt_without_deletion(evidence: &Evidence, plugin: TokenFacts) -> Option<String> {
    let Evidence { history, begin, .. } = evidence;
    if history.disconnected.is_some() {
        return Some("the watch of the agent's pod had failed before the agent was stopped".into());
    }
    if !plugin.outlives_pod {
        return Some(
            "no deletion of the agent's pod was shown, and the plugin's token is bound to a pod"
                .into(),
        );
    }
    if let Some(accepted) = history.plugin_token.accepted
        && *begin <= accepted + ACCEPTED_WITHIN
    {
        return None;
    }
    Some(format!(
        "it did not accept the plugin's token in the {} minutes before the agent was stopped",
        ACCEPTED_WITHIN.as_secs() / 60
    ))
}

/// Returns for how long every round, up to the last one, has found both tokens rejected.
fn rejected_for(rounds: &[(Instant, Round)]) -> Duration {
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
