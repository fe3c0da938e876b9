//! The saved state: the original files that uninstall cannot restore from a conflist alone.
//!
//! Cutting the plugin entry out of a conflist restores its original bytes, so most conflists are
//! not in the saved state. It holds:
//!
//! - conflists that were made from a `.conf`, or that replaced a symbolic link
//! - names of files that only the agent writes, which look like any network config
//!
//! The file lies in the CNI net dir, so that it outlives the agent, and is written before the
//! conflist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::files::Access;

/// File name in the CNI net dir. Runtimes ignore it for its extension.
pub const NAME: &str = ".linkerd-cni-state";

/// Version of the file format. A file with a higher version is not used.
const VERSION: u32 = 1;

/// The saved state of a node, keyed by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    version: u32,
    /// Conflists with the original that each was made from.
    pub lists: BTreeMap<String, Origin>,
    /// Files that only the agent writes. The value names the original if the file is a copy.
    #[serde(default)]
    pub own: BTreeMap<String, Option<String>>,
    /// Whether the file on the host exists but reading it failed. Then it must not be overwritten.
    #[serde(skip)]
    pub unread: bool,
}

/// The file that a conflist was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The conflist without the plugin entry. While this matches, no other program wrote it.
    pub bare: String,
    /// `bare` of the conflist that this one replaces. If the agent is killed before it writes the
    /// new conflist, the old one remains and matches this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// Name of the original file.
    pub name: String,
    pub content: OriginalContent,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What the original file was: a regular file with this text, or a link to this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginalContent {
    Text(String),
    Link(PathBuf),
}

impl Origin {
    /// Returns mode and owner of the original file.
    pub fn access(&self) -> Access {
        Access { mode: self.mode, uid: self.uid, gid: self.gid }
    }
}

impl SavedState {
    /// Reads the saved state in `dir`. Without a usable file it is empty, and unless the file is
    /// just missing, the reason is returned too.
    pub fn load(dir: &Path) -> (SavedState, Option<String>) {
        let path = dir.join(NAME);
        let empty = |unread| SavedState { unread, ..SavedState::default() };
        let bytes = match files::read(&path) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.is_missing() => return (empty(false), None),
            Err(error) => {
                let unread = matches!(error, files::Error::Io { .. });
                return (empty(unread), Some(error.to_string()));
            }
        };
        match serde_json::from_slice::<SavedState>(&bytes) {
            Ok(saved) if saved.version <= VERSION => (saved, None),
            _ => {
                let why = format!("{} is not readable", path.display());
                (empty(false), Some(why))
            }
        }
    }

    /// Writes the saved state into `dir`, readable only for root: a network config can hold
    /// credentials.
    ///
    /// # Errors
    /// Fails if the write fails, or if the existing file is not readable.
    pub fn save(&mut self, dir: &Path) -> Result<(), files::Error> {
        if self.unread {
            return Err(files::Error::Unfit {
                path: dir.join(NAME),
                what: "cannot be read, so nothing is noted in it",
            });
        }
        self.version = VERSION;
        let text = serde_json::to_vec(self).unwrap_or_default();
        files::write(&dir.join(NAME), &text, Access::own(0o600))
    }

    /// Removes `name`, which is restored, from the saved state and writes the file if that changed
    /// anything.
    ///
    /// # Errors
    /// Fails like [`SavedState::save`].
    pub fn forget(&mut self, name: &str, dir: &Path) -> Result<(), files::Error> {
        let had_origin = self.lists.remove(name).is_some();
        if self.own.remove(name).is_some() || had_origin {
            self.save(dir)?;
        }
        Ok(())
    }

    /// Returns the original of the conflist `list`, which is `bare` without the plugin entry. `None`
    /// if another program wrote the conflist since.
    pub fn origin(&self, list: &str, bare: &str) -> Option<&Origin> {
        let origin = self.lists.get(list)?;
        (origin.bare == bare || origin.was.as_deref() == Some(bare)).then_some(origin)
    }
}
