use std::collections::BTreeMap;

use super::*;
use crate::agent::api_thread::startup_taint::{RECHECK, TOKEN_RENEWED};
use crate::backoff::between;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A simulated node and its API server.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Whether the plugin has a ServiceAccount of its own.
    account: bool,
    tainted: bool,
}

const DEFAULT: Node = Node { account: true, tainted: false };

/// Times of all requests in the first `span` of an agent's life, while the API server responds.
fn requests(node: Node, span: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let renewal = if node.account { Some(Duration::ZERO) } else { None };
    let mut schedule = Schedule::new(start, renewal);
    let mut sent = Vec::new();
    let mut taint = start;
    // Kubelet renews the agent's own token after four fifths of its lifetime of an hour.
    let mut rotation = start + HOUR * 4 / 5;
    let agents_token = !node.account;
    if agents_token {
        schedule.kubeconfig_changed(start);
    }
    loop {
        let mut now = schedule.next_due();
        if node.tainted {
            now = now.min(taint);
        }
        if agents_token || node.tainted {
            now = now.min(rotation);
        }
        if now > start + span {
            return sent;
        }
        if schedule.renewal.is_some_and(|due| due <= now) {
            sent.push(now - start);
            schedule.renewed(now, DAY);
            schedule.kubeconfig_changed(now);
        }
        if schedule.check <= now {
            sent.push(now - start);
            schedule.check_done(now, TokenCheckResult::Accepted, Duration::ZERO);
        }
        if node.tainted && taint <= now {
            sent.push(now - start);
            taint = now + between(RECHECK[0], RECHECK[1]);
        }
        if rotation <= now {
            rotation = now + HOUR * 4 / 5;
            taint = taint.min(now + between(TOKEN_RENEWED[0], TOKEN_RENEWED[1]));
            if agents_token {
                schedule.kubeconfig_changed(now);
            }
        }
    }
}

#[test]
fn an_idle_agent_leaves_enough_requests_for_the_repair_controller() {
    let span = DAY * 30;
    for number in 0..4 {
        let [account, tainted] = [1, 2].map(|bit| number & bit != 0);
        let node = Node { account, tainted };
        let idle = requests(node, span).into_iter().filter(|at| *at > HOUR).count();
        let a_minute = idle as f64 / (span - HOUR).as_secs_f64() * 60.0;
        println!("{:.3} in 5 minutes: {node:?}", a_minute * 5.0);
        // The repair controller's watch sends up to 0.125 requests in 5 minutes.
        assert!((0.1..0.875 / 5.0).contains(&a_minute), "{a_minute:.3} a minute: {node:?}");
    }
}

#[test]
fn failed_token_requests_do_not_raise_the_requests_of_an_idle_node() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(Duration::ZERO));
    schedule.check_done(start, TokenCheckResult::Accepted, Duration::ZERO);
    let mut sent = 0;
    while schedule.next_due() < start + 10 * DAY {
        let now = schedule.next_due();
        if schedule.renewal.is_some_and(|due| due <= now) {
            schedule.not_renewed(now, true, Duration::ZERO);
        } else {
            schedule.check_done(now, TokenCheckResult::Accepted, Duration::ZERO);
        }
        sent += u32::from(now > start + HOUR);
    }
    let a_minute = f64::from(sent) / (10 * DAY - HOUR).as_secs_f64() * 60.0;
    assert!((0.1..0.2).contains(&a_minute), "{a_minute:.3} a minute");
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
    // 2,000 nodes send some four requests a second on average.
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
        schedule.check_done(now, TokenCheckResult::Unknown, Duration::ZERO);
        schedule.not_renewed(now, false, Duration::ZERO);
        let whole = MINUTE / 120 * half_seconds;
        for wait in [schedule.check - now, schedule.renewal.unwrap() - now] {
            assert!((whole * 3 / 5..=whole).contains(&wait), "{wait:?} of {whole:?}");
        }
        now = schedule.next_due();
    }
}

#[test]
fn retries_after_an_overload_are_spread_over_the_nodes() {
    let start = Instant::now();
    // All nodes get the same header: kube-apiserver sends `Retry-After: 1`.
    for retry_after in [1, 300] {
        let mut each_second = [BTreeMap::new(), BTreeMap::new()];
        for _ in 0..1000 {
            let mut schedule = Schedule::new(start, Some(DAY));
            schedule.check_done(start, TokenCheckResult::Unknown, Duration::from_secs(retry_after));
            schedule.not_renewed(start, false, Duration::from_secs(retry_after));
            let dues = [schedule.check, schedule.renewal.unwrap()];
            for (counts, due) in each_second.iter_mut().zip(dues) {
                *counts.entry((due - start).as_secs()).or_insert(0) += 1;
            }
        }
        for counts in each_second {
            assert!(counts.keys().all(|second| *second >= retry_after), "{counts:?}");
            assert!(counts.values().all(|nodes| *nodes < 200), "{counts:?}");
        }
    }
}

#[test]
fn a_flood_of_records_causes_a_bounded_number_of_checks() {
    let start = Instant::now();
    // Records cause no further checks of a token that is known to be rejected.
    for (result, most) in [(TokenCheckResult::Accepted, 51), (TokenCheckResult::Rejected, 25)] {
        let mut schedule = Schedule::new(start, None);
        let (mut checks, mut now) = (0, start);
        while now < start + 10 * MINUTE {
            schedule.failure_reported(now);
            if schedule.check <= now {
                checks += 1;
                schedule.check_done(now, result, Duration::ZERO);
            }
            now += Duration::from_millis(100);
        }
        assert!((6..=most).contains(&checks), "{checks} checks in 10 minutes: {result:?}");
    }
}

#[test]
fn plugin_failures_and_kubeconfig_changes_cause_checks_at_a_limited_rate() {
    let start = Instant::now();
    type Report = fn(&mut Schedule, Instant);
    let reports: [(Report, Duration); 2] = [
        (Schedule::failure_reported, PLUGIN_FAILURE_GAP),
        (Schedule::kubeconfig_changed, KUBECONFIG_CHANGE_GAP),
    ];
    for (report, gap) in reports {
        let mut schedule = Schedule::new(start, None);
        report(&mut schedule, start);
        assert!(schedule.check <= start);
        schedule.check_done(start, TokenCheckResult::Accepted, Duration::ZERO);
        report(&mut schedule, start);
        assert_eq!(schedule.next_due(), start + gap);
    }
}

#[test]
fn a_revoked_token_is_renewed_at_once_and_repeated_revocations_back_off() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    assert_eq!(wait_after_revocation(&mut schedule, start), Duration::ZERO);
    let waits = [0; 12].map(|_| wait_after_revocation(&mut schedule, start));
    assert!(waits[0] <= RENEWAL_RETRY[0] && waits[11] >= CHECK_PERIOD * 3 / 5, "{waits:?}");
    schedule.check_done(start, TokenCheckResult::Accepted, Duration::ZERO);
    assert_eq!(wait_after_revocation(&mut schedule, start), Duration::ZERO);
}

/// Renews the token, and returns when it is renewed again because the API server rejects it.
fn wait_after_revocation(schedule: &mut Schedule, now: Instant) -> Duration {
    schedule.renewed(now, DAY);
    schedule.revoked(now);
    schedule.next_due() - now
}

/// The time from the start to the first check of an agent that renews its token after `renewal`.
fn first_check(renewal: Duration) -> Duration {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(renewal));
    schedule.kubeconfig_changed(start);
    schedule.check - start
}

#[test]
fn only_the_first_check_of_an_adopted_token_is_spread() {
    assert_eq!(first_check(Duration::ZERO), Duration::ZERO);
    let waits: Vec<Duration> = (0..1000).map(|_| first_check(HOUR)).collect();
    assert!(waits.iter().all(|wait| *wait <= FIRST_CHECK_SPREAD));
    let late = waits.iter().filter(|wait| **wait >= FIRST_CHECK_SPREAD / 2).count();
    assert!((300..700).contains(&late), "{late}");
}
