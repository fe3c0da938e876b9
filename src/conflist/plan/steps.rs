//! The plan: files to write, files to restore, and why a node is not ready.

use std::collections::{BTreeMap, BTreeSet};

use crate::conflist::saved_state::Origin;
use crate::files::Access;

/// The fewest writes that chain the plugin.
#[derive(Debug, Default)]
pub struct Chaining {
    pub steps: Vec<Step>,
    /// Removes what another mode left, and a copy whose network config is gone. Leftovers of
    /// another mode are only removed once the file of this mode is correct.
    pub undo: Vec<UnchainStep>,
    /// Files that are left unchanged, each with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Conflists that have the plugin entry, or will have it after `steps`.
    pub lists: BTreeSet<String>,
    /// Why the network config of this mode lacks the current plugin entry. The agent is not ready
    /// while this is set.
    pub unchained: Option<String>,
    /// What an operator should check, as the agent cannot tell whether it is a problem.
    pub doubt: Option<String>,
}

impl Chaining {
    /// Returns why `name` was skipped, in brackets, or nothing.
    pub(super) fn skip_reason(&self, name: &str) -> String {
        let reason = self.skipped.get(name);
        reason.map_or_else(String::new, |reason| format!(" ({reason})"))
    }
}

/// One file to write.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Replaces the conflist `name` with `text`.
    Patch { name: String, text: String },
    /// Writes the conflist `list`, then removes `conf`, the single plugin it is made from.
    Convert {
        conf: String,
        list: String,
        text: String,
        /// `text` without the plugin entry.
        bare: String,
    },
    /// Writes `name`, a file that only the agent writes: a standalone config, or a copy of `of`.
    Own { name: String, text: String, access: Access, of: Option<String> },
}

impl Step {
    /// Returns the name of the file that the step reads.
    pub fn source(&self) -> &str {
        match self {
            Step::Patch { name, .. } | Step::Own { name, .. } => name,
            Step::Convert { conf, .. } => conf,
        }
    }

    /// Returns the name of the network config that the step writes.
    pub fn list(&self) -> &str {
        match self {
            Step::Patch { name, .. } | Step::Own { name, .. } => name,
            Step::Convert { list, .. } => list,
        }
    }
}

/// How to unchain the plugin from one network config.
#[derive(Debug, PartialEq, Eq)]
pub enum UnchainStep {
    /// Replaces `name` with `text`, the conflist without the plugin entry.
    Cut { name: String, text: String },
    /// Restores the file that the conflist `list` was made from.
    Restore { list: String, origin: Origin },
    /// Removes `list`. Either only the agent writes this file, or the file that it was made from
    /// exists again.
    Drop { list: String },
}

impl UnchainStep {
    /// Returns the name of the network config that has the plugin entry.
    pub fn list(&self) -> &str {
        match self {
            UnchainStep::Cut { name, .. } => name,
            UnchainStep::Restore { list, .. } | UnchainStep::Drop { list } => list,
        }
    }
}
