//! The plan: files to write, files to restore, and why a node is not ready.

use std::collections::{BTreeMap, BTreeSet};

use crate::conflist::saved_state::Original;
use crate::files::FileAccess;

/// Which files to write and to restore, and why the node is not ready.
#[derive(Debug, Default)]
pub struct Plan {
    /// Files to write, in this order.
    pub steps: Vec<ChainStep>,
    /// Removes what another mode left, and a copy whose original is missing. Leftovers of another
    /// mode are removed only once the file of this mode is correct.
    pub unchain_steps: Vec<UnchainStep>,
    /// Names of the files that are left unchanged, each with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Names of the conflists that have the plugin entry, or will have it after `steps`.
    pub conflists: BTreeSet<String>,
    /// Why the network config of this mode lacks the current plugin entry. The agent is not ready
    /// while this is set.
    pub not_chained: Option<String>,
    /// What an operator should check, as the agent cannot tell whether it is a problem.
    pub warning: Option<String>,
}

impl Plan {
    /// Returns why `name` was skipped, in brackets, or nothing.
    pub(super) fn skip_reason(&self, name: &str) -> String {
        let reason = self.skipped.get(name);
        reason.map_or_else(String::new, |reason| format!(" ({reason})"))
    }
}

/// One file to write.
#[derive(Debug, PartialEq, Eq)]
pub enum ChainStep {
    /// Replaces the conflist `name` with `text`, which has the plugin entry.
    AddEntry { name: String, text: String },
    /// Writes the conflist `conflist`, then removes `conf`, the single plugin it is made from.
    Convert {
        conf: String,
        conflist: String,
        text: String,
        /// `text` without the plugin entry.
        without_entry: String,
    },
    /// Writes `name`, a file that only the agent writes: a standalone config, or a copy of
    /// the network config `copied_from`.
    WriteOwnConfig { name: String, text: String, access: FileAccess, copied_from: Option<String> },
}

impl ChainStep {
    /// Returns the name of the file that the step reads.
    pub fn source(&self) -> &str {
        match self {
            ChainStep::AddEntry { name, .. } | ChainStep::WriteOwnConfig { name, .. } => name,
            ChainStep::Convert { conf, .. } => conf,
        }
    }

    /// Returns the name of the network config that the step writes.
    pub fn target(&self) -> &str {
        match self {
            ChainStep::AddEntry { name, .. } | ChainStep::WriteOwnConfig { name, .. } => name,
            ChainStep::Convert { conflist, .. } => conflist,
        }
    }
}

/// How to unchain the plugin from one network config.
#[derive(Debug, PartialEq, Eq)]
pub enum UnchainStep {
    /// Replaces `name` with `text`, the conflist without the plugin entry.
    RemoveEntry { name: String, text: String },
    /// Restores the file that `conflist` was made from.
    Restore { conflist: String, original: Original },
    /// Removes `name`. Either only the agent writes this file, or the file that it was made from
    /// exists again.
    RemoveFile { name: String },
}

impl UnchainStep {
    /// Returns the name of the network config that has the plugin entry.
    pub fn file_name(&self) -> &str {
        match self {
            UnchainStep::RemoveEntry { name, .. } | UnchainStep::RemoveFile { name } => name,
            UnchainStep::Restore { conflist, .. } => conflist,
        }
    }
}
