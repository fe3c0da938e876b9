//! Judges whether the node is ready, from what a reconcile pass found and did. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::agent::status_body::StatusBody;
use crate::agent::subject::Subject;
use crate::conflist::Entry;

/// Why a part of the node is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Normal right after a start, such as a missing token. Not logged, but the node is not ready.
    Waiting(String),
    /// Logged like a problem, but without effect on readiness and on the time of the next pass.
    Warning(String),
    /// Logged; the next pass runs soon. The node is not ready if [`Subject::decides_readiness`].
    Problem(String),
}

use Finding::{Problem, Waiting, Warning};

#[derive(Debug, Default)]
pub struct Pass {
    pub findings: Vec<(Subject, Finding)>,
    /// The pass wrote to the host. The next pass verifies the write.
    pub wrote: bool,
    /// Latest time of the next pass, if earlier than the resync.
    pub next: Option<Instant>,
    /// The plugin entry of another agent to which this agent yields.
    pub yielded_entry: Option<Entry>,
    /// What `/status` shows of the pass, but for its problems.
    pub body: StatusBody,
    /// Texts that `/ready` adds to a response of 200.
    pub notes: Vec<String>,
}

impl Pass {
    pub fn add(&mut self, subject: Subject, finding: impl Into<Option<Finding>>) {
        self.findings.extend(finding.into().map(|finding| (subject, finding)));
    }

    pub fn schedule_next(&mut self, when: Instant) {
        self.next = Some(self.next.map_or(when, |next| next.min(when)));
    }

    pub fn has_problem(&self) -> bool {
        self.findings.iter().any(|(_, finding)| matches!(finding, Problem(_)))
    }

    /// Returns the text to log for each subject: its first problem, or else its first warning.
    pub fn logged(&self) -> BTreeMap<Subject, String> {
        let of = |is_problem| {
            self.findings.iter().rev().filter_map(move |(subject, finding)| match finding {
                Problem(why) if is_problem => Some((subject.clone(), why.clone())),
                Warning(why) if !is_problem => Some((subject.clone(), why.clone())),
                _ => None,
            })
        };
        of(false).chain(of(true)).collect()
    }

    /// Returns whether all files are correct, and were so before this pass.
    pub fn is_installed(&self) -> bool {
        let parts = [Subject::Binary, Subject::Kubeconfig, Subject::NetworkConfig];
        !self.wrote && parts.iter().all(|part| self.unready(part).is_none())
    }

    /// Returns why the node is not ready: deciding subjects with a problem, or that the pass wrote.
    pub fn not_ready(&self) -> Option<String> {
        let found: BTreeSet<&Subject> = self.findings.iter().map(|(subject, _)| subject).collect();
        let deciding = found.into_iter().filter(|subject| subject.decides_readiness());
        let why = |subject| Some(format!("{subject}: {}", self.unready(subject)?));
        let unready: Vec<String> = deciding.filter_map(why).collect();
        match unready.is_empty() {
            true => self.wrote.then(|| "files were just written and are not verified yet".into()),
            false => Some(unready.join("; ")),
        }
    }

    fn unready(&self, of: &Subject) -> Option<&str> {
        self.findings.iter().find_map(|(subject, finding)| match finding {
            Problem(why) | Waiting(why) if subject == of => Some(&**why),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(why: &str) -> Finding {
        Waiting(why.into())
    }

    fn problem(why: &str) -> Finding {
        Problem(why.into())
    }

    #[test]
    fn readiness_names_each_part_of_the_node_that_is_not_in_place() {
        for (findings, wrote, expected, logged) in [
            (vec![], false, None, &[][..]),
            (
                vec![
                    (Subject::NetworkConfig, waiting("no entry")),
                    (Subject::Kubeconfig, waiting("no token")),
                ],
                false,
                Some("kubeconfig: no token; network config: no entry"),
                &[],
            ),
            (
                vec![
                    (Subject::NetworkConfig, Warning("several".into())),
                    (Subject::NetworkConfig, problem("no entry")),
                    (Subject::NetworkConfig, problem("later")),
                    (Subject::Binary, Warning("overwritten".into())),
                ],
                true,
                Some("network config: no entry"),
                &[Subject::Binary, Subject::NetworkConfig],
            ),
            (vec![(Subject::Leftovers, problem("x"))], false, None, &[Subject::Leftovers]),
            (vec![], true, Some("files were just written and are not verified yet"), &[]),
        ] {
            let pass = Pass { findings, wrote, ..Pass::default() };
            assert_eq!(pass.not_ready().as_deref(), expected, "{pass:?}");
            let found = pass.logged();
            assert!(!found.values().any(|why| why == "later"), "{pass:?}");
            assert_eq!(found.into_keys().collect::<Vec<_>>(), logged, "{pass:?}");
        }
    }
}
