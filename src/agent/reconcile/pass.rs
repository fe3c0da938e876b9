//! What one look at the host came to.

use std::collections::BTreeMap;
use std::time::Instant;

/// What readiness is about; also the subjects of what is logged about it.
pub const BINARY: &str = "binary";
pub const KUBECONFIG: &str = "kubeconfig";
pub const CREDENTIAL: &str = "credential";
pub const CONFLIST: &str = "network configuration";
/// The TokenRequests for the plugin's account.
pub(super) const PLUGIN_TOKEN: &str = "plugin token";
pub(super) const BIN_DIR: &str = "bin dir";
pub(super) const LEFTOVERS: &str = "leftovers";
pub const SELF_TEST: &str = "self-test";

/// What one look came to.
#[derive(Debug, Default)]
pub struct Pass {
    /// Something was written, which the next look is to verify.
    pub wrote: bool,
    /// When to look again at the latest.
    pub again: Option<Instant>,
    /// Somebody takes our entry out again and again.
    pub fight: bool,
    /// The installed plugin is being tried.
    pub pending: bool,
    /// The kubeconfig carries the agent's own token.
    pub agents_token: bool,
    /// What `/ready` adds to its 200.
    pub remark: Option<String>,
    /// What is missing for a moment at each start, by subject: not ready, and not logged.
    pub waits: BTreeMap<String, String>,
    /// What is wrong, by subject.
    pub problems: BTreeMap<String, String>,
    /// What may be wrong, by subject: said like the problems, but waited for no sooner.
    pub doubts: BTreeMap<String, String>,
}

impl Pass {
    pub(super) fn problem(&mut self, subject: &str, why: impl ToString) {
        self.problems.insert(subject.to_owned(), why.to_string());
    }

    pub(super) fn wait_for(&mut self, subject: &str, why: impl ToString) {
        self.waits.insert(subject.to_owned(), why.to_string());
    }

    /// Whether `subject` is wrong or still missing.
    pub(super) fn is_wrong(&self, subject: &str) -> bool {
        self.problems.contains_key(subject) || self.waits.contains_key(subject)
    }

    /// Asks for the next look to be at `when`, or sooner.
    pub(super) fn look_again(&mut self, when: Instant) {
        self.again = Some(self.again.map_or(when, |again| again.min(when)));
    }

    /// All that is worth a log line.
    pub fn said(&self) -> BTreeMap<String, String> {
        let mut said = self.doubts.clone();
        said.extend(self.problems.clone());
        said
    }

    /// Ready only if all were right and nothing had to be written for it.
    pub fn ready(&self) -> Result<(), String> {
        let wrong: Vec<String> = [BINARY, KUBECONFIG, CREDENTIAL, CONFLIST, SELF_TEST]
            .iter()
            .filter_map(|subject| {
                let problem = self.problems.get(*subject);
                let why = problem.or_else(|| self.waits.get(*subject))?;
                Some(format!("{subject}: {why}"))
            })
            .collect();
        match wrong.is_empty() {
            false => Err(wrong.join("; ")),
            true if self.wrote => Err("just written, to be verified".into()),
            true if self.pending => Err(format!("{SELF_TEST}: the plugin is being tried")),
            true => Ok(()),
        }
    }
}
