//! Judges whether the node is ready, from what a reconcile pass found and did. Pure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use crate::agent::contention::ContendedFile;
use crate::agent::self_test::TestOutcome;
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
    /// Logged, and shortens the time to the next pass. Makes the node not ready if its subject is in
    /// [`Subject::DECIDE_READINESS`].
    Problem(String),
}

use Finding::{Problem, Waiting, Warning};

/// What a step of the install did, and when it is due again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The step wrote to the host. The next pass verifies the write.
    pub wrote: bool,
    /// Latest time of the next pass, if earlier than the resync.
    pub next: Option<Instant>,
}

impl Progress {
    /// Schedules the next pass for `when` or earlier.
    pub fn schedule_next(&mut self, when: Instant) {
        self.next = Some(self.next.map_or(when, |next| next.min(when)));
    }

    fn and(mut self, other: Progress) -> Progress {
        self.wrote |= other.wrote;
        other.next.into_iter().for_each(|when| self.schedule_next(when));
        self
    }
}

/// What the step of the plugin binaries came to.
#[derive(Debug, Default)]
pub struct BinaryOutcome {
    /// Why the binaries on the host are not those of the image.
    pub problem: Option<String>,
    pub progress: Progress,
}

/// What the step of the kubeconfig came to.
#[derive(Debug, Default)]
pub struct KubeconfigOutcome {
    /// Why the kubeconfig on the host is not in place.
    pub missing: Option<Finding>,
    /// What the API server says of the token in the kubeconfig.
    pub token: Option<Finding>,
    /// Why the last TokenRequest for the plugin's ServiceAccount failed.
    pub token_request: Option<String>,
    /// Why the API server's host name cannot be resolved, while the plugin keeps its last address.
    pub server_address: Option<String>,
    pub progress: Progress,
}

/// What the steps of the network configs came to.
#[derive(Debug, Default)]
pub struct ChainOutcome {
    /// Why the net dir cannot be read, or the saved state not be written.
    pub error: Option<String>,
    /// Why the network config of this mode lacked the plugin entry before the steps.
    pub not_chained: Option<String>,
    /// A step wrote the plugin entry. The next pass verifies that.
    pub has_chained: bool,
    pub warning: Option<String>,
    /// Why the bin dir is probably not the one in which the runtime looks for plugins.
    pub directories: Option<String>,
    pub saved_state: Option<String>,
    /// Files of earlier agents that cannot be removed, and why.
    pub leftovers: Vec<String>,
    /// Network configs that are skipped or cannot be written, and why.
    pub files: BTreeMap<PathBuf, String>,
    /// Name of the network config through which the runtime calls the plugin, if it calls the plugin.
    pub conflist: Option<String>,
    /// What `/ready` says of the other agent to whose plugin entry this agent yields.
    pub yields_to: Option<String>,
    pub yielded_entry: Option<Entry>,
    pub progress: Progress,
}

/// What one reconcile pass found and did.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Why a CNI directory is no longer the node's.
    pub stale_mount: Option<String>,
    pub binary: BinaryOutcome,
    pub kubeconfig: KubeconfigOutcome,
    pub chain: ChainOutcome,
    /// When the token in the kubeconfig on the host expires, if it does, in seconds since 1970.
    pub token_expires: Option<u64>,
    /// The files that another program keeps overwriting, also if they are correct at the moment.
    pub contended: Vec<ContendedFile>,
    /// `None` if no self-test is due.
    pub self_test: Option<SelfTestOutcome>,
    /// The node's pods were not listed yet, nor could that fail. Until then, a pod whose annotations
    /// say nothing of its proxy may start without rules.
    pub lacks_pods: bool,
    /// Progress of what is not a step.
    pub progress: Progress,
}

/// What is known of the installed plugin.
#[derive(Debug)]
pub enum SelfTestOutcome {
    Running,
    Ended(TestOutcome),
}

impl Outcomes {
    pub fn progress(&self) -> Progress {
        let steps = [self.binary.progress, self.kubeconfig.progress, self.chain.progress];
        steps.into_iter().fold(self.progress, Progress::and)
    }

    /// Returns whether binary, kubeconfig and network configs are correct, and this pass did not
    /// change them.
    pub fn is_installed(&self) -> bool {
        let parts = [&self.binary.problem, &self.stale_mount, &self.network_config()];
        !self.progress().wrote
            && self.kubeconfig.missing.is_none()
            && parts.iter().all(|part| part.is_none())
    }

    /// Returns why the runtime does not call the plugin with the right entry, or soon may not.
    fn network_config(&self) -> Option<String> {
        let removals = self.contended.iter().filter(|file| file.is_plugin_entry());
        let removals: Vec<String> = removals.map(ToString::to_string).collect();
        match &self.chain {
            ChainOutcome { error: Some(error), .. } => Some(error.clone()),
            _ if !removals.is_empty() => Some(removals.join("; ")),
            ChainOutcome { has_chained: true, .. } => None,
            ChainOutcome { not_chained, .. } => not_chained.clone(),
        }
    }

    fn findings(&self) -> Vec<(Subject, Finding)> {
        let Outcomes { binary, kubeconfig, chain, .. } = self;
        let mut findings = Vec::new();
        let mut add = |subject, finding: Option<Finding>| {
            findings.extend(finding.map(|finding| (subject, finding)));
        };
        add(Subject::Mounts, self.stale_mount.clone().map(Problem));
        add(Subject::Binary, binary.problem.clone().map(Problem));
        add(Subject::Kubeconfig, kubeconfig.missing.clone());
        add(Subject::KubeconfigToken, self.token());
        add(Subject::TokenRequest, self.token_request().map(Warning));
        add(Subject::ServerAddress, kubeconfig.server_address.clone().map(Warning));
        add(Subject::NetworkConfig, chain.warning.clone().map(Warning));
        // Without a kubeconfig the plugin is not chained. The missing kubeconfig is the cause, so
        // the unchained network config is not logged too.
        let not_chained = self.network_config().map(match kubeconfig.missing {
            Some(Waiting(_)) => Waiting,
            _ => Problem,
        });
        add(Subject::NetworkConfig, not_chained);
        add(Subject::Directories, chain.directories.clone().map(Warning));
        add(Subject::SavedState, chain.saved_state.clone().map(Problem));
        let leftovers = chain.leftovers.join("; ");
        add(Subject::Leftovers, (!leftovers.is_empty()).then_some(Problem(leftovers)));
        for (path, why) in &chain.files {
            add(Subject::File(path.clone()), Some(Problem(why.clone())));
        }
        for file in self.contended.iter().filter(|file| !file.is_plugin_entry()) {
            add(file.subject(), Some(Warning(file.to_string())));
        }
        if let Some(SelfTestOutcome::Ended(TestOutcome::Failed(why))) = &self.self_test {
            add(Subject::SelfTest, Some(Problem(why.clone())));
        }
        let unlisted = "the pods of this node are not listed yet";
        add(Subject::PodCopy, self.lacks_pods.then(|| Waiting(unlisted.to_owned())));
        findings
    }

    /// Returns why the last TokenRequest failed, unless the kubeconfig is missing for that reason.
    fn token_request(&self) -> Option<String> {
        let request = self.kubeconfig.token_request.clone();
        request.filter(|why| self.kubeconfig.missing != Some(Problem(why.clone())))
    }

    fn token(&self) -> Option<Finding> {
        let token = self.kubeconfig.token.clone()?;
        Some(match (token, self.token_request()) {
            (Problem(why), Some(request)) => Problem(format!("{why}; {request}")),
            (token, _) => token,
        })
    }

    /// Returns the texts that `/ready` adds to a response of 200.
    fn notes(&self) -> Vec<String> {
        let untested = match &self.self_test {
            Some(SelfTestOutcome::Ended(TestOutcome::Passed { untested, .. })) => untested.clone(),
            Some(SelfTestOutcome::Ended(TestOutcome::Skipped(why))) => {
                Some(format!("self-test skipped: {why}"))
            }
            _ => None,
        };
        let notes = [self.token_request(), self.chain.yields_to.clone(), untested];
        notes.into_iter().flatten().collect()
    }
}

/// What follows from one reconcile pass.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Why the node is not ready: names each subject that decides it.
    pub not_ready: Option<String>,
    /// Texts that `/ready` adds to a response of 200.
    pub notes: Vec<String>,
    pub findings: Vec<(Subject, Finding)>,
    /// Another program keeps overwriting a file of this agent.
    pub contention: bool,
    pub progress: Progress,
}

impl Readiness {
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
}

/// Judges a pass. The node is ready if no deciding subject has a problem or is missing, and the pass
/// wrote nothing.
pub fn judge(outcomes: &Outcomes) -> Readiness {
    let findings = outcomes.findings();
    let progress = outcomes.progress();
    let unready: Vec<String> = Subject::DECIDE_READINESS
        .iter()
        .filter_map(|decider| {
            findings.iter().find_map(|(subject, finding)| match finding {
                Problem(why) | Waiting(why) if subject == decider => {
                    Some(format!("{subject}: {why}"))
                }
                _ => None,
            })
        })
        .collect();
    let not_ready = match &outcomes.self_test {
        _ if !unready.is_empty() => Some(unready.join("; ")),
        _ if progress.wrote => Some("files were just written and are not verified yet".into()),
        Some(SelfTestOutcome::Running) => Some(format!("{}: still running", Subject::SelfTest)),
        _ => None,
    };
    let contention = !outcomes.contended.is_empty();
    Readiness { not_ready, notes: outcomes.notes(), findings, contention, progress }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(not_chained: Option<&str>) -> ChainOutcome {
        ChainOutcome { not_chained: not_chained.map(str::to_owned), ..ChainOutcome::default() }
    }

    fn kubeconfig(missing: Option<Finding>, token: Option<Finding>) -> KubeconfigOutcome {
        KubeconfigOutcome { missing, token, ..KubeconfigOutcome::default() }
    }

    #[test]
    fn readiness_names_each_part_of_the_node_that_is_not_in_place() {
        let text = |text: &str| Some(text.to_owned());
        let entry = ContendedFile::PluginEntry("/net/a".into());
        let removed = format!("network config: {entry}");
        for (outcomes, expected, logged) in [
            (Outcomes::default(), None, &[][..]),
            (
                Outcomes {
                    kubeconfig: kubeconfig(Some(Waiting("no token".into())), None),
                    chain: chain(Some("no entry")),
                    ..Outcomes::default()
                },
                Some("kubeconfig: no token; network config: no entry"),
                &[],
            ),
            (
                Outcomes { chain: chain(Some("no entry")), ..Outcomes::default() },
                Some("network config: no entry"),
                &["network config"],
            ),
            (
                Outcomes {
                    chain: ChainOutcome { has_chained: true, ..chain(Some("no entry")) },
                    ..Outcomes::default()
                },
                None,
                &[],
            ),
            (
                Outcomes {
                    contended: vec![entry, ContendedFile::Binaries("/bin".into())],
                    ..Outcomes::default()
                },
                Some(&*removed),
                &["binary", "network config"],
            ),
            (
                Outcomes {
                    kubeconfig: KubeconfigOutcome {
                        token_request: text("HTTP 403"),
                        ..kubeconfig(None, Some(Problem("rejected".into())))
                    },
                    ..Outcomes::default()
                },
                Some("kubeconfig token: rejected; HTTP 403"),
                &["TokenRequest", "kubeconfig token"],
            ),
            (
                Outcomes {
                    kubeconfig: KubeconfigOutcome {
                        token_request: text("HTTP 403"),
                        ..kubeconfig(Some(Problem("disk is full".into())), None)
                    },
                    ..Outcomes::default()
                },
                Some("kubeconfig: disk is full"),
                &["TokenRequest", "kubeconfig"],
            ),
            (
                Outcomes {
                    kubeconfig: KubeconfigOutcome {
                        token_request: text("HTTP 403"),
                        ..kubeconfig(Some(Problem("HTTP 403".into())), None)
                    },
                    ..Outcomes::default()
                },
                Some("kubeconfig: HTTP 403"),
                &["kubeconfig"],
            ),
            (
                Outcomes { lacks_pods: true, ..Outcomes::default() },
                Some("copy of the pods: the pods of this node are not listed yet"),
                &[],
            ),
            (
                Outcomes { self_test: Some(SelfTestOutcome::Running), ..Outcomes::default() },
                Some("self-test: still running"),
                &[],
            ),
            (
                Outcomes {
                    binary: BinaryOutcome {
                        progress: Progress { wrote: true, next: None },
                        ..BinaryOutcome::default()
                    },
                    ..Outcomes::default()
                },
                Some("files were just written and are not verified yet"),
                &[],
            ),
        ] {
            let readiness = judge(&outcomes);
            assert_eq!(readiness.not_ready.as_deref(), expected, "{outcomes:?}");
            assert_eq!(readiness.logged().into_keys().collect::<Vec<_>>(), logged, "{outcomes:?}");
        }
    }
}
