//! What one audit found. Pure.
//!
//! An audit finds the rules of a pod complete or damaged, or the rules stay unknown.

use std::time::SystemTime;

use crate::firewall::{RulesState, describe_missing};
use crate::repair::find::inspect::{InspectError, Inspected, UNREADABLE};
use crate::repair::find::netns_lookup::NetnsUnknown;
use crate::repair::find::stranded::{FoundPod, StrandedPod};
use crate::repair::pod_events::REPLACE;

#[derive(Debug, Default)]
pub struct Findings {
    /// Pods with all rules.
    pub complete: Vec<FoundPod>,
    /// Number of pods in `complete` whose rules differ from those that the plugin would install
    /// now.
    pub drifted: usize,
    /// Pods with missing or changed rules.
    pub damaged: Vec<StrandedPod>,
    /// Pods whose rules the controller cannot read.
    pub unreadable: Vec<FoundPod>,
    /// Pods that cannot be judged, with the reasons.
    pub errors: Vec<PodError>,
    /// Number of pods that were not audited, because the node has more pods than a list may have.
    pub not_listed: usize,
    /// Number of pods that may have started without the plugin, but whose netns is hidden from this
    /// container until it restarts.
    pub not_shown: usize,
    /// Number of meshed pods that do not run yet.
    pub starting: usize,
}

#[derive(Debug)]
pub struct PodError {
    pub pod: FoundPod,
    pub why: String,
}

impl Findings {
    /// Adds the result of one pod. `inspected` is `Ok(None)` if the plugin installs no rules in the
    /// pod.
    ///
    /// Audits after the start set `plugin_works_since`. They may leave out a pod whose netns was
    /// made later, because the plugin has installed the rules of that pod.
    pub fn add(
        &mut self,
        pod: StrandedPod,
        inspected: Result<Option<Inspected>, InspectError>,
        plugin_works_since: Option<SystemTime>,
    ) {
        let FoundPod { namespace, name, .. } = &pod.found;
        let Inspected { netns, rules } = match inspected {
            Ok(Some(inspected)) => inspected,
            Ok(None) => return,
            Err(error) => {
                self.add_error(pod.found, &error, plugin_works_since);
                return;
            }
        };
        match rules {
            RulesState::Unreadable => self.unreadable.push(pod.found),
            RulesState::Missing(_, missing) => {
                let netns = netns.path().display();
                let missing = describe_missing(&missing);
                tracing::info!(namespace, name, %netns, "Pod lacks redirect rules: {missing}");
                self.damaged.push(pod);
            }
            RulesState::Complete => self.complete.push(pod.found),
            RulesState::Drifted(_) => {
                self.complete.push(pod.found);
                self.drifted += 1;
            }
        }
    }

    /// Adds a failed inspection. In an audit after the start, a netns that was mounted too late for
    /// this container to see is no error.
    fn add_error(
        &mut self,
        pod: FoundPod,
        error: &InspectError,
        plugin_works_since: Option<SystemTime>,
    ) {
        if let InspectError::Netns(NetnsUnknown::MountedLater { at }) = error
            && let Some(since) = plugin_works_since
        {
            self.add_hidden(&pod, *at, since);
            return;
        }
        let why = match error {
            InspectError::Netns(NetnsUnknown::NoResult) => format!("{error}; {REPLACE}"),
            _ => error.to_string(),
        };
        self.errors.push(PodError { pod, why });
    }

    /// Counts a pod whose netns, made at `made`, is older than the plugin, because a restart is
    /// needed to audit the pod. Leaves out any other pod: the plugin has installed its rules.
    fn add_hidden(&mut self, pod: &FoundPod, made: SystemTime, plugin_works_since: SystemTime) {
        if made < plugin_works_since {
            self.not_shown += 1;
            return;
        }
        let FoundPod { namespace, name, .. } = pod;
        tracing::debug!(namespace, name, "Pod is not audited: it started by the plugin");
    }

    /// Returns the pods whose rules are unknown, each with the reason.
    pub fn unknown(&self) -> impl Iterator<Item = (&FoundPod, &str)> {
        let errors = self.errors.iter().map(|PodError { pod, why }| (pod, why.as_str()));
        errors.chain(self.unreadable.iter().map(|pod| (pod, UNREADABLE)))
    }

    /// Returns the pods whose rules are known.
    pub fn judged(&self) -> impl Iterator<Item = &FoundPod> {
        self.complete.iter().chain(self.damaged.iter().map(|pod| &pod.found))
    }

    /// Returns whether each meshed pod of the node was judged, and none of them lacks rules.
    pub fn is_each_pod_complete(&self) -> bool {
        self.damaged.is_empty()
            && self.unreadable.is_empty()
            && self.errors.is_empty()
            && self.not_listed == 0
            && self.not_shown == 0
            && self.starting == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A netns that this container cannot see is no error in an audit after the start.
    #[test]
    fn a_pod_with_a_later_netns_needs_a_restart_if_it_is_older_than_the_plugin() {
        let now = SystemTime::now();
        let earlier = now - Duration::from_secs(1);
        for (name, made, plugin_works_since, not_shown, errors, is_complete) in [
            ("older than the plugin", earlier, Some(now), 1, 0, false),
            ("started by the plugin", now, Some(earlier), 0, 0, true),
            ("periodic audit", now, None, 0, 1, false),
        ] {
            let mut findings = Findings::default();
            let error = NetnsUnknown::MountedLater { at: made };
            findings.add(StrandedPod::default(), Err(error.into()), plugin_works_since);
            assert_eq!((findings.not_shown, findings.errors.len()), (not_shown, errors), "{name}");
            assert_eq!(findings.is_each_pod_complete(), is_complete, "{name}");
        }
    }

    #[test]
    fn an_audit_is_complete_only_if_each_pod_is_known_to_have_its_rules() {
        let error = || PodError { pod: FoundPod::default(), why: "HTTP 503".into() };
        for (name, findings, is_complete) in [
            ("no pod", Findings::default(), true),
            (
                "right",
                Findings { complete: vec![FoundPod::default()], ..Findings::default() },
                true,
            ),
            (
                "right with drift",
                Findings { complete: vec![FoundPod::default()], drifted: 1, ..Findings::default() },
                true,
            ),
            (
                "wrong",
                Findings { damaged: vec![StrandedPod::default()], ..Findings::default() },
                false,
            ),
            ("an error", Findings { errors: vec![error()], ..Findings::default() }, false),
            (
                "unreadable",
                Findings { unreadable: vec![FoundPod::default()], ..Findings::default() },
                false,
            ),
            ("beyond the list", Findings { not_listed: 1, ..Findings::default() }, false),
            ("shown after a restart", Findings { not_shown: 1, ..Findings::default() }, false),
            ("does not run yet", Findings { starting: 1, ..Findings::default() }, false),
        ] {
            assert_eq!(findings.is_each_pod_complete(), is_complete, "{name}");
        }
    }

    #[test]
    fn each_unknown_pod_has_its_reason() {
        let findings = Findings {
            errors: vec![PodError { pod: FoundPod::default(), why: "HTTP 503".into() }],
            unreadable: vec![FoundPod::default()],
            ..Findings::default()
        };
        let reasons: Vec<&str> = findings.unknown().map(|(_, why)| why).collect();
        assert_eq!(reasons, ["HTTP 503", UNREADABLE]);
    }
}
