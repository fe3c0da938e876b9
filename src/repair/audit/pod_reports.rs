//! Decides when Events report a state that lasts, of one pod or of all audits. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::repair::find::stranded::FoundPod;
use crate::repair::turn::attempts::REPORT_INTERVAL;

/// When one state began, and when it was last reported.
pub struct ReportTimes {
    since: Instant,
    last_report: Option<Instant>,
}

impl ReportTimes {
    /// Returns the times of a state that begins at `now`.
    pub fn begin(now: Instant) -> Self {
        ReportTimes { since: now, last_report: None }
    }

    /// Returns whether to report the state, which still lasts at `now`: first after `grace`, then
    /// after each [`REPORT_INTERVAL`]. If so, records the report.
    pub fn record(&mut self, grace: Duration, now: Instant) -> bool {
        let is_due = match self.last_report {
            None => self.is_older_than(grace, now),
            Some(last) => now >= last + REPORT_INTERVAL,
        };
        if is_due {
            self.last_report = Some(now);
        }
        is_due
    }

    pub fn is_reported(&self) -> bool {
        self.last_report.is_some()
    }

    pub fn is_older_than(&self, grace: Duration, now: Instant) -> bool {
        now >= self.since + grace
    }
}

/// The pods that are in one state, such as unknown.
pub struct PodReports {
    /// Time for which a pod has to be in the state before its first report.
    grace: Duration,
    /// The key is the pod's UID.
    pods: HashMap<String, ReportTimes>,
}

impl PodReports {
    pub fn after(grace: Duration) -> Self {
        PodReports { grace, pods: HashMap::new() }
    }

    /// Records the pods that an audit found in the state at `now`, each with the reason, and
    /// forgets all other pods. Returns the pods to report.
    pub fn record<'a>(
        &mut self,
        found: impl Iterator<Item = (&'a FoundPod, &'a str)>,
        now: Instant,
    ) -> Vec<(&'a FoundPod, &'a str)> {
        let mut earlier = std::mem::take(&mut self.pods);
        let mut due = Vec::new();
        for (pod, why) in found {
            let mut times = match earlier.remove(&pod.uid) {
                Some(times) => times,
                None => ReportTimes::begin(now),
            };
            if times.record(self.grace, now) {
                due.push((pod, why));
            }
            self.pods.insert(pod.uid.clone(), times);
        }
        due
    }

    /// Returns which of `pods` were reported. The caller passes pods that have left the state, and
    /// ends their reports. Has to be called before [`PodReports::record`], which forgets such pods.
    pub fn ended<'a>(&self, pods: impl Iterator<Item = &'a FoundPod>) -> Vec<&'a FoundPod> {
        pods.filter(|pod| self.is_reported(pod)).collect()
    }

    /// Returns whether the pod is in the state and was reported.
    pub fn is_reported(&self, pod: &FoundPod) -> bool {
        self.pods.get(&pod.uid).is_some_and(ReportTimes::is_reported)
    }

    /// Returns the number of pods that have been in the state for at least `grace`.
    pub fn lasting(&self, now: Instant) -> usize {
        self.pods.values().filter(|times| times.is_older_than(self.grace, now)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn pod(uid: &str) -> FoundPod {
        FoundPod { uid: uid.into(), ..FoundPod::default() }
    }

    #[test]
    fn a_pod_is_reported_after_the_grace_and_again_before_its_event_expires() {
        let begin = Instant::now();
        let mut reports = PodReports::after(MINUTE);
        // The time of each audit in minutes, the pods in the state, those that are reported, and
        // the number of pods that are in the state for a minute.
        for (name, minutes, found, due, lasting) in [
            ("the first audit", 0, "ab", "", 0),
            ("after a minute, and a new pod", 1, "abc", "ab", 2),
            ("the new pod after its minute", 2, "abc", "c", 3),
            ("a pod is judged", 3, "bc", "", 2),
            ("it is in the state again", 4, "abc", "", 2),
            ("after a minute of its own", 5, "abc", "a", 3),
            ("the others before their Events expire", 41, "abc", "b", 3),
            ("and then", 45, "abc", "ac", 3),
            ("no pod", 46, "", "", 0),
        ] {
            let now = begin + minutes * MINUTE;
            let pods: Vec<FoundPod> = found.chars().map(|uid| pod(&uid.to_string())).collect();
            let reported = reports.record(pods.iter().map(|pod| (pod, "why")), now);
            let uids: Vec<&str> = reported.iter().map(|(pod, _)| pod.uid.as_str()).collect();
            assert_eq!(uids.concat(), due, "{name}");
            assert_eq!(reports.lasting(now), lasting, "{name}");
        }
    }

    #[test]
    fn only_a_report_that_was_made_is_ended() {
        let now = Instant::now();
        let mut reports = PodReports::after(MINUTE);
        let [a, b] = [pod("a"), pod("b")];
        assert!(reports.record([(&a, "why")].into_iter(), now).is_empty());
        assert!(reports.ended([&a].into_iter()).is_empty(), "it was not reported yet");
        let both = [(&a, "why"), (&b, "why")];
        assert_eq!(reports.record(both.into_iter(), now + MINUTE), [(&a, "why")]);
        let judged = [a.clone(), b, pod("c")];
        assert_eq!(reports.ended(judged.iter()), [&a]);
        reports.record(std::iter::empty(), now + 2 * MINUTE);
        assert!(reports.ended(judged.iter()).is_empty(), "only once");
    }
}
