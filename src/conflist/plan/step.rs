//! A plan of changes of the network configs, and its steps.

use std::collections::BTreeMap;

use crate::conflist::net_dir::ConfigFile;
use crate::conflist::saved_state::Original;
use crate::files::FileAccess;

/// What to change in the network configs, and what is wrong with them.
#[derive(Debug, Default)]
pub struct Plan {
    /// Steps that chain the plugin, in this order.
    pub steps: Vec<Step>,
    /// Steps that remove what another mode left. Empty until the network config of this mode is
    /// correct.
    pub unchain_steps: Vec<Step>,
    /// Whether `SavedState::only_config` is outdated, and has to be saved before the unchain steps.
    pub saves_only_config: bool,
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
    /// Replaces the text of the conflist `name`, to add or to remove the plugin entry. If the
    /// conflist is written in the place of a symbolic link, `original` is that link.
    Replace { name: String, text: String, original: Option<Original> },
    /// Writes the conflist `conflist`, then removes the `original`, the `.conf` or `.json` from
    /// which the conflist is made.
    Convert { conflist: String, text: String, original: Original },
    /// Writes the standalone config `name`.
    WriteStandalone { name: String, text: String, access: FileAccess },
    /// Restores the file that `conflist` was made from, then removes `conflist`.
    Restore { conflist: String, original: Original },
    /// Removes the file `name`. Either only agents write this file, or the file from which it was
    /// made exists again.
    Remove { name: String },
}

impl Step {
    pub(super) fn remove(file: &ConfigFile) -> Step {
        Step::Remove { name: file.name.clone() }
    }

    /// Returns the name of the network config to which the step adds the plugin entry, or from
    /// which it removes the entry.
    pub fn target(&self) -> &str {
        match self {
            Step::Convert { conflist, .. } | Step::Restore { conflist, .. } => conflist,
            Step::Replace { name, .. }
            | Step::WriteStandalone { name, .. }
            | Step::Remove { name } => name,
        }
    }

    /// Returns the name of the file whose network config the step changes. A conversion reads the
    /// original file; every other step reads the file that it changes.
    pub fn source(&self) -> &str {
        match self {
            Step::Convert { original, .. } => &original.name,
            step => step.target(),
        }
    }
}
