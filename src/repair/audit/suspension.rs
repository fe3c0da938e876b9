//! The brake of mode `delete`: decides whether an audit that found most of a node's pods damaged
//! may evict them. Pure.
//!
//! If most pods seem damaged, the audit itself may be wrong, and evicting most pods of a node would
//! be an outage. The other modes need no brake: `in-place` changes only pods that lack rules and
//! keeps their connections, and `report` changes nothing.

use super::findings::Findings;
use crate::repair::settings::RepairMode;

/// Up to this number, damaged pods are evicted even if they are most pods of the node.
const FEW_PODS: usize = 2;

/// Numbers of an audit that found so many damaged pods that the audit itself may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MostlyDamaged {
    pub damaged: usize,
    pub compared: usize,
}

/// Decides whether evictions are suspended because most of the compared pods are damaged. Returns
/// the numbers of these pods, or `None` if evictions go on. Damage in only one of several
/// namespaces suspends nothing, because its tenant must not stop the repairs of other tenants.
pub fn suspension(mode: RepairMode, findings: &Findings) -> Option<MostlyDamaged> {
    if mode != RepairMode::Delete {
        return None;
    }
    let damaged = findings.damaged.len();
    let compared = damaged + findings.complete.len();
    let is_most = damaged > FEW_PODS && 2 * damaged > compared;
    if !is_most || is_damage_in_one_of_several_namespaces(findings) {
        return None;
    }
    Some(MostlyDamaged { damaged, compared })
}

fn is_damage_in_one_of_several_namespaces(findings: &Findings) -> bool {
    let Some(first) = findings.damaged.first() else { return false };
    let namespace = &first.found.namespace;
    let has_all_damage = findings.damaged.iter().all(|pod| pod.found.namespace == *namespace);
    let is_only_namespace = findings.complete.iter().all(|pod| pod.namespace == *namespace);
    has_all_damage && !is_only_namespace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::find::stranded::{FoundPod, StrandedPod};

    /// A pod of each namespace, which is one letter.
    fn pods_in(namespaces: &str) -> Vec<FoundPod> {
        namespaces
            .chars()
            .map(|namespace| FoundPod { namespace: namespace.into(), ..FoundPod::default() })
            .collect()
    }

    fn findings(damaged: &str, complete: &str) -> Findings {
        let damaged = pods_in(damaged);
        Findings {
            damaged: damaged
                .into_iter()
                .map(|found| StrandedPod { found, ..StrandedPod::default() })
                .collect(),
            complete: pods_in(complete),
            ..Findings::default()
        }
    }

    #[test]
    fn damage_of_most_pods_suspends_evictions_except_in_one_namespace() {
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
            let findings = findings(damaged, complete);
            let is_delete_suspended = suspension(RepairMode::Delete, &findings).is_some();
            assert_eq!(is_delete_suspended, is_suspended, "{name}");
        }
    }

    #[test]
    fn only_mode_delete_has_a_brake() {
        let findings = findings("aaa", "");
        assert!(suspension(RepairMode::Delete, &findings).is_some());
        for mode in [RepairMode::InPlace, RepairMode::Report] {
            assert_eq!(suspension(mode, &findings), None, "{mode:?}");
        }
    }
}
