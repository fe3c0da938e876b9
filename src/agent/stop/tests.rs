//! Evidence that an agent with an API server cannot easily be brought to have. The other cases are in
//! `stop_decision.rs` and `stop_evidence.rs` of `src/tests/agent`.

use super::*;
use crate::agent::api::token::TokenHistory;

type Rounds = Vec<(u64, Round)>;
/// Rounds, what else is known, and the reason for the verdict: to uninstall, or not yet.
type Case = (Rounds, fn(&mut Evidence), Result<&'static str, &'static str>);

const VALID: TokenFacts = TokenFacts { has_expired: false, outlives_pod: true };
const BOUND: TokenFacts = TokenFacts { has_expired: false, outlives_pod: false };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What an agent knows that has run for an hour, and the results of rounds at these seconds after the
/// signal.
fn evidence(rounds: Rounds) -> Evidence {
    let begin = Instant::now() + seconds(3600);
    let accepted = TokenHistory { accepted: Some(begin - seconds(300)), rejected: None };
    let (own_token, plugin_token) = (accepted, accepted);
    Evidence {
        daemonset: "linkerd-cni/linkerd-cni".into(),
        found_empty_node: false,
        before: History { reached: true, daemonset_seen: true, own_token, plugin_token },
        begin,
        end: begin + seconds(25),
        newer_agent_runs: false,
        rounds: rounds.into_iter().map(|(at, round)| (begin + seconds(at), round)).collect(),
    }
}

/// Rounds in which every token is rejected.
fn rejected<const N: usize>(times: [u64; N]) -> Rounds {
    times.map(|second| (second, Round::Rejected { own: BOUND, plugin: Ok(VALID) })).into()
}

fn unclear(second: u64, why: &str) -> Rounds {
    vec![(second, Round::Unclear(why.into()))]
}

fn unreachable() -> Rounds {
    vec![(5, Round::Unreachable("connection refused".into()))]
}

fn gone(pod: AgentPod) -> Rounds {
    vec![(1, Round::DaemonSetGone(pod))]
}

fn as_before(_: &mut Evidence) {}

/// Installed on an empty node, with no API server ever.
fn offline(evidence: &mut Evidence) {
    evidence.before = History::default();
    evidence.found_empty_node = true;
}

#[test]
fn each_case_of_the_table_gets_its_verdict() {
    let unreadable = gone(AgentPod::Unreadable("HTTP 403".into()));
    let no_token =
        Round::Rejected { own: BOUND, plugin: Err("the kubeconfig has no token".into()) };
    let cases: [Case; 12] = [
        (unreadable, as_before, Ok("does not exist")),
        ([unclear(1, "HTTP 403"), rejected([11, 15])].concat(), as_before, Ok("every token")),
        (unreachable(), offline, Ok("no earlier agent")),
        ([unclear(1, "HTTP 403"), unreachable()].concat(), offline, Err("unreachable")),
        (gone(AgentPod::Unclear("HTTP 429".into())), as_before, Err("HTTP 429")),
        (
            rejected([1, 6]),
            |evidence| evidence.before.own_token.rejected = Some(evidence.begin - seconds(60)),
            Err("agent's own token 60 s"),
        ),
        (
            rejected([1, 6]),
            |evidence| evidence.before.plugin_token.rejected = Some(evidence.begin - seconds(60)),
            Err("plugin's token 60 s"),
        ),
        (
            rejected([1, 6]),
            |evidence| evidence.before.plugin_token.accepted = Some(evidence.begin - seconds(3600)),
            Err("did not accept"),
        ),
        (
            rejected([1, 6]),
            |evidence| evidence.before.plugin_token.accepted = None,
            Err("did not accept"),
        ),
        (vec![(1, no_token)], as_before, Err("no token")),
        (rejected([1, 4]), as_before, Err("rejected every token")),
        (
            [rejected([1]), unclear(3, "HTTP 403"), rejected([6, 8])].concat(),
            as_before,
            Err("rejected every token"),
        ),
    ];
    for (rounds, change, expected) in cases {
        let mut case = evidence(rounds);
        change(&mut case);
        let last = case.rounds.last().map_or(case.begin, |(when, _)| *when);
        let (found, at_the_end) = (verdict(&case, last), verdict(&case, case.end));
        match (expected, &found) {
            (Ok(why), Verdict::Uninstall(text)) => {
                assert!(text.contains(why), "{text}");
                assert_eq!(at_the_end, found);
            }
            (Err(why), Verdict::AskAgain(text)) => {
                assert!(text.contains(why), "{text}");
                let says = format!("no proof of an uninstall within 25 s; last finding: {text}");
                assert_eq!(at_the_end, Verdict::LeaveInPlace(says));
            }
            _ => panic!("{found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn the_time_to_decide_is_the_grace_period_less_five_seconds_and_at_least_one_second() {
    for (grace, time) in [(30, 25), (10, 5), (6, 1), (5, 1), (1, 1), (3600, 3595)] {
        assert_eq!(time_to_decide(seconds(grace)), seconds(time), "{grace}");
    }
}

#[test]
fn rounds_that_are_read_late_count_from_their_time_and_as_if_read_one_by_one() {
    let verdict_on = |sent: Rounds| {
        let (send, rounds) = mpsc::channel();
        evidence(sent).rounds.into_iter().for_each(|round| send.send(round).unwrap());
        let evidence = evidence(Vec::new());
        Question { evidence, rounds: Some(rounds), last: String::new() }.verdict(false)
    };
    let decisive = vec![(1, Round::BeingDeleted("the DaemonSet".into()))];
    let verdict = verdict_on([decisive, unclear(2, "HTTP 403")].concat());
    assert!(matches!(verdict, Verdict::Uninstall(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4])), Verdict::AskAgain(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4, 5])), Verdict::Uninstall(_)));
}
