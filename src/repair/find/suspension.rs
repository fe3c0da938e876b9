//! Collects what an audit found, and suspends its repairs if the audit may be wrong: most of the
//! node's pods seem damaged.

use std::error::Error;

use super::inspect::Inspected;
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
    pub fn add(&mut self, pod: StrandedPod, inspected: Result<Option<Inspected>, Box<dyn Error>>) {
        let FoundPod { namespace, name, .. } = &pod.found;
        let Inspected { netns, rules } = match inspected {
            Ok(Some(inspected)) => inspected,
            Ok(None) => return,
            Err(error) => {
                self.errors.push(format!("{namespace}/{name}: {error}"));
                return;
            }
        };
        match rules {
            RulesState::Unreadable => self.unreadable += 1,
            RulesState::Missing(_, missing) => {
                let (netns, missing) = (netns.display(), describe_missing(&missing));
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
}
