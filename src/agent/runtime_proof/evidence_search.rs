//! Searches Events for evidence although the node's clock may be set, by NTP or by hand. Pure.
//!
//! The times of Events, of the chain and of the search are all of the node's clock. After the clock
//! was set, a failure of an hour ago may look recent, and two failures of a moment may look far
//! apart. So only failures count that happened after the clock was set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use super::evidence;
use crate::cni::args::PodRef;
use crate::kube::pod_events::PodEvent;
use crate::node::withdrawal::Evidence;

/// Smallest difference between both clocks' advance that shows that the clock was set. NTP's slow
/// corrections change both clocks alike.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// One instant, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the node's clock.
    pub date: SystemTime,
    /// By the monotonic clock, which cannot be set.
    pub instant: Instant,
}

impl Moment {
    pub fn now() -> Moment {
        Moment { date: SystemTime::now(), instant: Instant::now() }
    }
}

#[derive(Debug)]
pub struct EvidenceSearch {
    last_search: Moment,
    /// When the last search was that found the clock set, by the clock since then.
    clock_set: Option<SystemTime>,
    /// Times of failures before the clock was set back, by the UID of the pod. The clock reaches
    /// these times once more. `None` if the clock was not set back.
    earlier_failures: Option<BTreeMap<String, BTreeSet<SystemTime>>>,
}

impl EvidenceSearch {
    /// `now` is before the first search.
    pub fn new(now: Moment) -> EvidenceSearch {
        EvidenceSearch { last_search: now, clock_set: None, earlier_failures: None }
    }

    /// Finds evidence among the `events` of `pod` that the runtime cannot run the plugin. `node` is
    /// as for [`evidence::failures`]. `chained_since` is when the chain was last changed.
    ///
    /// After the clock was set back, the first search for a pod finds nothing: the times of its
    /// failures do not tell which of them happened before.
    pub fn find(
        &mut self,
        events: &[PodEvent],
        pod: &PodRef,
        node: Option<&str>,
        chained_since: SystemTime,
        now: Moment,
    ) -> Option<Evidence> {
        self.compare_clocks(chained_since, now);
        let mut failures = evidence::failures(events, pod, node);
        if let Some(earlier_failures) = &mut self.earlier_failures {
            let Some(earlier) = earlier_failures.get(&pod.uid) else {
                earlier_failures.insert(pod.uid.clone(), failures.into_keys().collect());
                return None;
            };
            failures.retain(|date, _| !earlier.contains(date));
        }
        let since = self.begin_of_evidence(chained_since, now);
        evidence::judge(&failures, since, now.date)
    }

    /// Notices whether the clock was set since the last search.
    fn compare_clocks(&mut self, chained_since: SystemTime, now: Moment) {
        let elapsed = now.instant.saturating_duration_since(self.last_search.instant);
        let expected = self.last_search.date + elapsed;
        self.last_search = now;
        if now.date > expected + CLOCK_TOLERANCE {
            self.clock_set = Some(now.date);
        }
        let was_set_back = now.date + CLOCK_TOLERANCE < expected;
        // The clock was set back before the agent started.
        let was_behind = chained_since > now.date && self.earlier_failures.is_none();
        if was_set_back || was_behind {
            self.clock_set = Some(now.date);
            self.earlier_failures = Some(BTreeMap::new());
        }
    }

    /// Returns the time after which a failure counts: when the chain was changed, or when the clock
    /// was set after that.
    fn begin_of_evidence(&self, chained_since: SystemTime, now: Moment) -> SystemTime {
        let Some(clock_set) = self.clock_set else { return chained_since };
        // By the clock before.
        let is_in_the_future = chained_since > now.date;
        if is_in_the_future { clock_set } else { chained_since.max(clock_set) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;
    use testkit::table;

    use super::*;

    const HOUR: u64 = 3600;
    /// When the chain was put in place, by the node's clock.
    const CHAINED: u64 = 100_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// An Event in which the runtime does not find the plugin.
    fn failure(seconds: u64) -> PodEvent {
        let event = json!({
            "reason": "FailedCreatePodSandBox",
            "message": "plugin type=\"linkerd-cni\" failed (add): failed to find plugin \
                \"linkerd-cni\" in path [/usr/lib/cni]",
            "source": {"component": "kubelet", "host": "node-1"},
            "lastTimestamp": humantime::format_rfc3339_seconds(at(seconds)).to_string(),
        });
        serde_json::from_value(event).unwrap()
    }

    /// A search for one pod.
    struct Search {
        /// Seconds since the agent started.
        elapsed: u64,
        /// By the node's clock.
        date: u64,
        /// Times of the failures that the Events have.
        failures: Vec<u64>,
        is_evidence: bool,
    }

    fn search(elapsed: u64, date: u64, failures: &[u64], is_evidence: bool) -> Search {
        Search { elapsed, date, failures: failures.to_vec(), is_evidence }
    }

    #[test]
    fn only_failures_after_the_clock_was_set_are_evidence() {
        let ahead = CHAINED + HOUR;
        let back = CHAINED - HOUR;
        for (name, (agent_start, searches)) in table::named([
            (
                "not set",
                (
                    CHAINED,
                    vec![
                        search(10, CHAINED + 10, &[CHAINED + 4], false),
                        search(25, CHAINED + 25, &[CHAINED + 4, CHAINED + 14], true),
                    ],
                ),
            ),
            (
                "set ahead between two failures of a moment",
                (
                    CHAINED,
                    vec![
                        search(10, ahead + 10, &[CHAINED + 4, ahead + 5], false),
                        search(20, ahead + 20, &[CHAINED + 4, ahead + 5, ahead + 15], false),
                        search(30, ahead + 30, &[ahead + 5, ahead + 15, ahead + 25], true),
                    ],
                ),
            ),
            (
                "set ahead after two failures",
                (CHAINED, vec![search(20, ahead + 20, &[CHAINED + 4, CHAINED + 14], false)]),
            ),
            (
                "set back while the runtime can run the plugin",
                (
                    CHAINED,
                    vec![
                        search(20, back + 20, &[CHAINED + 4, CHAINED + 14], false),
                        search(40, back + 40, &[CHAINED + 4, CHAINED + 14], false),
                        // The clock reaches the times of these failures once more.
                        search(HOUR + 20, CHAINED + 20, &[CHAINED + 4, CHAINED + 14], false),
                    ],
                ),
            ),
            (
                "set back while the runtime cannot run the plugin",
                (
                    CHAINED,
                    vec![
                        search(20, back + 20, &[CHAINED + 4, back + 14], false),
                        search(30, back + 30, &[CHAINED + 4, back + 14, back + 24], false),
                        search(40, back + 40, &[back + 14, back + 24, back + 34], true),
                    ],
                ),
            ),
            (
                "set back to the time of failures that are too old",
                (
                    CHAINED,
                    vec![
                        search(300, CHAINED + 300, &[CHAINED + 4, CHAINED + 14], false),
                        search(310, CHAINED + 20, &[CHAINED + 4, CHAINED + 14], false),
                        search(320, CHAINED + 30, &[CHAINED + 4, CHAINED + 14], false),
                    ],
                ),
            ),
            (
                "set back before the agent started",
                (
                    back,
                    vec![
                        search(10, back + 10, &[CHAINED + 4, CHAINED + 14], false),
                        search(30, back + 30, &[CHAINED + 14, back + 18, back + 28], true),
                        search(HOUR + 20, CHAINED + 20, &[CHAINED + 4, CHAINED + 14], false),
                    ],
                ),
            ),
            (
                "set back, and the chain changes after that",
                (
                    CHAINED + HOUR,
                    vec![
                        search(10, CHAINED + 10, &[CHAINED + 60, CHAINED + 70], false),
                        search(80, CHAINED + 80, &[CHAINED + 60, CHAINED + 70], false),
                    ],
                ),
            ),
        ]) {
            let begin = Instant::now();
            let mut evidence_search =
                EvidenceSearch::new(Moment { date: at(agent_start), instant: begin });
            let [namespace, pod_name, uid] = ["shop", "web", "u-1"].map(str::to_owned);
            let pod = PodRef { namespace, name: pod_name, uid };
            for Search { elapsed, date, failures, is_evidence } in searches {
                let events: Vec<PodEvent> = failures.into_iter().map(failure).collect();
                let instant = begin + Duration::from_secs(elapsed);
                let now = Moment { date: at(date), instant };
                let found = evidence_search.find(&events, &pod, Some("node-1"), at(CHAINED), now);
                assert_eq!(found.is_some(), is_evidence, "{name}, after {elapsed} s");
            }
        }
    }
}
