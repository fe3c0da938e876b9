//! Limits the requests for other objects that the changes of one pod cost: its author can change
//! its annotations at any rate. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backoff::RateLimit;

/// Changes of a pod that cost a request each at once.
const BURST: u32 = 4;
/// Time between two requests after such a burst. The changes in between are coalesced.
const INTERVAL: Duration = Duration::from_secs(20);

/// The limit of each pod, by UID.
#[derive(Debug, Default)]
pub struct RequestLimit(BTreeMap<String, RateLimit>);

impl RequestLimit {
    /// Returns whether a request for the pod is allowed now, and counts that request.
    pub fn allows(&mut self, uid: &str, now: Instant) -> bool {
        if !self.is_due(uid, now) {
            return false;
        }
        let limit = self.0.entry(uid.to_owned());
        limit.or_insert_with(|| RateLimit::new(INTERVAL, BURST, now)).count(now);
        true
    }

    /// Returns whether a request for the pod is allowed now.
    pub fn is_due(&self, uid: &str, now: Instant) -> bool {
        match self.0.get(uid) {
            Some(limit) => limit.due() <= now,
            None => true,
        }
    }

    /// Forgets a deleted pod.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_costs_a_burst_of_requests_and_then_one_an_interval() {
        let begin = Instant::now();
        let mut limit = RequestLimit::default();
        let mut allowed = 0;
        for second in 0..200 {
            allowed += u32::from(limit.allows("a", begin + Duration::from_secs(second)));
        }
        assert_eq!(allowed, BURST + 9);
        assert!(limit.allows("b", begin));
        limit.forget("a");
        assert!(limit.allows("a", begin));
    }
}
