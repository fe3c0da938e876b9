//! The result of one reconcile pass, and the text of `/ready`.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::agent::readiness::StatusBody;
use crate::agent::subject::Subject;
use crate::conflist::Entry;

/// What one reconcile pass found and did.
#[derive(Debug, Default)]
pub struct PassResult {
    /// The pass wrote to the host. The next pass verifies the write.
    pub wrote: bool,
    /// Latest time of the next pass, if earlier than the resync.
    pub next: Option<Instant>,
    /// A newer agent of this project runs on this node, so its files stay in use.
    pub(super) newer_agent_runs: bool,
    /// Plugin binary and kubeconfig of an upstream agent stay in use.
    pub(super) keeps_upstream_files: bool,
    /// No other agent of this project writes during the pass.
    pub(super) holds_lock: bool,
    /// The plugin entry of the other agent that stays in use.
    pub(super) yielded_entry: Option<Entry>,
    /// Another program keeps overwriting a file of this agent.
    pub contention: bool,
    /// The self-test of the installed plugin is still running.
    pub self_test_running: bool,
    /// The last TokenRequest for the plugin's ServiceAccount failed.
    pub token_request_failed: bool,
    /// Name of the network config through which the runtime calls the plugin, if it calls the plugin.
    pub conflist: Option<String>,
    /// When the token in the kubeconfig expires, if it does.
    pub token_expires: Option<SystemTime>,
    /// Texts that `/ready` adds to a response of 200.
    pub ready_notes: Vec<String>,
    /// Things that are normally missing right after a start, such as a token, by subject. The node
    /// is not ready, but nothing is logged.
    pub waits: BTreeMap<Subject, String>,
    /// Problems by subject. A problem is logged and shortens the time to the next pass. It makes
    /// the node not ready if its subject is in [`Subject::DECIDE_READINESS`].
    pub problems: BTreeMap<Subject, String>,
    /// Possible problems by subject. Logged like problems, but without effect on readiness and
    /// on the time of the next pass.
    pub warnings: BTreeMap<Subject, String>,
}

impl PassResult {
    pub(super) fn problem(&mut self, subject: Subject, why: impl ToString) {
        self.problems.insert(subject, why.to_string());
    }

    pub(super) fn warn(&mut self, subject: Subject, why: impl ToString) {
        self.warnings.insert(subject, why.to_string());
    }

    pub(super) fn wait_for(&mut self, subject: Subject, why: impl ToString) {
        self.waits.insert(subject, why.to_string());
    }

    /// Records that the last TokenRequest failed. A node without any token is not ready for
    /// another subject.
    pub(super) fn token_request_failed(&mut self, why: String) {
        self.token_request_failed = true;
        if !self.problems.contains_key(&Subject::Kubeconfig) {
            self.ready_notes.push(why.clone());
            self.warn(Subject::TokenRequest, why);
        }
    }

    /// Returns whether `subject` has a problem or is still missing.
    pub(super) fn is_unready(&self, subject: &Subject) -> bool {
        self.problems.contains_key(subject) || self.waits.contains_key(subject)
    }

    /// Schedules the next pass for `when` or earlier.
    pub(super) fn schedule_next(&mut self, when: Instant) {
        self.next = Some(self.next.map_or(when, |next| next.min(when)));
    }

    /// Returns all that is logged, by subject. A problem wins over a warning.
    pub fn logged(&self) -> BTreeMap<String, String> {
        let all = self.warnings.iter().chain(&self.problems);
        all.map(|(subject, why)| (subject.to_string(), why.clone())).collect()
    }

    /// Returns what `/ready` and `/status` show of this pass. `not_ready` is the error of
    /// [`PassResult::ready`].
    pub(super) fn status_body(&self, not_ready: Option<String>) -> StatusBody {
        let expires = self.token_expires.and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        StatusBody {
            not_ready,
            note: (!self.ready_notes.is_empty()).then(|| self.ready_notes.join("; ")),
            conflist: self.conflist.clone(),
            token_expires: expires.map(|time| time.as_secs()),
            contention: self.contention,
            problems: self.logged(),
            ..StatusBody::default()
        }
    }

    /// Returns the state for `/ready`. The node is ready if no deciding subject has a problem
    /// or is missing, and this pass wrote nothing.
    ///
    /// # Errors
    /// Names each subject with a problem, and why.
    pub fn ready(&self) -> Result<(), String> {
        let unready: Vec<String> = Subject::DECIDE_READINESS
            .iter()
            .filter_map(|subject| {
                let problem = self.problems.get(subject);
                let why = problem.or_else(|| self.waits.get(subject))?;
                Some(format!("{subject}: {why}"))
            })
            .collect();
        match unready.is_empty() {
            false => Err(unready.join("; ")),
            true if self.wrote => Err("files were just written and are not verified yet".into()),
            true if self.self_test_running => Err(format!("{}: still running", Subject::SelfTest)),
            true => Ok(()),
        }
    }
}
