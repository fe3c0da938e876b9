//! Judges whether the node is ready, from what a reconcile pass found and did. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::agent::contention::ContendedFile;
use crate::agent::status_body::StatusBody;
use crate::agent::subject::Subject;
use crate::conflist::Entry;

/// Why a part of the node is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Something that is normally missing right after a start, such as a token. The node is not
    /// ready, but nothing is logged.
    Waiting(String),
    /// Logged like a problem, but without effect on readiness and on the time of the next pass.
    Warning(String),
    /// Logged, and shortens the time to the next pass. Makes the node not ready if its subject decides that.
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
    /// The files that another program keeps overwriting, also if they are correct at the moment.
    pub contended: Vec<ContendedFile>,
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

    /// Returns all that is logged, by subject. A problem wins over a warning.
    pub fn logged(&self) -> BTreeMap<String, String> {
        let of = |is_problem| {
            self.findings.iter().filter_map(move |(subject, finding)| match finding {
                Problem(why) if is_problem => Some((subject.to_string(), why.clone())),
                Warning(why) if !is_problem => Some((subject.to_string(), why.clone())),
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

/// Judges whether the runtime calls the plugin with the right entry, and does so until the next pass.
/// `chained` and `kubeconfig` are the results of these steps.
pub fn network_config(
    chained: Result<(), String>,
    kubeconfig: &Result<(), Finding>,
    contended: &[ContendedFile],
) -> Option<Finding> {
    let removals = contended.iter().filter(|file| file.is_plugin_entry());
    let removals: Vec<String> = removals.map(ToString::to_string).collect();
    let why = if removals.is_empty() { chained.err()? } else { removals.join("; ") };
    // Without a kubeconfig the plugin is not chained. The missing kubeconfig is the cause, so the
    // unchained network config is not logged too.
    Some(match kubeconfig {
        Err(Waiting(_)) => Waiting(why),
        _ => Problem(why),
    })
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
                    (Subject::Binary, Warning("overwritten".into())),
                ],
                true,
                Some("network config: no entry"),
                &["binary", "network config"],
            ),
            (vec![(Subject::Other("leftovers"), problem("x"))], false, None, &["leftovers"]),
            (vec![], true, Some("files were just written and are not verified yet"), &[]),
        ] {
            let pass = Pass { findings, wrote, ..Pass::default() };
            assert_eq!(pass.not_ready().as_deref(), expected, "{pass:?}");
            assert_eq!(pass.logged().into_keys().collect::<Vec<_>>(), logged, "{pass:?}");
        }
    }

    #[test]
    fn a_removed_plugin_entry_is_a_problem_also_while_it_is_restored() {
        let entry = ContendedFile { subject: Subject::NetworkConfig, path: "/net/a".into() };
        let binaries = ContendedFile { subject: Subject::Binary, path: "/bin".into() };
        let removed = entry.to_string();
        let contended = [entry, binaries];
        let no_entry = || Err("no entry".to_owned());
        for (chained, kubeconfig, contended, expected) in [
            (Ok(()), Ok(()), &contended[1..], None),
            (no_entry(), Ok(()), &[], Some(problem("no entry"))),
            (no_entry(), Err(problem("full")), &[], Some(problem("no entry"))),
            (no_entry(), Err(waiting("no token")), &[], Some(waiting("no entry"))),
            (Ok(()), Ok(()), &contended[..], Some(problem(&removed))),
        ] {
            assert_eq!(network_config(chained, &kubeconfig, contended), expected);
        }
    }
}
