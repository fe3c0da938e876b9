use std::thread;

use super::*;
use crate::repair::settings::RepairMode;

/// Takes the next pod of a queue without an agent.
fn next(queue: &Queue) -> StrandedPod {
    match queue.next() {
        Next::Check(pod) => pod,
        other => panic!("{other:?}: there is no agent, and no restart is due"),
    }
}

fn pod(name: usize) -> StrandedPod {
    let mut pod = StrandedPod::default();
    pod.found.name = name.to_string();
    pod.found.uid = name.to_string();
    pod
}

fn newer(name: usize) -> StrandedPod {
    let mut pod = pod(name);
    pod.found.resource_version = "2".into();
    pod
}

fn pod_in(namespace: &str, name: usize) -> StrandedPod {
    let mut pod = pod(name);
    pod.found.namespace = namespace.into();
    pod
}

fn audited(name: usize) -> StrandedPod {
    let mut pod = pod(name);
    pod.found.found_by = FoundBy::Audit;
    pod
}

fn queue(pods: usize) -> Queue {
    let queue = Queue::new(Turns::new(RepairMode::Delete, 2, false));
    for name in 0..pods {
        assert!(queue.push(pod(name)));
    }
    queue
}

#[test]
fn a_full_queue_rejects_pods_until_one_is_repaired_or_deleted() {
    let queue = queue(MAX_PODS);
    assert!(!queue.push(pod(MAX_PODS)));
    assert_eq!(next(&queue), pod(0));
    assert!(queue.push(pod(MAX_PODS)) && queue.push(pod(1)) && !queue.push(pod(0)));
    queue.remove("1");
    assert!(queue.push(pod(0)) && !queue.push(pod(1)));
}

#[test]
fn a_waiting_pod_keeps_its_place_and_a_taken_pod_does_not() {
    let queue = queue(3);
    assert_eq!(next(&queue), pod(0));
    assert!(queue.push(newer(0)) && queue.push(newer(2)));
    let all: Vec<_> = (0..3).map(|_| next(&queue)).collect();
    assert_eq!(all, [pod(1), newer(2), newer(0)]);
}

#[test]
fn a_new_list_keeps_the_order_and_the_pods_that_audits_found() {
    let queue = queue(3);
    let audited = audited(1);
    assert!(queue.push(audited.clone()));
    queue.retain_listed(&[pod(4), newer(2), pod(1)]);
    assert!(queue.push(pod(4)) && queue.push(newer(2)));
    let all: Vec<_> = (0..4).map(|_| next(&queue)).collect();
    assert_eq!(all, [pod(1), newer(2), audited, pod(4)]);
}

#[test]
fn the_namespace_with_fewer_recent_repairs_is_next() {
    let queue = queue(0);
    for pod in [pod_in("many", 1), pod_in("many", 2), pod_in("few", 3)] {
        assert!(queue.push(pod));
    }
    assert_eq!(next(&queue), pod_in("many", 1));
    queue.spend_budget(&pod_in("many", 1));
    assert_eq!(next(&queue), pod_in("few", 3));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| next(&queue));
        // The other pod of `many` waits for almost a minute.
        thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        assert!(queue.push(pod_in("new", 4)));
        assert_eq!(waiting.join().unwrap(), pod_in("new", 4));
    });
}

#[test]
fn the_agent_is_asked_once_before_each_pod() {
    let queue = Queue::new(Turns::new(RepairMode::Delete, 2, true));
    assert!(queue.push(pod(1)) && queue.push(pod(2)));
    for name in [1, 2] {
        assert_eq!(queue.next(), Next::AskAgent);
        assert!(!queue.record_agent(true));
        assert_eq!(queue.next(), Next::Check(pod(name)));
    }
    assert!(queue.push(pod(3)));
    assert_eq!(queue.next(), Next::AskAgent);
    assert!(queue.record_agent(false));
    assert_eq!(queue.next(), Next::AskAgent, "a second later");
}

#[test]
fn suspension_drops_only_pods_that_audits_found() {
    let queue = queue(1);
    let audited = audited(1);
    assert!(queue.push(audited.clone()));
    queue.suspend_audit_repairs(true);
    assert_eq!(next(&queue), pod(0));
    assert!(queue.push(newer(0)));
    assert_eq!(next(&queue), newer(0), "the audited pod is not next");
    queue.suspend_audit_repairs(false);
    assert!(queue.push(pod(2)) && queue.push(audited.clone()));
    assert_eq!([next(&queue), next(&queue)], [pod(2), audited]);
}

#[test]
fn a_complete_pod_is_repaired_once_an_audit_finds_rules_missing() {
    let queue = queue(1);
    assert_eq!(next(&queue), pod(0));
    assert!(!queue.record_complete(&pod(0)), "its validator has to run again first");
    assert!(queue.push(newer(0)), "an event of the pod, which waits");
    let audited = audited(0);
    assert!(queue.push(audited.clone()));
    assert_eq!(next(&queue), audited);
    assert!(queue.record_complete(&pod(0)));
}

#[test]
fn a_new_version_of_a_failed_pod_waits_as_long() {
    let queue = queue(1);
    let audited = audited(1);
    assert!(queue.push(audited.clone()));
    let soon = Instant::now() + Duration::from_millis(50);
    for taken in [next(&queue), next(&queue)] {
        queue.retry(&taken, Duration::ZERO);
        *queue.lock().attempts(&taken).unwrap() = Attempts::none(soon);
    }
    assert!(queue.push(newer(0)));
    assert_eq!(next(&queue), newer(0));
    assert!(Instant::now() >= soon);
    // The pod that an audit found waits for the next audit.
    assert!(queue.push(pod(2)));
    assert_eq!(next(&queue), pod(2));
    assert!(queue.push(audited.clone()));
    assert_eq!(next(&queue), audited);
}

#[test]
fn records_of_a_deleted_pod_are_ignored() {
    let queue = queue(1);
    assert_eq!(next(&queue), pod(0));
    queue.remove("0");
    queue.retry(&pod(0), Duration::ZERO);
    assert!(!queue.record_complete(&pod(0)));
    assert!(!queue.record_report_if_due(&pod(0), "why"));
    assert!(queue.push(pod(1)));
    assert_eq!(next(&queue), pod(1));
}

#[test]
fn a_restart_waits_for_pods_that_can_be_repaired_and_for_the_budget() {
    let queue = queue(2);
    let first = next(&queue);
    queue.retry(&first, Duration::from_secs(60));
    queue.request_restart();
    assert_eq!(queue.next(), Next::Check(pod(1)));
    assert_eq!(queue.next(), Next::Restart, "the first pod has to wait after its failure");

    assert!(queue.push(pod(2)));
    queue.spend_budget(&pod(2));
    queue.spend_budget(&pod(3));
    assert!(queue.lock().has_repairable_pod(Instant::now()), "it waits for the budget");
    let later = Instant::now() + Duration::from_secs(61);
    assert_eq!(queue.lock().first_in_turn(later).map(|(_, turn)| turn), Some(Turn::Now));
}
