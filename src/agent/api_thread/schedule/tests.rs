use std::collections::BTreeMap;

use super::*;
use crate::agent::api_thread::startup_taint::{AFTER_TOKEN_RENEWAL, RECHECK};
use crate::backoff::between;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A simulated node and its API server.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Whether the plugin has a ServiceAccount of its own. If not, it uses the agent's own token.
    has_account: bool,
    /// Whether the agent removes a startup taint.
    has_taint: bool,
}

const DEFAULT: Node = Node { has_account: true, has_taint: false };

/// Returns the times of all requests in the first `span` of an agent's life, while the API server
/// responds.
fn requests(node: Node, span: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let until_renewal = if node.has_account { Some(Duration::ZERO) } else { None };
    let mut schedule = Schedule::new(start, until_renewal);
    let mut sent = Vec::new();
    let mut taint_due = start;
    // Kubelet renews the agent's own token after four fifths of its lifetime of an hour.
    let mut rotation_due = start + HOUR * 4 / 5;
    let uses_agents_token = !node.has_account;
    if uses_agents_token {
        schedule.check_changed_kubeconfig(start);
    }
    loop {
        let mut now = schedule.next_due();
        if node.has_taint {
            now = now.min(taint_due);
        }
        if uses_agents_token || node.has_taint {
            now = now.min(rotation_due);
        }
        if now > start + span {
            return sent;
        }
        if schedule.renewal_due.is_some_and(|due| due <= now) {
            sent.push(now - start);
            schedule.schedule_renewal(now, DAY);
            schedule.check_changed_kubeconfig(now);
        }
        if schedule.check_due <= now {
            sent.push(now - start);
            schedule.schedule_next_check(now, TokenCheckResult::Accepted, Duration::ZERO);
        }
        if node.has_taint && taint_due <= now {
            sent.push(now - start);
            taint_due = now + between(RECHECK[0], RECHECK[1]);
        }
        if rotation_due <= now {
            rotation_due = now + HOUR * 4 / 5;
            let after_renewal = between(AFTER_TOKEN_RENEWAL[0], AFTER_TOKEN_RENEWAL[1]);
            taint_due = taint_due.min(now + after_renewal);
            if uses_agents_token {
                schedule.check_changed_kubeconfig(now);
            }
        }
    }
}

#[test]
fn an_idle_agent_leaves_enough_requests_for_the_repair_controller() {
    let span = DAY * 30;
    for has_account in [true, false] {
        for has_taint in [true, false] {
            let node = Node { has_account, has_taint };
            let idle = requests(node, span).into_iter().filter(|at| *at > HOUR).count();
            let per_minute = idle as f64 / (span - HOUR).as_secs_f64() * 60.0;
            println!("{:.3} in 5 minutes: {node:?}", per_minute * 5.0);
            // Together with the repair controller, whose watch sends up to 0.125 requests in 5
            // minutes, the node has to stay below one request in 5 minutes.
            let is_allowed = (0.1..0.875 / 5.0).contains(&per_minute);
            assert!(is_allowed, "{per_minute:.3} a minute: {node:?}");
        }
    }
}

#[test]
fn failed_token_requests_do_not_raise_the_requests_of_an_idle_node() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(Duration::ZERO));
    schedule.schedule_next_check(start, TokenCheckResult::Accepted, Duration::ZERO);
    let mut sent = 0;
    while schedule.next_due() < start + 10 * DAY {
        let now = schedule.next_due();
        if schedule.renewal_due.is_some_and(|due| due <= now) {
            let has_valid_token = true;
            schedule.retry_renewal(now, has_valid_token, Duration::ZERO);
        } else {
            schedule.schedule_next_check(now, TokenCheckResult::Accepted, Duration::ZERO);
        }
        sent += u32::from(now > start + HOUR);
    }
    let per_minute = f64::from(sent) / (10 * DAY - HOUR).as_secs_f64() * 60.0;
    assert!((0.1..0.2).contains(&per_minute), "{per_minute:.3} a minute");
}

#[test]
fn an_agent_sends_two_requests_at_start_and_none_for_six_minutes() {
    for _ in 0..100 {
        let sent = requests(DEFAULT, DAY / 4);
        assert!(sent[1] <= KUBECONFIG_CHANGE_GAP, "{:?}", &sent[..3]);
        for pair in sent[1..].windows(2) {
            let gap = pair[1] - pair[0];
            assert!((6 * MINUTE..=10 * MINUTE).contains(&gap), "{gap:?}");
        }
    }
}

#[test]
fn nodes_that_start_together_spread_their_requests() {
    let mut each_second = BTreeMap::new();
    let (nodes, span) = (2000, DAY);
    for _ in 0..nodes {
        for at in requests(DEFAULT, span) {
            *each_second.entry(at.as_secs()).or_insert(0) += 1;
        }
    }
    // On average, 2,000 nodes send some four requests a second. More than 25 in one second would
    // mean that the nodes send their requests together.
    let busiest = each_second.range(HOUR.as_secs()..).map(|(_, count)| *count);
    let busiest: i32 = busiest.max().unwrap();
    assert!(busiest < 25, "{busiest} of {nodes} nodes in one second");
}

#[test]
fn unanswered_checks_and_token_requests_back_off_to_a_minute() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    let mut now = start;
    for half_seconds in [1, 2, 4, 8, 16, 32, 64, 120, 120] {
        schedule.schedule_next_check(now, TokenCheckResult::Unknown, Duration::ZERO);
        let has_valid_token = false;
        schedule.retry_renewal(now, has_valid_token, Duration::ZERO);
        let whole = MINUTE / 120 * half_seconds;
        for wait in [schedule.check_due - now, schedule.renewal_due.unwrap() - now] {
            assert!((whole * 3 / 5..=whole).contains(&wait), "{wait:?} of {whole:?}");
        }
        now = schedule.next_due();
    }
}

#[test]
fn retries_after_an_overload_are_spread_over_the_nodes() {
    let start = Instant::now();
    // All nodes get the same header, because kube-apiserver always sends `Retry-After: 1`. So the
    // random delay alone has to spread their retries.
    for seconds in [1, 300] {
        let retry_after = Duration::from_secs(seconds);
        let mut checks = BTreeMap::new();
        let mut renewals = BTreeMap::new();
        for _ in 0..1000 {
            let mut schedule = Schedule::new(start, Some(DAY));
            schedule.schedule_next_check(start, TokenCheckResult::Unknown, retry_after);
            let has_valid_token = false;
            schedule.retry_renewal(start, has_valid_token, retry_after);
            let check_second = (schedule.check_due - start).as_secs();
            *checks.entry(check_second).or_insert(0) += 1;
            let renewal_second = (schedule.renewal_due.unwrap() - start).as_secs();
            *renewals.entry(renewal_second).or_insert(0) += 1;
        }
        for nodes_by_second in [checks, renewals] {
            let is_late = nodes_by_second.keys().all(|second| *second >= seconds);
            let is_spread = nodes_by_second.values().all(|nodes| *nodes < 200);
            assert!(is_late && is_spread, "{nodes_by_second:?}");
        }
    }
}

#[test]
fn a_flood_of_records_causes_a_bounded_number_of_checks() {
    let start = Instant::now();
    // If the token is known to be rejected, the records cause no checks, so fewer are allowed.
    for (result, most) in [(TokenCheckResult::Accepted, 51), (TokenCheckResult::Rejected, 25)] {
        let mut schedule = Schedule::new(start, None);
        let (mut checks, mut now) = (0, start);
        while now < start + 10 * MINUTE {
            schedule.check_after_plugin_failure(now);
            if schedule.check_due <= now {
                checks += 1;
                schedule.schedule_next_check(now, result, Duration::ZERO);
            }
            now += Duration::from_millis(100);
        }
        assert!((6..=most).contains(&checks), "{checks} checks in 10 minutes: {result:?}");
    }
}

#[test]
fn plugin_failures_and_kubeconfig_changes_cause_checks_at_a_limited_rate() {
    let start = Instant::now();
    type CheckEarlier = fn(&mut Schedule, Instant);
    let cases: [(CheckEarlier, Duration); 2] = [
        (Schedule::check_after_plugin_failure, PLUGIN_FAILURE_GAP),
        (Schedule::check_changed_kubeconfig, KUBECONFIG_CHANGE_GAP),
    ];
    for (check_earlier, gap) in cases {
        let mut schedule = Schedule::new(start, None);
        check_earlier(&mut schedule, start);
        assert!(schedule.check_due <= start);
        schedule.schedule_next_check(start, TokenCheckResult::Accepted, Duration::ZERO);
        check_earlier(&mut schedule, start);
        assert_eq!(schedule.next_due(), start + gap);
    }
}

#[test]
fn a_revoked_token_is_renewed_at_once_and_repeated_revocations_back_off() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    assert_eq!(wait_after_revocation(&mut schedule, start), Duration::ZERO);
    let waits: Vec<Duration> =
        (0..12).map(|_| wait_after_revocation(&mut schedule, start)).collect();
    assert!(waits[0] <= RENEWAL_RETRY[0] && waits[11] >= CHECK_PERIOD * 3 / 5, "{waits:?}");
    schedule.schedule_next_check(start, TokenCheckResult::Accepted, Duration::ZERO);
    assert_eq!(wait_after_revocation(&mut schedule, start), Duration::ZERO);
}

/// Issues a token that the API server rejects at once. Returns the wait before the next request.
fn wait_after_revocation(schedule: &mut Schedule, now: Instant) -> Duration {
    schedule.schedule_renewal(now, DAY);
    schedule.replace_revoked_token(now);
    schedule.next_due() - now
}

/// Returns the time from the start to the first check of an agent that renews its token after
/// `until_renewal`.
fn first_check(until_renewal: Duration) -> Duration {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(until_renewal));
    schedule.check_changed_kubeconfig(start);
    schedule.check_due - start
}

#[test]
fn only_the_first_check_of_an_adopted_token_is_spread() {
    assert_eq!(first_check(Duration::ZERO), Duration::ZERO);
    let waits: Vec<Duration> = (0..1000).map(|_| first_check(HOUR)).collect();
    assert!(waits.iter().all(|wait| *wait <= FIRST_CHECK_SPREAD));
    let late = waits.iter().filter(|wait| **wait >= FIRST_CHECK_SPREAD / 2).count();
    assert!((300..700).contains(&late), "{late}");
}
