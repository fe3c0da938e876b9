//! Contention with another agent that overwrites the plugin binary, the kubeconfig or the
//! plugin entry, such as an agent of another release on the same node.
//!
//! Each further write is delayed, as for a removed plugin entry ([`contention`]). The node
//! stays ready as long as every file is right. Otherwise the rollout of the next release
//! would wait in vain for its agent to become ready.
//!
//! [`contention`]: crate::agent::contention

use std::path::Path;
use std::time::Instant;

use super::{BINARY, KUBECONFIG, Pass, Reconciler};

impl Reconciler {
    /// Returns whether the file at `path` must not be written in this pass, because `content`
    /// was written there too often. Records the problem and the time of the next attempt in
    /// `pass`.
    pub(super) fn is_write_delayed(
        &self,
        subject: &str,
        path: &Path,
        content: &str,
        pass: &mut Pass,
    ) -> bool {
        let now = Instant::now();
        let Some(until) = self.overwrites.blocked_until(subject, content, now) else {
            return false;
        };
        pass.schedule_next(until);
        pass.problem(subject, overwritten(path));
        true
    }

    /// Adds a warning for every file that another agent keeps overwriting, even if the file is
    /// right at the moment.
    pub(super) fn warn_of_overwrites(&self, pass: &mut Pass) {
        for (subject, over) in self.overwrites.active(Instant::now()) {
            let path = match subject {
                KUBECONFIG => self.settings.kubeconfig(),
                BINARY => self.settings.bin_dir.clone(),
                conflist => self.settings.net_dir.join(conflist),
            };
            pass.contention = true;
            pass.schedule_next(over);
            pass.warn(subject, overwritten(&path));
        }
    }
}

/// Message about contention over `path`, with the remedy.
fn overwritten(path: &Path) -> String {
    format!(
        "what was written to {} is soon another, again and again: stop the other program that \
         writes there, such as a second agent with another image or service account",
        path.display()
    )
}
