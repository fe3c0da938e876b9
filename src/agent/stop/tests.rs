//! Tests of the verdict for each kind of evidence. How an agent gathers the evidence is tested in
//! `stop_decision.rs` and `stop_evidence.rs` of `src/tests/agent`.

use super::*;
use crate::agent::api_history::TokenHistory;
use crate::agent::own_pod::Deletion;

/// Rounds of requests, and in which second after the signal each ended.
type Rounds = Vec<(u64, Round)>;

const VALID: TokenFacts = TokenFacts { has_expired: false, outlives_pod: true };
const BOUND: TokenFacts = TokenFacts { has_expired: false, outlives_pod: false };
const EXPIRED: TokenFacts = TokenFacts { has_expired: true, outlives_pod: true };

/// The verdict that a case expects. The texts are parts of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Uninstall(&'static str),
    LeaveInPlace(&'static str),
    /// The agent asks again, and leaves everything in place when the time is over.
    NoProof(&'static str),
    /// The agent asks again although it has proof, and leaves everything in place when the time is
    /// over, because a newer agent runs.
    WaitsForNewerAgent,
}

use Expected::{LeaveInPlace, NoProof, Uninstall, WaitsForNewerAgent};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the evidence of an agent that has run for an hour and whose pod is being deleted, with
/// these rounds.
fn evidence(rounds: Rounds) -> Evidence {
    let begin = Instant::now() + seconds(3600);
    let accepted = TokenHistory { accepted: Some(begin - seconds(300)), rejected: None };
    let shown = begin - Duration::from_millis(20);
    let deletion = Deletion::Graceful { shown, token_ends: shown + seconds(60) };
    Evidence {
        own_pod: OwnPod { deletion, ..OwnPod::default() },
        history: ApiHistory { own_token: accepted, plugin_token: accepted, disconnected: None },
        begin,
        end: begin + seconds(25),
        newer_agent_runs: false,
        newer_agent_seen: None,
        older_agent_ran: false,
        rounds: rounds.into_iter().map(|(at, round)| (begin + seconds(at), round)).collect(),
    }
}

/// Returns rounds in these seconds in which both tokens are rejected.
fn rejected<const N: usize>(seconds: [u64; N], plugin: TokenFacts) -> Rounds {
    seconds.map(|second| (second, Round::TokensRejected { own: BOUND, plugin })).into()
}

fn unclear(second: u64, why: &str) -> Rounds {
    vec![(second, Round::Unclear(why.into()))]
}

fn one_round(round: Round) -> Rounds {
    vec![(1, round)]
}

fn daemonset_is_gone() -> Rounds {
    one_round(Round::DaemonSetEnds("DaemonSet linkerd-cni/linkerd-cni does not exist".into()))
}

fn out_of_scope() -> Rounds {
    one_round(Round::OutOfScope("node a is out of scope".into()))
}

fn assert_verdict(name: &str, evidence: &Evidence, expected: Expected) {
    let last = evidence.rounds.last().map_or(evidence.begin, |(when, _)| *when);
    let found = verdict(evidence, last);
    let at_the_end = verdict(evidence, evidence.end);
    match (expected, &found) {
        (Uninstall(why), Verdict::Uninstall(text)) => {
            assert!(text.contains(why), "{name}: {text}");
            assert_eq!(at_the_end, found, "{name}");
        }
        (LeaveInPlace(why), Verdict::LeaveInPlace(text)) => {
            assert!(text.contains(why), "{name}: {text}");
            assert_eq!(at_the_end, found, "{name}");
        }
        (NoProof(why), Verdict::AskAgain(text)) => {
            assert!(text.contains(why), "{name}: {text}");
            let why = format!("no proof of an uninstall within 25 s; last finding: {text}");
            assert_eq!(at_the_end, Verdict::LeaveInPlace(why), "{name}");
        }
        (WaitsForNewerAgent, Verdict::AskAgain(text)) => {
            assert!(text.ends_with("but a newer agent runs on this node"), "{name}: {text}");
            assert_eq!(at_the_end, found, "{name}: the newer agent may end at the same time");
            let after_the_end = verdict(evidence, evidence.end + seconds(2));
            let Verdict::LeaveInPlace(why) = &after_the_end else {
                panic!("{name}: {after_the_end:?}");
            };
            assert!(why.starts_with("a newer agent runs on this node, although "), "{why}");
        }
        _ => panic!("{name}: {found:?}, not {expected:?}"),
    }
}

#[test]
fn a_response_proves_an_uninstall_only_if_the_pod_is_being_deleted() {
    let begin = Instant::now();
    let graceful = Deletion::Graceful { shown: begin, token_ends: begin };
    let forced = Deletion::Forced;
    let stays = Deletion::NotDeleted;
    let unknown = Deletion::Unknown;
    let unsure = "nothing shows that the agent's pod is being deleted";
    let gone = daemonset_is_gone;
    for (name, deletion, rounds, expected) in [
        ("gone, deleted", graceful, gone(), Uninstall("does not exist")),
        ("gone, deleted by force", forced, gone(), Uninstall("does not exist")),
        // The event that shows the deletion of the pod may still arrive.
        ("gone, not deleted yet", stays, gone(), NoProof(unsure)),
        ("gone, pod unknown", unknown, gone(), NoProof(unsure)),
        ("out of scope, deleted", graceful, out_of_scope(), Uninstall("out of scope")),
        ("out of scope, pod unknown", unknown, out_of_scope(), NoProof(unsure)),
        ("in scope", graceful, one_round(Round::InScope), LeaveInPlace("the DaemonSet exists")),
        (
            "container restarts",
            stays,
            one_round(Round::PodStays),
            LeaveInPlace("is not being deleted"),
        ),
        ("namespace", unknown, one_round(Round::NamespaceBeingDeleted), Uninstall("namespace")),
        ("403", graceful, unclear(1, "HTTP 403"), NoProof("HTTP 403")),
        (
            "unreachable",
            graceful,
            one_round(Round::Unreachable("refused".into())),
            NoProof("unreachable: refused"),
        ),
        ("no response", graceful, Rounds::new(), NoProof("did not respond")),
    ] {
        let mut case = evidence(rounds);
        case.own_pod.deletion = deletion;
        assert_verdict(name, &case, expected);
        // If a newer agent runs, an agent with proof waits: the newer agent may be stopped too, and
        // may have no proof.
        case.newer_agent_runs = true;
        case.newer_agent_seen = Some(case.begin + seconds(1));
        let expected_beside_newer = match expected {
            Uninstall(_) => WaitsForNewerAgent,
            same => same,
        };
        assert_verdict(name, &case, expected_beside_newer);
    }
}

/// When the newer agent ends, the kubelet starts its container again, unless its pod is being
/// deleted.
#[test]
fn an_agent_with_proof_uninstalls_only_if_the_newer_agent_does_not_return() {
    let mut case = evidence(daemonset_is_gone());
    case.newer_agent_seen = Some(case.begin + seconds(10));
    for (name, now, uninstalls) in [
        ("container restarts", 11, false),
        ("container restarts for long", 14, false),
        ("pod is gone", 15, true),
        ("pod is gone, and the time to decide is over", 26, true),
    ] {
        match verdict(&case, case.begin + seconds(now)) {
            Verdict::Uninstall(_) if uninstalls => {}
            Verdict::AskAgain(why) if !uninstalls && why.contains("may start again") => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    case.newer_agent_seen = Some(case.end - seconds(1));
    let at_the_end = verdict(&case, case.end);
    assert!(matches!(at_the_end, Verdict::Uninstall(_)), "{at_the_end:?}");
}

/// The newer agent is in a pod of the other DaemonSet.
#[test]
fn an_agent_whose_daemonset_was_replaced_leaves_the_plugin_to_a_newer_agent_at_once() {
    let replaced = || one_round(Round::DaemonSetReplaced("another one has its name".into()));
    let alone = evidence(replaced());
    assert_verdict("alone", &alone, Uninstall("another one has its name"));
    for runs in [true, false] {
        let mut case = evidence(replaced());
        case.newer_agent_runs = runs;
        case.newer_agent_seen = Some(case.begin);
        let name = format!("newer agent runs: {runs}");
        assert_verdict(&name, &case, LeaveInPlace("is left to a newer agent"));
    }
}

/// A case in which both tokens are rejected for more than four seconds: its name, the plugin's
/// token, a change to the other evidence, and the expected verdict.
type Rejection = (&'static str, TokenFacts, fn(&mut Evidence), Expected);

fn unchanged(_: &mut Evidence) {}

fn set_deletion(evidence: &mut Evidence, deletion: Deletion) {
    evidence.own_pod.deletion = deletion;
}

/// Returns the time that is so many milliseconds after the signal, or before it if negative.
fn at(evidence: &Evidence, milliseconds: i64) -> Instant {
    let distance = Duration::from_millis(milliseconds.unsigned_abs());
    if milliseconds < 0 { evidence.begin - distance } else { evidence.begin + distance }
}

/// Sets when a graceful deletion was shown and when the agent's own token was rejected, in
/// milliseconds after the signal.
fn set_deletion_and_rejection(evidence: &mut Evidence, shown: i64, rejected: i64) {
    let shown = at(evidence, shown);
    set_deletion(evidence, Deletion::Graceful { shown, token_ends: shown + seconds(60) });
    evidence.history.own_token.rejected = Some(at(evidence, rejected));
}

const REJECTIONS: &[Rejection] = &[
    ("graceful deletion, one account", BOUND, unchanged, Uninstall("every token")),
    ("graceful deletion, two accounts", VALID, unchanged, Uninstall("every token")),
    (
        "graceful deletion that is shown after the signal",
        BOUND,
        |evidence| {
            let shown = at(evidence, 500);
            set_deletion(evidence, Deletion::Graceful { shown, token_ends: shown + seconds(60) });
        },
        Uninstall("every token"),
    ),
    (
        "the watch asks again after the deletion, before the signal",
        BOUND,
        |evidence| set_deletion_and_rejection(evidence, -3000, -2000),
        Uninstall("every token"),
    ),
    (
        "replaced signing key: the watch was rejected before the deletion",
        BOUND,
        |evidence| set_deletion_and_rejection(evidence, -2000, -60_000),
        NoProof("agent's own token 58 s before its pod was deleted"),
    ),
    (
        "replaced signing key: the watch was rejected, and the deletion was not shown",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.history.own_token.rejected = Some(at(evidence, -60_000));
        },
        NoProof("agent's own token 60 s before the agent was stopped"),
    ),
    (
        "replaced signing key: the restart of the API server ended the watch",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.history.disconnected = Some(at(evidence, -10_000));
        },
        NoProof("watch of the agent's pod had failed"),
    ),
    (
        "replaced signing key: the token check was rejected",
        BOUND,
        |evidence| evidence.history.plugin_token.rejected = Some(at(evidence, -60_000)),
        NoProof("plugin's token 59 s"),
    ),
    (
        "the plugin's account alone was deleted first, as the agent's own token was accepted later",
        VALID,
        |evidence| {
            evidence.history.plugin_token.rejected = Some(at(evidence, -60_000));
            evidence.history.own_token.accepted = Some(at(evidence, -59_000));
        },
        Uninstall("every token"),
    ),
    (
        "forced deletion",
        VALID,
        |evidence| set_deletion(evidence, Deletion::Forced),
        NoProof("gone or was deleted by force"),
    ),
    (
        "pod that is not being deleted",
        VALID,
        |evidence| set_deletion(evidence, Deletion::NotDeleted),
        NoProof("is not being deleted"),
    ),
    (
        "grace period that is over, as after a kubelet that was down",
        BOUND,
        |evidence| {
            let begin = evidence.begin;
            let deletion =
                Deletion::Graceful { shown: begin - seconds(200), token_ends: begin + seconds(5) };
            set_deletion(evidence, deletion);
        },
        NoProof("grace period of the agent's pod"),
    ),
    (
        "two accounts without the right to read the pod",
        VALID,
        |evidence| set_deletion(evidence, Deletion::Unknown),
        Uninstall("every token"),
    ),
    (
        "one account without the right to read the pod",
        BOUND,
        |evidence| set_deletion(evidence, Deletion::Unknown),
        NoProof("bound to a pod"),
    ),
    (
        "plugin's token accepted long ago, pod unknown",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.history.plugin_token.accepted = Some(at(evidence, -3_600_000));
        },
        NoProof("did not accept"),
    ),
    (
        "plugin's token never accepted, pod unknown",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.history.plugin_token.accepted = None;
        },
        NoProof("did not accept"),
    ),
    ("expired plugin's token", EXPIRED, unchanged, NoProof("plugin's token has expired")),
];

#[test]
fn rejection_of_every_token_proves_an_uninstall_only_if_nothing_else_explains_it() {
    for (name, plugin, change, expected) in REJECTIONS {
        let mut case = evidence(rejected([1, 6], *plugin));
        change(&mut case);
        assert_verdict(name, &case, *expected);
    }
    let expired = Round::TokensRejected { own: EXPIRED, plugin: VALID };
    let expired = evidence(vec![(1, expired.clone()), (6, expired)]);
    assert_verdict("expired own token", &expired, NoProof("agent's own token has expired"));
}

/// A case in which the tokens of a newer agent are rejected: its name, a change to the other
/// evidence, and whether the newer agent ends at once.
type NewerAgentCase = (&'static str, fn(&mut Evidence), bool);

/// `helm uninstall` in the second in which a newer agent starts. The token of that agent was never
/// accepted, or was rejected before SIGTERM. The older agent has proof.
#[test]
fn a_newer_agent_that_cannot_get_proof_ends_at_once_for_the_older_one() {
    let cases: [NewerAgentCase; 5] = [
        (
            "never accepted",
            |evidence| {
                set_deletion(evidence, Deletion::Unknown);
                evidence.history = ApiHistory::default();
            },
            true,
        ),
        (
            "the watch was rejected before the deletion",
            |evidence| set_deletion_and_rejection(evidence, -2000, -3000),
            true,
        ),
        (
            "the plugin's token was rejected before the deletion",
            |evidence| evidence.history.plugin_token.rejected = Some(at(evidence, -1000)),
            true,
        ),
        // The watch may still show the deletion, and then the agent gets proof.
        ("not deleted yet", |evidence| set_deletion(evidence, Deletion::NotDeleted), false),
        ("proof", unchanged, false),
    ];
    for (name, change, ends) in cases {
        let mut case = evidence(rejected([1], BOUND));
        change(&mut case);
        assert!(matches!(verdict(&case, at(&case, 1000)), Verdict::AskAgain(_)), "{name}");
        case.older_agent_ran = true;
        let found = verdict(&case, at(&case, 1000));
        let why = "an older agent ran on this node when this one started";
        match &found {
            Verdict::LeaveInPlace(text) if ends => assert!(text.starts_with(why), "{name}: {text}"),
            Verdict::AskAgain(_) if !ends => {}
            _ => panic!("{name}: {found:?}"),
        }
    }
    let mut unreachable = evidence(one_round(Round::Unreachable("refused".into())));
    unreachable.older_agent_ran = true;
    unreachable.history = ApiHistory::default();
    assert_verdict("unreachable", &unreachable, NoProof("unreachable"));
}

#[test]
fn rejection_of_every_token_has_to_last_for_four_seconds_without_another_response() {
    let no_token = Round::OwnTokenRejected("the kubeconfig has no token".into());
    for (rounds, expected) in [
        (rejected([1, 5], BOUND), Uninstall("in every response for 4 s")),
        ([unclear(1, "HTTP 403"), rejected([11, 15], BOUND)].concat(), Uninstall("every token")),
        (rejected([1, 4], BOUND), NoProof("rejected every token")),
        (
            [rejected([1], BOUND), unclear(3, "HTTP 403"), rejected([6, 8], BOUND)].concat(),
            NoProof("rejected every token"),
        ),
        (vec![(1, no_token)], NoProof("no token")),
    ] {
        assert_verdict(&format!("{rounds:?}"), &evidence(rounds.clone()), expected);
    }
}

#[test]
fn the_time_to_decide_leaves_five_seconds_of_the_grace_period() {
    for (grace, time) in [(30, 25), (10, 5), (6, 1), (5, 1), (1, 1), (3600, 3595)] {
        assert_eq!(time_to_decide(seconds(grace)), seconds(time), "{grace}");
    }
}

/// Returns the verdict of an agent that receives all of these rounds at once.
fn verdict_on(sent: Rounds) -> Verdict {
    let (sender, rounds) = mpsc::channel();
    for round in evidence(sent).rounds {
        sender.send(round).unwrap();
    }
    let evidence = evidence(Vec::new());
    let own_pod = evidence.own_pod.clone();
    let mut decision =
        UninstallDecision { evidence, rounds: Some(rounds), last_doubt: String::new() };
    decision.verdict(false, own_pod)
}

#[test]
fn rounds_that_are_read_late_are_judged_at_the_time_at_which_they_ended() {
    let verdict = verdict_on([daemonset_is_gone(), unclear(2, "HTTP 403")].concat());
    assert!(matches!(verdict, Verdict::Uninstall(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4], BOUND)), Verdict::AskAgain(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4, 5], BOUND)), Verdict::Uninstall(_)));
}
