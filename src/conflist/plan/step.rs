//! A plan, and its steps: the changes of the network configs.

use std::collections::BTreeMap;

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::saved_state::Original;
use crate::files::FileAccess;

/// What to write, and what is wrong with the network configs.
#[derive(Debug, Default)]
pub struct Plan {
    /// Steps that chain the plugin, in this order.
    pub steps: Vec<Step>,
    /// Removes what another mode left, once the file of this mode is correct.
    pub unchain_steps: Vec<Step>,
    /// Whether `SavedState::only` is outdated. It is saved before the unchain steps.
    pub saves_only: bool,
    /// Files to which the plugin cannot be chained, each with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Why the network config of this mode lacks the current plugin entry, or why containerd loads
    /// no network config. The agent is not ready while this is set.
    pub not_chained: Option<String>,
    /// What an operator should check, as the agent cannot tell whether it is a problem.
    pub warning: Option<String>,
}

/// One change of the network configs. An install and an uninstall are lists of steps.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Replaces the text of the conflist `name`, to add or to remove the plugin entry. `original`
    /// is the symbolic link in whose place the conflist is written.
    Replace { name: String, text: String, original: Option<Original> },
    /// Writes the conflist `conflist`, then removes the single plugin that it is made from.
    Convert { conflist: String, text: String, original: Original },
    /// Writes the standalone config `name`.
    WriteStandalone { name: String, text: String, access: FileAccess },
    /// Restores the file that `conflist` was made from, then removes `conflist`.
    Restore { conflist: String, original: Original },
    /// Removes `name`. Either only the agent writes this file, or the file that it was made from
    /// exists again.
    Remove { name: String },
}

impl Step {
    pub(super) fn remove(file: &ConfigFile) -> Step {
        Step::Remove { name: file.name.clone() }
    }

    /// Returns the name of the network config that has the plugin entry, or gets it.
    pub fn target(&self) -> &str {
        match self {
            Step::Convert { conflist, .. } | Step::Restore { conflist, .. } => conflist,
            Step::Replace { name, .. }
            | Step::WriteStandalone { name, .. }
            | Step::Remove { name } => name,
        }
    }

    /// Returns the name of the file that the step takes the network config from.
    pub fn source(&self) -> &str {
        match self {
            Step::Convert { original, .. } => &original.name,
            step => step.target(),
        }
    }
}
