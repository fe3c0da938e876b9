//! The verdict for each kind of evidence. How an agent gets the evidence is tested in
//! `stop_decision.rs` and `stop_evidence.rs` of `src/tests/agent`.

use super::*;
use crate::agent::api_history::TokenHistory;
use crate::agent::own_pod::Deletion;

type Rounds = Vec<(u64, Round)>;

const VALID: TokenFacts = TokenFacts { has_expired: false, outlives_pod: true };
const BOUND: TokenFacts = TokenFacts { has_expired: false, outlives_pod: false };
const EXPIRED: TokenFacts = TokenFacts { has_expired: true, outlives_pod: true };

/// What a case expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Uninstall(&'static str),
    LeaveInPlace(&'static str),
    /// Asks again, and leaves everything in place in the end.
    NoProof(&'static str),
    /// Asks again, and leaves everything in place in the end although there is proof.
    WaitsForNewerAgent,
}

use Expected::{LeaveInPlace, NoProof, Uninstall, WaitsForNewerAgent};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What an agent knows that has run for an hour, whose pod is being deleted, and the results of
/// rounds at these seconds after the signal.
fn evidence(rounds: Rounds) -> Evidence {
    let begin = Instant::now() + seconds(3600);
    let accepted = TokenHistory { accepted: Some(begin - seconds(300)), rejected: None };
    let (own_token, plugin_token) = (accepted, accepted);
    let shown = begin - Duration::from_millis(20);
    let deletion = Deletion::Graceful { shown, token_ends: shown + seconds(60) };
    Evidence {
        own_pod: OwnPod { deletion, ..OwnPod::default() },
        before: ApiHistory { own_token, plugin_token, disconnected: None },
        begin,
        end: begin + seconds(25),
        newer_agent_runs: false,
        newer_agent_seen: None,
        older_agent_ran: false,
        rounds: rounds.into_iter().map(|(at, round)| (begin + seconds(at), round)).collect(),
    }
}

/// Rounds in which both tokens are rejected.
fn rejected<const N: usize>(times: [u64; N], plugin: TokenFacts) -> Rounds {
    times.map(|second| (second, Round::TokensRejected { own: BOUND, plugin })).into()
}

fn unclear(second: u64, why: &str) -> Rounds {
    vec![(second, Round::Unclear(why.into()))]
}

fn round(round: Round) -> Rounds {
    vec![(1, round)]
}

fn gone() -> Rounds {
    round(Round::DaemonSetEnds("DaemonSet linkerd-cni/linkerd-cni does not exist".into()))
}

fn out_of_scope() -> Rounds {
    round(Round::OutOfScope("node a is out of scope".into()))
}

fn assert_verdict(name: &str, evidence: &Evidence, expected: Expected) {
    let last = evidence.rounds.last().map_or(evidence.begin, |(when, _)| *when);
    let (found, at_the_end) = (verdict(evidence, last), verdict(evidence, evidence.end));
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
            let says = format!("no proof of an uninstall within 25 s; last finding: {text}");
            assert_eq!(at_the_end, Verdict::LeaveInPlace(says), "{name}");
        }
        (WaitsForNewerAgent, Verdict::AskAgain(text)) => {
            assert!(text.ends_with("but a newer agent runs on this node"), "{name}: {text}");
            assert_eq!(at_the_end, found, "{name}: the newer agent may end at the same time");
            let after_it = verdict(evidence, evidence.end + seconds(2));
            let Verdict::LeaveInPlace(says) = &after_it else {
                panic!("{name}: {after_it:?}");
            };
            assert!(says.starts_with("a newer agent runs on this node, although "), "{says}");
        }
        _ => panic!("{name}: {found:?}, not {expected:?}"),
    }
}

#[test]
fn the_watched_state_of_the_pod_decides_on_each_response() {
    let begin = Instant::now();
    let graceful = Deletion::Graceful { shown: begin, token_ends: begin };
    let (forced, stays, unknown) = (Deletion::Forced, Deletion::NotDeleted, Deletion::Unknown);
    let unsure = "nothing shows that the agent's pod is being deleted";
    for (name, deletion, rounds, expected) in [
        ("gone, deleted", graceful, gone(), Uninstall("does not exist")),
        ("gone, deleted by force", forced, gone(), Uninstall("does not exist")),
        // The event may still arrive.
        ("gone, not deleted yet", stays, gone(), NoProof(unsure)),
        ("gone, pod unknown", unknown, gone(), NoProof(unsure)),
        ("out of scope, deleted", graceful, out_of_scope(), Uninstall("out of scope")),
        ("out of scope, pod unknown", unknown, out_of_scope(), NoProof(unsure)),
        ("in scope", graceful, round(Round::InScope), LeaveInPlace("the DaemonSet exists")),
        ("container restarts", stays, round(Round::PodStays), LeaveInPlace("is not being deleted")),
        ("namespace", unknown, round(Round::NamespaceBeingDeleted), Uninstall("namespace")),
        ("403", graceful, unclear(1, "HTTP 403"), NoProof("HTTP 403")),
        (
            "unreachable",
            graceful,
            round(Round::Unreachable("refused".into())),
            NoProof("unreachable: refused"),
        ),
        ("no response", graceful, Rounds::new(), NoProof("did not respond")),
    ] {
        let mut case = evidence(rounds);
        case.own_pod.deletion = deletion;
        assert_verdict(name, &case, expected);
        // The newer agent may be stopped, too, and have no proof.
        case.newer_agent_runs = true;
        case.newer_agent_seen = Some(case.begin + seconds(1));
        let beside_newer = match expected {
            Uninstall(_) => WaitsForNewerAgent,
            same => same,
        };
        assert_verdict(name, &case, beside_newer);
    }
}

/// The kubelet starts the container of the newer agent again, unless its pod is being deleted.
#[test]
fn an_agent_with_proof_uninstalls_only_if_the_newer_agent_does_not_return() {
    let mut case = evidence(gone());
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
    let replaced = || round(Round::DaemonSetReplaced("another one has its name".into()));
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

/// Rejections of both tokens for more than four seconds, what else is known, and the verdict.
type Rejection = (&'static str, TokenFacts, fn(&mut Evidence), Expected);

fn as_before(_: &mut Evidence) {}

fn set_deletion(evidence: &mut Evidence, deletion: Deletion) {
    evidence.own_pod.deletion = deletion;
}

fn at(evidence: &Evidence, milliseconds: i64) -> Instant {
    let distance = Duration::from_millis(milliseconds.unsigned_abs());
    if milliseconds < 0 { evidence.begin - distance } else { evidence.begin + distance }
}

/// When a deletion was shown, the token was rejected, and perhaps accepted again, in milliseconds
/// after the signal.
fn in_order(evidence: &mut Evidence, shown: i64, rejected: i64) {
    let shown = at(evidence, shown);
    set_deletion(evidence, Deletion::Graceful { shown, token_ends: shown + seconds(60) });
    evidence.before.own_token.rejected = Some(at(evidence, rejected));
}

const REJECTIONS: &[Rejection] = &[
    ("graceful deletion, one account", BOUND, as_before, Uninstall("every token")),
    ("graceful deletion, two accounts", VALID, as_before, Uninstall("every token")),
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
        |evidence| in_order(evidence, -3000, -2000),
        Uninstall("every token"),
    ),
    (
        "replaced signing key: the watch was rejected before the deletion",
        BOUND,
        |evidence| in_order(evidence, -2000, -60_000),
        NoProof("agent's own token 58 s before its pod was deleted"),
    ),
    (
        "replaced signing key: the watch was rejected, and the deletion was not shown",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.before.own_token.rejected = Some(at(evidence, -60_000));
        },
        NoProof("agent's own token 60 s before the agent was stopped"),
    ),
    (
        "replaced signing key: the restart of the API server ended the watch",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.before.disconnected = Some(at(evidence, -10_000));
        },
        NoProof("watch of the agent's pod had failed"),
    ),
    (
        "replaced signing key: the token check was rejected",
        BOUND,
        |evidence| evidence.before.plugin_token.rejected = Some(at(evidence, -60_000)),
        NoProof("plugin's token 59 s"),
    ),
    (
        "the plugin's account alone was deleted first, as the agent's own token was accepted later",
        VALID,
        |evidence| {
            evidence.before.plugin_token.rejected = Some(at(evidence, -60_000));
            evidence.before.own_token.accepted = Some(at(evidence, -59_000));
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
            evidence.before.plugin_token.accepted = Some(at(evidence, -3_600_000));
        },
        NoProof("did not accept"),
    ),
    (
        "plugin's token never accepted, pod unknown",
        VALID,
        |evidence| {
            set_deletion(evidence, Deletion::Unknown);
            evidence.before.plugin_token.accepted = None;
        },
        NoProof("did not accept"),
    ),
    ("expired plugin's token", EXPIRED, as_before, NoProof("plugin's token has expired")),
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

/// What is known of a newer agent whose tokens are rejected, and whether it ends at once.
type Chance = (&'static str, fn(&mut Evidence), bool);

/// `helm uninstall` in the second in which a newer agent starts: its token was accepted never, or
/// not until SIGTERM. The older agent has proof.
#[test]
fn a_newer_agent_that_cannot_get_proof_ends_at_once_for_the_older_one() {
    let cases: [Chance; 5] = [
        (
            "never accepted",
            |evidence| {
                set_deletion(evidence, Deletion::Unknown);
                evidence.before = ApiHistory::default();
            },
            true,
        ),
        ("the watch was rejected before the deletion", |e| in_order(e, -2000, -3000), true),
        (
            "the plugin's token was rejected before the deletion",
            |evidence| evidence.before.plugin_token.rejected = Some(at(evidence, -1000)),
            true,
        ),
        // The watch may show the deletion later.
        ("not deleted yet", |evidence| set_deletion(evidence, Deletion::NotDeleted), false),
        ("proof", as_before, false),
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
    let mut unreachable = evidence(round(Round::Unreachable("refused".into())));
    unreachable.older_agent_ran = true;
    unreachable.before = ApiHistory::default();
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

/// Decides once, after a thread has sent these rounds.
fn verdict_on(sent: Rounds) -> Verdict {
    let (send, rounds) = mpsc::channel();
    for round in evidence(sent).rounds {
        send.send(round).unwrap();
    }
    let evidence = evidence(Vec::new());
    let own_pod = evidence.own_pod.clone();
    let mut decision =
        UninstallDecision { evidence, rounds: Some(rounds), last_doubt: String::new() };
    decision.verdict(false, own_pod)
}

#[test]
fn rounds_that_are_read_late_count_from_their_own_time() {
    let verdict = verdict_on([gone(), unclear(2, "HTTP 403")].concat());
    assert!(matches!(verdict, Verdict::Uninstall(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4], BOUND)), Verdict::AskAgain(_)));
    assert!(matches!(verdict_on(rejected([1, 2, 4, 5], BOUND)), Verdict::Uninstall(_)));
}
