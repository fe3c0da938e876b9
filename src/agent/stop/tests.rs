//! The evidence for and against an uninstall, as a table of cases.

use super::*;
use crate::agent::api::history::TokenHistory;

/// What a case of the table expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Uninstall,
    LeaveInPlace,
    /// Proves nothing, so the plugin is left in place when the time to decide ends.
    AskAgain,
}

use Expected::*;

type Case = (&'static str, Expected, &'static str, fn(&mut Evidence));

const VALID: TokenFacts = TokenFacts { has_expired: false, outlives_pod: true };
const BOUND: TokenFacts = TokenFacts { has_expired: false, outlives_pod: false };
const EXPIRED: TokenFacts = TokenFacts { has_expired: true, outlives_pod: true };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What an agent knows that has run for an hour, before the first round of requests.
fn evidence() -> Evidence {
    let begin = Instant::now() + seconds(3600);
    let accepted = TokenHistory { accepted: Some(begin - seconds(300)), rejected: None };
    Evidence {
        daemonset: "linkerd-cni/linkerd-cni".into(),
        found_empty_node: false,
        before: History {
            reached: true,
            daemonset_seen: true,
            own_token: accepted,
            plugin_token: accepted,
        },
        begin,
        end: begin + seconds(25),
        newer_agent_runs: false,
        rounds: Vec::new(),
    }
}

fn rejected(plugin: TokenFacts) -> Round {
    Round::Rejected { own: BOUND, plugin: Ok(plugin) }
}

fn unclear(why: &str) -> Round {
    Round::Unclear(why.into())
}

fn unreachable() -> Round {
    Round::Unreachable("connection refused".into())
}

fn out_of_scope(pod: AgentPod) -> Round {
    Round::OutOfScope("node a lacks a label".into(), pod)
}

/// Adds rounds at these seconds after the signal.
fn add(evidence: &mut Evidence, rounds: Vec<(u64, Round)>) {
    let begin = evidence.begin;
    evidence.rounds.extend(rounds.into_iter().map(|(at, round)| (begin + seconds(at), round)));
}

/// Adds two rounds in which every token is rejected, for longer than proof takes.
fn reject(evidence: &mut Evidence, plugin: TokenFacts) {
    add(evidence, vec![(1, rejected(plugin)), (6, rejected(plugin))]);
}

fn never_reached(evidence: &mut Evidence) {
    evidence.before = History::default();
}

/// Cases in which the release is uninstalled, or this node's agent is removed for good.
const UNINSTALLED: &[Case] = &[
    ("helm uninstall: the DaemonSet is being deleted", Uninstall, "is being deleted", |case| {
        add(case, vec![(1, Round::DaemonSetBeingDeleted)]);
    }),
    ("helm uninstall: the DaemonSet is gone", Uninstall, "does not exist", |case| {
        add(case, vec![(1, Round::DaemonSetGone(AgentPod::Deleted))]);
    }),
    ("the same, and the agent cannot read its pod", Uninstall, "does not exist", |case| {
        add(case, vec![(1, Round::DaemonSetGone(AgentPod::Unreadable("HTTP 403".into())))]);
    }),
    ("the same after 403, a time-out and an outage", Uninstall, "does not exist", |case| {
        let rounds = vec![(1, unclear("HTTP 403")), (9, unclear("timeout")), (10, unreachable())];
        add(case, rounds);
        add(case, vec![(20, Round::DaemonSetGone(AgentPod::Deleted))]);
    }),
    ("helm uninstall: both accounts are deleted", Uninstall, "rejected every token", |case| {
        reject(case, VALID);
    }),
    ("the same after HTTP 403 for the agent", Uninstall, "rejected every token", |case| {
        add(case, vec![(1, unclear("HTTP 403")), (11, rejected(VALID)), (15, rejected(VALID))]);
    }),
    ("the namespace is being deleted", Uninstall, "namespace", |case| {
        add(case, vec![(1, Round::NamespaceBeingDeleted)]);
    }),
    ("the node left the DaemonSet's scope", Uninstall, "lacks a label", |case| {
        add(case, vec![(1, out_of_scope(AgentPod::Deleted))]);
    }),
    ("installed offline, with no API server ever", Uninstall, "no earlier agent", |case| {
        never_reached(case);
        case.found_empty_node = true;
        add(case, vec![(1, unreachable())]);
    }),
];

/// Cases in which another agent follows on this node, or nothing is known.
const NOT_UNINSTALLED: &[Case] = &[
    ("upgrade", LeaveInPlace, "the DaemonSet exists", |case| {
        add(case, vec![(1, Round::InScope)]);
    }),
    ("a newer agent runs", LeaveInPlace, "a newer agent", |case| {
        case.newer_agent_runs = true;
        add(case, vec![(1, Round::DaemonSetBeingDeleted)]);
    }),
    ("out of scope, and only the container restarts", LeaveInPlace, "not being deleted", |case| {
        add(case, vec![(1, out_of_scope(AgentPod::Stays))]);
    }),
    ("out of scope, with an unreadable pod", LeaveInPlace, "HTTP 403", |case| {
        add(case, vec![(1, out_of_scope(AgentPod::Unreadable("HTTP 403".into())))]);
    }),
    ("out of scope, with a failing API server", AskAgain, "HTTP 500", |case| {
        add(case, vec![(1, out_of_scope(AgentPod::Unclear("HTTP 500".into())))]);
    }),
    ("the DaemonSet is gone, with a failing API server", AskAgain, "HTTP 429", |case| {
        add(case, vec![(1, Round::DaemonSetGone(AgentPod::Unclear("HTTP 429".into())))]);
    }),
    ("an orphaned pod's container restarts", LeaveInPlace, "not being deleted", |case| {
        add(case, vec![(1, Round::DaemonSetGone(AgentPod::Stays))]);
    }),
    ("the DaemonSet was never seen: own manifest", AskAgain, "never saw it", |case| {
        case.before.daemonset_seen = false;
        add(case, vec![(1, Round::DaemonSetGone(AgentPod::Deleted))]);
    }),
    ("deleted by force, with one bound token", AskAgain, "bound to a pod", |case| {
        reject(case, BOUND);
    }),
    ("deleted by force, with two accounts", AskAgain, "accepted the plugin's token", |case| {
        let round =
            Round::Rejected { own: BOUND, plugin: Err("accepted the plugin's token".into()) };
        add(case, vec![(1, round.clone()), (6, round)]);
    }),
    ("the signing key was replaced before", AskAgain, "60 s before the agent", |case| {
        case.before.own_token.rejected = Some(case.begin - seconds(60));
        case.before.plugin_token.rejected = Some(case.begin - seconds(60));
        reject(case, VALID);
    }),
    ("only the agent's token was rejected before", AskAgain, "agent's own token 60 s", |case| {
        case.before.own_token.rejected = Some(case.begin - seconds(60));
        reject(case, VALID);
    }),
    ("only the plugin's token was rejected before", AskAgain, "plugin's token 60 s", |case| {
        case.before.plugin_token.rejected = Some(case.begin - seconds(60));
        reject(case, VALID);
    }),
    ("rejected after an outage of an hour", AskAgain, "did not accept", |case| {
        case.before.plugin_token.accepted = Some(case.begin - seconds(3600));
        reject(case, VALID);
    }),
    ("rejected, and never accepted", AskAgain, "did not accept", |case| {
        case.before.plugin_token.accepted = None;
        reject(case, VALID);
    }),
    ("the plugin's token has expired", AskAgain, "plugin's token has expired", |case| {
        reject(case, EXPIRED);
    }),
    ("the agent's token has expired", AskAgain, "agent's own token has expired", |case| {
        let round = Round::Rejected { own: EXPIRED, plugin: Ok(VALID) };
        add(case, vec![(1, round.clone()), (6, round)]);
    }),
    ("the plugin's token cannot be read", AskAgain, "no token", |case| {
        let plugin = Err("the kubeconfig has no token".into());
        add(case, vec![(1, Round::Rejected { own: BOUND, plugin })]);
    }),
    ("rejected once, by a starting API server", AskAgain, "rejected every token", |case| {
        add(case, vec![(1, rejected(VALID))]);
    }),
    ("rejected for three seconds", AskAgain, "rejected every token", |case| {
        add(case, vec![(1, rejected(VALID)), (4, rejected(VALID))]);
    }),
    ("rejected, with another response between", AskAgain, "rejected every token", |case| {
        add(case, vec![(1, rejected(VALID)), (3, unclear("HTTP 403")), (6, rejected(VALID))]);
        add(case, vec![(8, rejected(VALID))]);
    }),
    ("HTTP 403, 429, 5xx or a proxy's page", AskAgain, "HTTP 403", |case| {
        add(case, vec![(1, unclear("HTTP 500")), (6, unclear("HTTP 403"))]);
    }),
    ("no response", AskAgain, "did not respond", |_| {}),
    ("unreachable, on a node with a kubeconfig", AskAgain, "unreachable", |case| {
        never_reached(case);
        add(case, vec![(1, unreachable()), (20, unreachable())]);
    }),
    ("unreachable, after earlier responses", AskAgain, "unreachable", |case| {
        case.found_empty_node = true;
        add(case, vec![(1, unreachable())]);
    }),
    ("installed offline, but HTTP 403 at the stop", AskAgain, "unreachable", |case| {
        never_reached(case);
        case.found_empty_node = true;
        add(case, vec![(1, unclear("HTTP 403")), (3, unreachable())]);
    }),
];

#[test]
fn each_case_of_the_table_gets_its_verdict() {
    for (name, expected, why, change) in UNINSTALLED.iter().chain(NOT_UNINSTALLED) {
        let mut case = evidence();
        change(&mut case);
        let last = case.rounds.last().map_or(case.begin, |(when, _)| *when);
        let found = verdict(&case, last);
        let (kind, text) = match &found {
            Verdict::Uninstall(text) => (Uninstall, text),
            Verdict::LeaveInPlace(text) => (LeaveInPlace, text),
            Verdict::AskAgain(text) => (AskAgain, text),
        };
        println!("{name}: {kind:?}: {text}");
        assert_eq!(kind, *expected, "{name}: {text}");
        assert!(text.contains(why), "{name}: {text}");
        let at_the_end = verdict(&case, case.end);
        match expected {
            AskAgain => {
                let says = format!("no proof of an uninstall within 25 s; last finding: {text}");
                assert_eq!(at_the_end, Verdict::LeaveInPlace(says), "{name}");
            }
            _ => assert_eq!(at_the_end, found, "{name}"),
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
fn a_decisive_round_counts_although_another_followed_it_before_both_were_read() {
    let (send, rounds) = mpsc::channel();
    let mut question = Question { evidence: evidence(), rounds: Some(rounds), last: String::new() };
    let begin = question.evidence.begin;
    send.send((begin + seconds(1), Round::DaemonSetBeingDeleted)).unwrap();
    send.send((begin + seconds(2), unclear("HTTP 403"))).unwrap();
    assert!(matches!(question.verdict(false), Verdict::Uninstall(_)));
}

#[test]
fn rejections_count_from_the_time_of_the_response_however_late_they_are_read() {
    let (send, rounds) = mpsc::channel();
    let mut question = Question { evidence: evidence(), rounds: Some(rounds), last: String::new() };
    let begin = question.evidence.begin;
    for second in [1, 2, 4] {
        send.send((begin + seconds(second), rejected(VALID))).unwrap();
    }
    assert!(matches!(question.verdict(false), Verdict::AskAgain(_)));
    send.send((begin + seconds(5), rejected(VALID))).unwrap();
    assert!(matches!(question.verdict(false), Verdict::Uninstall(_)));
}
