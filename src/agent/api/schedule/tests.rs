use std::collections::BTreeMap;

use super::*;
use crate::agent::api::untaint;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What the API server and the node do in a simulation.
#[derive(Clone, Copy)]
struct Node {
    /// Whether the API server issues tokens, or denies them.
    issues: bool,
    /// Whether an account is configured for the plugin.
    account: bool,
    tainted: bool,
}

const DEFAULT: Node = Node {
    issues: true,
    account: true,
    tainted: false,
};

/// When requests are sent within `span` of the start of an agent whose requests are answered.
fn requests(node: Node, span: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, node.account.then_some(Duration::ZERO));
    let mut sent = Vec::new();
    let mut taint = start;
    // Kubelet replaces the agent's own token before four fifths of its hour are over.
    let mut rotation = start + HOUR * 4 / 5;
    let agents_token = !(node.account && node.issues);
    if agents_token {
        schedule.kubeconfig_changed(start);
    }
    loop {
        let mut now = schedule.next();
        if node.tainted {
            now = now.min(taint);
        }
        if agents_token {
            now = now.min(rotation);
        }
        if now > start + span {
            return sent;
        }
        if schedule.is_renewal_due(now) {
            sent.push(now - start);
            match node.issues {
                true => {
                    schedule.renewed(now, DAY);
                    schedule.kubeconfig_changed(now);
                }
                false => {
                    schedule.not_renewed(now, Fallback::AgentsToken, Duration::ZERO);
                    schedule.token_known(now);
                }
            }
        }
        if schedule.is_check_due(now) {
            sent.push(now - start);
            schedule.checked(now, CheckResult::Accepted, Duration::ZERO);
        }
        if node.tainted && taint <= now {
            sent.push(now - start);
            taint = now + untaint::again();
        }
        if agents_token && rotation <= now {
            rotation = now + HOUR * 4 / 5;
            schedule.kubeconfig_changed(now);
        }
    }
}

#[test]
fn an_idle_node_sends_less_than_a_request_in_five_minutes_whatever_is_configured() {
    let span = DAY * 30;
    for issues in [true, false] {
        for account in [true, false] {
            for tainted in [false, true] {
                let node = Node {
                    issues,
                    account,
                    tainted,
                };
                let idle = requests(node, span)
                    .into_iter()
                    .filter(|at| *at > HOUR)
                    .count();
                let a_minute = idle as f64 / (span - HOUR).as_secs_f64() * 60.0;
                let what = format!("issues {issues}, account {account}, tainted {tainted}");
                assert!(a_minute < 0.2, "{a_minute:.3} a minute: {what}");
                assert!(a_minute > 0.1, "{a_minute:.3} a minute: {what}");
            }
        }
    }
}

#[test]
fn a_node_whose_token_is_not_renewed_any_more_is_quiet_too() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(Duration::ZERO));
    schedule.checked(start, CheckResult::Accepted, Duration::ZERO);
    let mut sent = 0;
    while schedule.next() < start + 10 * DAY {
        let now = schedule.next();
        if schedule.is_renewal_due(now) {
            schedule.not_renewed(now, Fallback::LastToken, Duration::ZERO);
        } else {
            schedule.checked(now, CheckResult::Accepted, Duration::ZERO);
        }
        sent += u32::from(now > start + HOUR);
    }
    let a_minute = f64::from(sent) / (10 * DAY - HOUR).as_secs_f64() * 60.0;
    assert!((0.1..0.2).contains(&a_minute), "{a_minute:.3} a minute");
}

#[test]
fn an_agent_starts_with_one_token_request_and_one_check_and_is_then_quiet_for_six_minutes() {
    for _ in 0..100 {
        let sent = requests(DEFAULT, DAY / 4);
        assert!(sent[1] <= CHANGE_GAP, "{:?}", &sent[..3]);
        for pair in sent[1..].windows(2) {
            let gap = pair[1] - pair[0];
            assert!((6 * MINUTE..=10 * MINUTE).contains(&gap), "{gap:?}");
        }
    }
}

#[test]
fn nodes_that_start_together_do_not_ask_together() {
    let mut each_second = BTreeMap::new();
    let (nodes, span) = (2000, DAY);
    for _ in 0..nodes {
        for at in requests(DEFAULT, span) {
            *each_second.entry(at.as_secs()).or_insert(0) += 1;
        }
    }
    // On average 2,000 nodes send some four requests a second.
    let busiest = each_second.range(HOUR.as_secs()..).map(|(_, count)| *count);
    let busiest: i32 = busiest.max().unwrap();
    assert!(busiest < 25, "{busiest} of {nodes} nodes in one second");
}

#[test]
fn a_denied_token_request_is_tried_again_soon_and_then_ever_later_up_to_ten_minutes() {
    let node = Node {
        issues: false,
        ..DEFAULT
    };
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(Duration::ZERO));
    for whole in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
        schedule.not_renewed(start, Fallback::AgentsToken, Duration::ZERO);
        let wait = (schedule.renewal.unwrap() - start).as_secs_f64();
        let whole = f64::from(whole);
        assert!((whole * 0.6..=whole).contains(&wait), "{wait} of {whole}");
    }
    // A Role that comes late serves within as long as it was missing, or 10 minutes.
    let sent = requests(node, HOUR);
    let early = sent.iter().filter(|at| **at < MINUTE).count();
    assert!((4..=10).contains(&early), "{sent:?}");
}

#[test]
fn an_api_server_that_is_away_is_asked_ever_less_often_up_to_once_a_minute() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    let mut now = start;
    let mut waits = Vec::new();
    for _ in 0..20 {
        schedule.checked(now, CheckResult::Unknown, Duration::ZERO);
        waits.push(schedule.next() - now);
        now = schedule.next();
    }
    assert!(waits[0] <= NO_RESPONSE[0]);
    for wait in &waits[8..] {
        assert!((MINUTE * 3 / 5..=MINUTE).contains(wait), "{wait:?}");
    }
    // A response says when to come again; the token is asked about with the same patience.
    schedule.checked(now, CheckResult::Unknown, 5 * MINUTE);
    assert_eq!(schedule.next(), now + 5 * MINUTE);
    schedule.not_renewed(now, Fallback::NoToken, 2 * MINUTE);
    assert_eq!(schedule.next(), now + 2 * MINUTE);
}

#[test]
fn a_flood_of_records_asks_for_a_bounded_number_of_checks() {
    let start = Instant::now();
    for result in [CheckResult::Accepted, CheckResult::Refused] {
        let mut schedule = Schedule::new(start, None);
        let mut checks = 0;
        let mut now = start;
        while now < start + 10 * MINUTE {
            schedule.record_refused(now);
            if schedule.is_check_due(now) {
                checks += 1;
                schedule.checked(now, result, Duration::ZERO);
                assert!(schedule.next() > now + RECORD_GAP / 2);
                assert!(checks <= 12, "{checks} checks in 10 minutes: {result:?}");
            }
            now += Duration::from_millis(100);
        }
        assert!(checks >= 6, "{checks}: {result:?}");
    }
}

#[test]
fn a_record_brings_a_check_at_once_or_when_the_api_server_has_forgotten_the_last_review() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, None);
    schedule.record_refused(start);
    assert!(schedule.is_check_due(start));
    schedule.checked(start, CheckResult::Accepted, Duration::ZERO);
    schedule.record_refused(start + RECORD_GAP);
    assert!(schedule.is_check_due(start + RECORD_GAP));
    let start = start + RECORD_GAP;
    schedule.checked(start, CheckResult::Accepted, Duration::ZERO);
    let soon = start + Duration::from_secs(1);
    schedule.record_refused(soon);
    assert!(!schedule.is_check_due(soon));
    // That check found nothing new, so the next comes after twice the gap.
    assert_eq!(schedule.next(), start + RECORD_GAP * 2);
    // A quiet period ends the doubling.
    let later = start + HOUR;
    schedule.checked(later, CheckResult::Accepted, Duration::ZERO);
    schedule.checked(later + HOUR, CheckResult::Accepted, Duration::ZERO);
    schedule.record_refused(later + HOUR);
    assert_eq!(schedule.next(), later + HOUR + RECORD_GAP);
}

#[test]
fn a_changed_token_is_checked_at_once_also_where_a_denied_request_showed_the_last_one_known() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    schedule.checked(start, CheckResult::Accepted, Duration::ZERO);
    let now = start + MINUTE;
    schedule.kubeconfig_changed(now);
    schedule.token_known(now);
    assert!(schedule.is_check_due(now));
    schedule.checked(now, CheckResult::Accepted, Duration::ZERO);
    schedule.token_known(now);
    assert!(schedule.next() >= now + 2 * CHECK_PERIOD);
    // Many changes at once are bounded as well.
    schedule.kubeconfig_changed(now);
    assert_eq!(schedule.next(), now + CHANGE_GAP);
}

#[test]
fn a_revoked_token_is_replaced_at_once_and_ones_that_are_refused_as_issued_ever_later() {
    let start = Instant::now();
    let mut schedule = Schedule::new(start, Some(DAY));
    schedule.revoked(start);
    assert!(schedule.is_renewal_due(start));
    let mut waits = Vec::new();
    for _ in 0..12 {
        schedule.renewed(start, DAY);
        schedule.revoked(start);
        waits.push(schedule.next() - start);
    }
    assert!(waits[0] <= RENEWAL[0] && waits[11] >= CHECK_PERIOD * 3 / 5);
    schedule.checked(start, CheckResult::Accepted, Duration::ZERO);
    schedule.renewed(start, DAY);
    schedule.revoked(start);
    assert!(schedule.is_renewal_due(start));
}

#[test]
fn a_token_found_on_the_host_is_renewed_before_its_half_life_and_an_overdue_one_within_a_minute() {
    for _ in 0..100 {
        let early = first_renewal(HOUR, 12 * HOUR);
        assert!((HOUR * 4 / 5..=HOUR).contains(&early));
        assert!(first_renewal(Duration::ZERO, 12 * HOUR) <= START_SPREAD);
        assert!(first_renewal(Duration::ZERO, Duration::from_secs(4)) <= Duration::from_secs(1));
    }
    let life = (0..100).map(|_| {
        let start = Instant::now();
        let mut schedule = Schedule::new(start, Some(Duration::ZERO));
        schedule.renewed(start, DAY);
        schedule.renewal.unwrap() - start
    });
    for wait in life {
        assert!((DAY * 2 / 5..=DAY / 2).contains(&wait));
    }
}
