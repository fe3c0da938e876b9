use super::WaitReason::{AgentNotReady, Budget, EarlierAttempt};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn found(namespace: &str, found_by: FoundBy) -> StrandedPod {
    let mut pod = StrandedPod::default();
    pod.found.namespace = namespace.into();
    pod.found.uid = "u-1".into();
    pod.found.found_by = found_by;
    pod
}

/// A row: name, what happened before, and the turn of a pod of namespace `web` that its
/// validator found, and of one that an audit found.
type Row = (&'static str, fn(&mut Turns, &mut Attempts, Instant), Turn, Turn);

#[test]
fn a_pod_waits_for_the_longest_of_all_reasons() {
    // Two repairs a minute, one in each namespace.
    let rows: [Row; 14] = [
        ("at the start: the agent was not asked yet", |_, _, _| {}, Turn::AskAgent, Turn::AskAgent),
        (
            "the agent is ready",
            |turns, _, now| {
                turns.record_agent(true, now);
            },
            Turn::Now,
            Turn::Now,
        ),
        (
            "another pod was taken since the agent was asked",
            |turns, _, now| {
                turns.record_agent(true, now);
                turns.record_taken();
            },
            Turn::AskAgent,
            Turn::AskAgent,
        ),
        (
            "the agent was ready a second ago",
            |turns, _, now| {
                turns.record_agent(true, now - SECOND);
            },
            Turn::AskAgent,
            Turn::AskAgent,
        ),
        (
            "the agent is not ready",
            |turns, _, now| {
                turns.record_agent(false, now);
            },
            Turn::Wait(AgentNotReady, SECOND),
            Turn::Wait(AgentNotReady, SECOND),
        ),
        (
            "the agent was not ready a second ago",
            |turns, _, now| {
                turns.record_agent(false, now - SECOND);
            },
            Turn::AskAgent,
            Turn::AskAgent,
        ),
        (
            "the budget of the namespace is used up",
            |turns, _, now| turns.spend_budget("web", now - SECOND),
            Turn::Wait(Budget, MINUTE - SECOND),
            Turn::Wait(Budget, MINUTE - SECOND),
        ),
        (
            "another namespace used its share of the budget up",
            |turns, _, now| turns.spend_budget("voting", now),
            Turn::AskAgent,
            Turn::AskAgent,
        ),
        (
            "the budget of the node is used up",
            |turns, _, now| {
                turns.spend_budget("voting", now);
                turns.spend_budget("emoji", now);
            },
            Turn::Wait(Budget, MINUTE),
            Turn::Wait(Budget, MINUTE),
        ),
        (
            "not before a time, after a failed attempt",
            |_, attempts, now| attempts.record_attempt(now, MINUTE),
            Turn::Wait(EarlierAttempt, MINUTE),
            Turn::Wait(EarlierAttempt, MINUTE),
        ),
        (
            "that time is longer than the wait for the budget",
            |turns, attempts, now| {
                attempts.record_attempt(now, 2 * MINUTE);
                turns.spend_budget("web", now);
            },
            Turn::Wait(EarlierAttempt, 2 * MINUTE),
            Turn::Wait(EarlierAttempt, 2 * MINUTE),
        ),
        (
            "that time is shorter than the wait for the budget, and the agent is not ready",
            |turns, attempts, now| {
                attempts.record_attempt(now - MINUTE, MINUTE + SECOND);
                turns.spend_budget("web", now);
                turns.record_agent(false, now);
            },
            Turn::Wait(Budget, MINUTE),
            Turn::Wait(Budget, MINUTE),
        ),
        (
            "the audit suspended its repairs",
            |turns, attempts, now| {
                turns.record_agent(true, now);
                attempts.record_attempt(now, MINUTE);
                turns.suspend_audit_repairs(true);
            },
            Turn::Wait(EarlierAttempt, MINUTE),
            Turn::UntilNextAudit,
        ),
        (
            "the next audit let its repairs continue",
            |turns, _, now| {
                turns.record_agent(true, now);
                turns.suspend_audit_repairs(true);
                turns.suspend_audit_repairs(false);
            },
            Turn::Now,
            Turn::Now,
        ),
    ];
    let now = Instant::now() + 10 * MINUTE;
    for (name, prepare, by_validator, by_audit) in rows {
        let mut turns = Turns::new(RepairMode::Delete, 2, true);
        let mut attempts = Attempts::none(now - MINUTE);
        prepare(&mut turns, &mut attempts, now);
        for (found_by, expected) in [(FoundBy::Validator, by_validator), (FoundBy::Audit, by_audit)]
        {
            let turn = turns.turn_of(&found("web", found_by), &attempts, now);
            assert_eq!(turn, expected, "{name}, {found_by:?}");
        }
    }
}

#[test]
fn only_a_pod_that_was_repaired_a_short_time_ago_is_held() {
    let now = Instant::now();
    for (name, repaired, after, held) in [
        ("no repair", None, SECOND, None),
        ("a repair of this pod", Some("web"), SECOND, Some(MINUTE - SECOND)),
        ("a repair of this pod a minute ago", Some("web"), MINUTE, None),
        ("a repair in another namespace", Some("voting"), SECOND, None),
    ] {
        let mut turns = Turns::new(RepairMode::InPlace, 2, false);
        if let Some(namespace) = repaired {
            turns.record_repair(&found(namespace, FoundBy::Audit), now, SystemTime::now());
        }
        let pod = found("web", FoundBy::Validator);
        assert_eq!(turns.hold(&pod, now + after), held, "{name}");
        // The hold does not delay the check: a pod that has its rules again is not held.
        let turn = turns.turn_of(&pod, &Attempts::none(now), now + after);
        assert_eq!(turn, Turn::Now, "{name}");
    }
}

#[test]
fn without_an_address_the_agent_is_never_asked() {
    let now = Instant::now();
    let mut turns = Turns::new(RepairMode::Delete, 2, false);
    let pod = found("web", FoundBy::Validator);
    assert_eq!(turns.turn_of(&pod, &Attempts::none(now), now), Turn::Now);
    turns.record_taken();
    assert_eq!(turns.turn_of(&pod, &Attempts::none(now), now), Turn::Now);
}

#[test]
fn a_pause_is_reported_once_until_the_agent_is_ready() {
    let now = Instant::now();
    let mut turns = Turns::new(RepairMode::Delete, 2, true);
    let responses = [false, false, true, true, false];
    let begins_pause = responses.map(|is_ready| turns.record_agent(is_ready, now));
    assert_eq!(begins_pause, [true, false, false, false, true]);
}
