//! Delays writes during contention, and reports it in the log, in `/ready` and as an Event.
//!
//! There are two kinds ([`contention`] detects both):
//! - Another program removes the plugin entry from a conflist. Meshed pods may then start without
//!   redirect rules, so the node is not ready.
//! - Another agent overwrites the plugin binary, the kubeconfig or the plugin entry, such as an
//!   agent of another release on the same node. The node stays ready while every file is correct: a
//!   rollout waits until the new agent is ready, and that agent would never become ready while the
//!   old agent runs.
//!
//! [`contention`]: crate::agent::contention

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{PassResult, Reconciler};
use crate::agent::api::event_queue::Event;
use crate::agent::contention::OVERWRITTEN;
use crate::agent::subject::Subject;
use crate::kube::event::{EventContent, EventType};

impl Reconciler {
    /// Returns whether the file at `path` must not be written in this pass, because the write with
    /// this `key` ([`blocked_until`]) was repeated too often. Records the problem and the time of
    /// the next attempt in `pass`.
    ///
    /// [`blocked_until`]: crate::agent::contention::Contention::blocked_until
    pub(super) fn is_write_delayed(
        &self,
        subject: Subject,
        path: &Path,
        key: &str,
        pass: &mut PassResult,
    ) -> bool {
        let now = Instant::now();
        let Some(until) = self.overwrites.blocked_until(&subject, key, now) else {
            return false;
        };
        pass.schedule_next(until);
        pass.problem(subject, file_overwritten(path));
        true
    }

    /// Adds a warning for every file that another agent keeps overwriting, even if the file is
    /// correct at the moment.
    pub(super) fn warn_of_overwrites(&self, pass: &mut PassResult) {
        for (subject, over_at) in self.overwrites.active(Instant::now()) {
            pass.contention = true;
            pass.schedule_next(over_at);
            pass.warn(subject.clone(), file_overwritten(&self.path_of(subject)));
        }
    }

    /// Adds a problem that names every conflist from which another program keeps removing the
    /// plugin entry.
    pub(super) fn report_entry_removals(&self, pass: &mut PassResult) {
        let mut removals = Vec::new();
        for (conflist, over_at) in self.entry_removals.active(Instant::now()) {
            pass.contention = true;
            pass.schedule_next(over_at);
            removals.push(entry_removed(&self.path_of(conflist)));
        }
        if !removals.is_empty() {
            pass.problem(Subject::NetworkConfig, removals.join("; "));
        }
    }

    /// Posts an Event on the agent's pod about the removals from the conflist at `path`.
    pub(super) fn post_entry_removal_event(&self, path: &Path) {
        self.post_contention_event(entry_removed(path));
    }

    /// Posts an Event on the agent's pod about another agent that overwrites `path`.
    pub(super) fn post_overwrite_event(&self, path: &Path) {
        self.post_contention_event(file_overwritten(path));
    }

    fn post_contention_event(&self, note: String) {
        self.api.report_event(Event::OnAgentPod(EventContent {
            kind: EventType::Warning,
            reason: "LinkerdCNIContention",
            action: "Chaining",
            note,
        }));
    }

    /// Path of the file that another program overwrites. For plugin binaries: their directory,
    /// because the agent may install several.
    fn path_of(&self, subject: &Subject) -> PathBuf {
        match subject {
            Subject::File(path) => path.clone(),
            Subject::Kubeconfig => self.settings.kubeconfig(),
            _ => self.settings.node.bin_dir.clone(),
        }
    }
}

/// Message about another agent that overwrites `path`, with the remedy.
fn file_overwritten(path: &Path) -> String {
    format!(
        "{} {OVERWRITTEN}: stop that writer, such as a second agent \
         with another image or ServiceAccount",
        path.display()
    )
}

/// Message about another program that removes the plugin entry from the conflist at `path`, with
/// the remedy.
fn entry_removed(path: &Path) -> String {
    format!(
        "{} {OVERWRITTEN}, which removes the plugin entry, so meshed \
         pods may start without redirect rules: with Cilium set cni.exclusive=false, otherwise \
         stop that writer",
        path.display()
    )
}
