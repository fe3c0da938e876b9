//! The pods without sandbox, and when to ask the API server for the Events of which. Pure but for
//! random waits.
//!
//! When many nodes start at once, all of them have pods without sandbox for a while, and each
//! request makes the API server read the Events of a namespace. So there is a wait before the first
//! request for a pod, the waits between the requests grow, and a node sends few requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backoff::{Limits, RateLimit, between, delay};
use crate::cni::args::PodRef;

/// Shortest and longest time without sandbox before the first request for a pod. A runtime usually
/// makes a sandbox within 2 s.
const PATIENCE: Limits = [Duration::from_secs(5), Duration::from_secs(15)];
/// First and longest wait after a request for a pod.
const REPEAT: Limits = [Duration::from_secs(15), Duration::from_secs(300)];
/// Number of answered requests for one pod. The last one is sent after 45 minutes or more: a pod that
/// has not got a sandbox by then waits for something else.
const MAX_REQUESTS: u32 = 20;
/// Number of requests that a node sends without a pause between them.
const BURST: u32 = 2;
/// Time between two requests of a node after such a burst.
const INTERVAL: Duration = Duration::from_secs(15);
/// Shortest and longest wait after the API server denied a request. Only an administrator can grant
/// the permission.
const WITHOUT_PERMISSION: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(1200)];

#[derive(Debug)]
struct StuckPod {
    pod: PodRef,
    /// Number of requests sent for the pod.
    requests: u32,
    /// When the next request for the pod may be sent.
    due: Instant,
}

#[derive(Debug)]
pub struct StuckPods {
    /// By UID.
    pods: BTreeMap<String, StuckPod>,
    rate_limit: RateLimit,
}

impl StuckPods {
    pub fn new(now: Instant) -> StuckPods {
        StuckPods { pods: BTreeMap::new(), rate_limit: RateLimit::new(INTERVAL, BURST, now) }
    }

    /// Adds a pod that has no sandbox, unless it is known.
    pub fn add(&mut self, pod: &PodRef, now: Instant) {
        let uid = pod.uid.clone();
        self.pods.entry(uid).or_insert_with(|| StuckPod::new(pod.clone(), now));
    }

    pub fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.pods.retain(|uid, _| is_kept(uid));
    }

    /// Begins anew with all pods, because another chain is in place.
    pub fn restart(&mut self, now: Instant) {
        for stuck in self.pods.values_mut() {
            *stuck = StuckPod::new(stuck.pod.clone(), now);
        }
    }

    /// Returns when the next request may be sent. `None` if there is no pod to ask about.
    pub fn due(&self) -> Option<Instant> {
        let next = self.next()?;
        Some(next.due.max(self.rate_limit.due()))
    }

    /// Takes the pod for which a request is due at `now`, and counts the request.
    pub fn take(&mut self, now: Instant) -> Option<PodRef> {
        let uid = self.next()?.pod.uid.clone();
        let stuck = self.pods.get_mut(&uid)?;
        stuck.due = now + delay(REPEAT, stuck.requests);
        stuck.requests += 1;
        self.rate_limit.count(now);
        Some(stuck.pod.clone())
    }

    /// Takes back the last request for a pod, which got no answer.
    pub fn discount(&mut self, uid: &str) {
        if let Some(stuck) = self.pods.get_mut(uid) {
            stuck.requests = stuck.requests.saturating_sub(1);
        }
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Sends no request before `end`.
    pub fn pause(&mut self, end: Instant) {
        self.rate_limit.exhaust_until(end);
    }

    pub fn pause_for_permission(&mut self, now: Instant) {
        self.pause(now + between(WITHOUT_PERMISSION[0], WITHOUT_PERMISSION[1]));
    }

    /// Returns the pod whose request is due first.
    fn next(&self) -> Option<&StuckPod> {
        let askable = self.pods.values().filter(|stuck| stuck.requests < MAX_REQUESTS);
        askable.min_by_key(|stuck| stuck.due)
    }
}

impl StuckPod {
    fn new(pod: PodRef, now: Instant) -> StuckPod {
        StuckPod { pod, requests: 0, due: now + between(PATIENCE[0], PATIENCE[1]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> PodRef {
        PodRef { namespace: "shop".into(), name: uid.into(), uid: uid.into() }
    }

    /// Returns the seconds after `start` at which requests are sent within `seconds`.
    fn requests(pods: &mut StuckPods, start: Instant, seconds: u64) -> Vec<u64> {
        let mut sent = Vec::new();
        for second in 0..seconds {
            let now = start + Duration::from_secs(second);
            while pods.due().is_some_and(|due| due <= now) {
                pods.take(now).unwrap();
                sent.push(second);
            }
        }
        sent
    }

    #[test]
    fn the_waits_between_the_requests_for_a_pod_grow_and_the_requests_end() {
        let start = Instant::now();
        let mut pods = StuckPods::new(start);
        assert_eq!(pods.due(), None);
        pods.add(&pod("u-1"), start);
        pods.add(&pod("u-1"), start + Duration::from_secs(4));
        let sent = requests(&mut pods, start, 7200);
        assert_eq!(sent.len(), MAX_REQUESTS as usize, "{sent:?}");
        assert!((5..=16).contains(&sent[0]), "{sent:?}");
        assert!(sent[1] - sent[0] >= 9 && sent[5] - sent[4] >= 140, "{sent:?}");
        pods.restart(start + Duration::from_secs(7200));
        assert!(pods.due().is_some());
        pods.remove("u-1");
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_node_full_of_stuck_pods_sends_four_requests_a_minute() {
        let start = Instant::now();
        let mut pods = StuckPods::new(start);
        for number in 0..110 {
            pods.add(&pod(&format!("u-{number}")), start);
        }
        let sent = requests(&mut pods, start, 605);
        assert!((38..=42).contains(&sent.len()), "{sent:?}");
        // Each of these requests is about another pod.
        assert!(pods.pods.values().all(|stuck| stuck.requests <= 1));
    }

    #[test]
    fn no_request_is_sent_for_ten_minutes_after_a_denied_one() {
        let start = Instant::now();
        let mut pods = StuckPods::new(start);
        pods.add(&pod("u-1"), start);
        pods.pause_for_permission(start);
        assert_eq!(requests(&mut pods, start, 599), [0; 0]);
        let first = requests(&mut pods, start, 1300)[0];
        assert!((600..=1200).contains(&first), "{first}");
    }
}
