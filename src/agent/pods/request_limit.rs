//! Limits how many requests for other objects the changes of one pod cause, because the author of a
//! pod can change its annotations at any rate. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backoff::RateLimit;

/// Number of changes of a pod that may each cause a request at once.
const BURST: u32 = 4;
/// Time between two requests for a pod after such a burst. Only the last change in this time causes
/// a request.
const INTERVAL: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub struct RequestLimit {
    /// The limit of each pod, by UID.
    limits: BTreeMap<String, RateLimit>,
}

impl RequestLimit {
    /// Returns whether a request for the pod is allowed now, and counts that request.
    pub fn allows(&mut self, uid: &str, now: Instant) -> bool {
        if !self.is_due(uid, now) {
            return false;
        }
        let limit = self.limits.entry(uid.to_owned());
        limit.or_insert_with(|| RateLimit::new(INTERVAL, BURST, now)).count(now);
        true
    }

    /// Returns whether a request for the pod is allowed now.
    pub fn is_due(&self, uid: &str, now: Instant) -> bool {
        match self.limits.get(uid) {
            Some(limit) => limit.due() <= now,
            None => true,
        }
    }

    /// Forgets a deleted pod.
    pub fn forget(&mut self, uid: &str) {
        self.limits.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_may_cause_a_burst_of_requests_and_then_one_in_each_interval() {
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
