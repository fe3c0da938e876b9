//! Collects what an audit found, and suspends its repairs if the audit may be wrong: most of the
//! node's pods seem damaged.

use std::time::SystemTime;

use super::inspect::{InspectError, Inspected};
use super::netns_lookup::NetnsUnknown;
use super::stranded::{FoundPod, StrandedPod};
use crate::firewall::{RulesState, describe_missing};

/// Number of damaged pods up to which they are repaired, even if they are most pods of the node.
const FEW_PODS: usize = 2;

#[derive(Debug, Default)]
pub struct Findings {
    /// Why pods cannot be audited.
    pub errors: Vec<String>,
    /// Number of pods whose rules cannot be read.
    pub unreadable: usize,
    /// Number of pods that may have started without the plugin, and whose netns only a restart
    /// shows.
    pub not_shown: usize,
    /// Namespace of each pod with all rules.
    pub complete: Vec<String>,
    /// Number of the pods with all rules whose rules are not today's.
    pub drifted: usize,
    /// Pods with missing or changed rules.
    pub damaged: Vec<StrandedPod>,
}

/// So many pods are damaged that the audit itself may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MostlyDamaged {
    pub damaged: usize,
    pub compared: usize,
}

impl Findings {
    /// Adds the result of one pod. The rules are `None` if the plugin installs none in the pod.
    ///
    /// A pod whose netns was made after `plugin_works_since` started by the plugin, and so needs no
    /// audit after the start.
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
                self.add_error(&pod, error, plugin_works_since);
                return;
            }
        };
        match rules {
            RulesState::Unreadable => self.unreadable += 1,
            RulesState::Missing(_, missing) => {
                let (netns, missing) = (netns.path().display(), describe_missing(&missing));
                tracing::info!(namespace, name, %netns, "Pod lacks redirect rules: {missing}");
                self.damaged.push(pod);
            }
            RulesState::Complete => self.complete.push(pod.found.namespace),
            RulesState::Drifted(_) => {
                self.complete.push(pod.found.namespace);
                self.drifted += 1;
            }
        }
    }

    /// Adds a failed inspection. After the start, a netns that this container does not show is not
    /// an error.
    fn add_error(
        &mut self,
        pod: &StrandedPod,
        error: InspectError,
        plugin_works_since: Option<SystemTime>,
    ) {
        let FoundPod { namespace, name, .. } = &pod.found;
        if let InspectError::Netns(NetnsUnknown::MountedLater { at }) = error
            && let Some(since) = plugin_works_since
        {
            if at < since {
                self.not_shown += 1;
            } else {
                tracing::debug!(namespace, name, "Pod is not audited: it started by the plugin");
            }
            return;
        }
        self.errors.push(format!("{namespace}/{name}: {error}"));
    }

    /// Returns whether most of the compared pods are damaged. Then the audit may be wrong, and
    /// evicting most pods of a node would be an outage. Damage in only one of several namespaces
    /// is no reason: its tenant must not suspend the repairs of the others.
    pub fn mostly_damaged(&self) -> Option<MostlyDamaged> {
        let damaged = self.damaged.len();
        let compared = damaged + self.complete.len();
        let is_most = damaged > FEW_PODS && 2 * damaged > compared;
        if !is_most || self.is_damage_in_one_of_several_namespaces() {
            return None;
        }
        Some(MostlyDamaged { damaged, compared })
    }

    fn is_damage_in_one_of_several_namespaces(&self) -> bool {
        let Some(first) = self.damaged.first() else { return false };
        let first = &first.found.namespace;
        self.damaged.iter().all(|pod| pod.found.namespace == *first)
            && self.complete.iter().any(|namespace| namespace != first)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod_in(namespace: char) -> StrandedPod {
        let mut pod = StrandedPod::default();
        pod.found.namespace = namespace.into();
        pod
    }

    /// Each letter is a pod of the namespace with this name.
    #[test]
    fn damage_of_most_pods_suspends_repairs_except_in_one_namespace() {
        for (name, damaged, complete, is_suspended) in [
            ("no pods", "", "", false),
            ("all of two pods", "aa", "", false),
            ("all of three pods", "aaa", "", true),
            ("half of the pods", "aaa", "aaa", false),
            ("more than half", "aaaa", "aaa", true),
            ("one of ten", "a", "aaaaaaaaa", false),
            ("three of four", "aaa", "a", true),
            ("all damage in one of two namespaces", "aaa", "ab", false),
            ("damage in both namespaces", "aab", "ab", true),
            ("damage in two of three namespaces", "aba", "c", true),
        ] {
            let findings = Findings {
                damaged: damaged.chars().map(pod_in).collect(),
                complete: complete.chars().map(String::from).collect(),
                ..Findings::default()
            };
            assert_eq!(findings.mostly_damaged().is_some(), is_suspended, "{name}");
        }
    }

    /// A pod that started by the plugin, or whose netns a restart shows, is no error.
    #[test]
    fn a_pod_with_a_later_netns_needs_a_restart_if_it_is_older_than_the_plugin() {
        let now = SystemTime::now();
        let earlier = now - Duration::from_secs(1);
        for (name, made, plugin_works_since, not_shown, errors) in [
            ("older than the plugin", earlier, Some(now), 1, 0),
            ("started by the plugin", now, Some(earlier), 0, 0),
            ("periodic audit", now, None, 0, 1),
        ] {
            let mut findings = Findings::default();
            let error = NetnsUnknown::MountedLater { at: made };
            findings.add(StrandedPod::default(), Err(error.into()), plugin_works_since);
            assert_eq!((findings.not_shown, findings.errors.len()), (not_shown, errors), "{name}");
        }
    }
}
