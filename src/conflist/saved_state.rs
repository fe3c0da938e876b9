//! The saved state: the original files that uninstall cannot restore from a conflist alone.
//!
//! Cutting the plugin entry out of a conflist restores its original bytes, so most conflists are
//! not in the saved state. It holds:
//!
//! - conflists that were made from a `.conf`, or that replaced a symbolic link
//! - names of files that only the agent writes, which look like any network config
//!
//! The file lies in the CNI net dir, so that it outlives the agent, and is written before the
//! conflist. A damaged file, or one of a newer format, is overwritten only after [`aside`] has kept
//! a copy of it under another name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::files::FileAccess;

pub mod aside;
mod partial;

/// File name in the CNI net dir. Runtimes ignore it for its extension.
pub const NAME: &str = ".linkerd-cni-state";

/// Version of the file format. A newer format may add members, but keeps the meaning of those that
/// it keeps. So an older agent, as after a rollback, can use the members that it knows.
const VERSION: u32 = 1;

/// The saved state of a node, keyed by file name.
///
/// The names of the JSON members are part of the file format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    version: u32,
    /// Conflists, each with the original that it was made from.
    #[serde(rename = "lists")]
    pub originals: BTreeMap<String, Original>,
    /// Files that only the agent writes. The value names the original if the file is a copy.
    #[serde(rename = "own", default)]
    pub own_configs: BTreeMap<String, Option<String>>,
    /// What the file on the host allows.
    #[serde(skip)]
    pub file: StateFile,
}

/// Whether the file on the host can be used and overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateFile {
    /// The file is missing, or its whole content is known.
    #[default]
    Usable,
    /// Reading the file failed, perhaps temporarily. It must not be overwritten.
    Unreadable,
    /// The file is damaged or of a newer format. It must be kept under another name before it is
    /// overwritten.
    Unusable,
}

/// The file that a conflist was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// The conflist without the plugin entry. While this matches, no other program wrote it.
    #[serde(rename = "bare")]
    pub without_entry: String,
    /// `without_entry` of the conflist that this one replaces. If the agent is killed before it
    /// writes the new conflist, the old one remains and matches this.
    #[serde(rename = "was", default, skip_serializing_if = "Option::is_none")]
    pub replaced_without_entry: Option<String>,
    /// Name of the original file.
    pub name: String,
    pub content: OriginalContent,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Content of the original: a regular file with this text, or a symbolic link to this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginalContent {
    Text(String),
    Link(PathBuf),
}

impl Original {
    /// Returns mode and owner of the original file.
    pub fn access(&self) -> FileAccess {
        FileAccess { mode: self.mode, uid: self.uid, gid: self.gid }
    }
}

impl SavedState {
    /// Reads the saved state in `dir`. Of a damaged file or a newer format, only the known members
    /// are used. Also returns why the file, or a part of it, is not used. `None` if the file is
    /// missing or its whole content is known.
    pub fn load(dir: &Path) -> (SavedState, Option<String>) {
        let path = dir.join(NAME);
        let (mut saved, why) = match files::read(&path) {
            Ok((bytes, _)) => SavedState::parse(&bytes),
            Err(error) if error.is_missing() => (SavedState::default(), None),
            Err(error @ files::Error::Io { .. }) => {
                let unreadable =
                    SavedState { file: StateFile::Unreadable, ..SavedState::default() };
                return (unreadable, Some(error.to_string()));
            }
            Err(error) => {
                let saved = SavedState { file: StateFile::Unusable, ..SavedState::default() };
                (saved, Some(error.without_path()))
            }
        };
        for (conflist, original) in aside::originals(dir) {
            saved.originals.entry(conflist).or_insert(original);
        }
        (saved, why.map(|why| format!("{} {why}", path.display())))
    }

    /// Parses the content of the file, and says why not all of it is known.
    fn parse(bytes: &[u8]) -> (SavedState, Option<String>) {
        match serde_json::from_slice::<SavedState>(bytes) {
            Ok(saved) if saved.version <= VERSION => (saved, None),
            _ => {
                let (saved, why) = partial::parse(bytes);
                (SavedState { file: StateFile::Unusable, ..saved }, Some(why.to_owned()))
            }
        }
    }

    /// Writes the saved state into `dir`, readable only for root: a network config can hold
    /// credentials. An existing file that is not usable is first kept under another name.
    ///
    /// # Errors
    /// Fails if the write fails, or if the existing file can be neither read nor kept.
    pub fn save(&mut self, dir: &Path) -> Result<(), files::Error> {
        match self.file {
            StateFile::Usable => {}
            StateFile::Unusable => {
                self.keep_file(dir)?;
            }
            StateFile::Unreadable => {
                return Err(files::Error::Unusable {
                    path: dir.join(NAME),
                    why: "cannot be read, so it is not overwritten",
                });
            }
        }
        self.version = VERSION;
        let text = serde_json::to_vec(self).unwrap_or_default();
        files::write(&dir.join(NAME), &text, FileAccess::own(0o600))?;
        self.file = StateFile::Usable;
        Ok(())
    }

    /// Keeps the unusable file in `dir` under another name, which is returned.
    ///
    /// # Errors
    /// Fails if the file cannot be kept.
    pub fn keep_file(&mut self, dir: &Path) -> Result<PathBuf, files::Error> {
        let copy = aside::keep(dir)?;
        self.file = StateFile::Usable;
        Ok(copy)
    }

    /// Removes `name`, which is restored, from the saved state and writes the file if that changed
    /// anything.
    ///
    /// # Errors
    /// Fails like [`SavedState::save`].
    pub fn forget(&mut self, name: &str, dir: &Path) -> Result<(), files::Error> {
        let had_original = self.originals.remove(name).is_some();
        if self.own_configs.remove(name).is_some() || had_original {
            self.save(dir)?;
        }
        Ok(())
    }

    /// Returns the original of the conflist `name`, whose text without the plugin entry is
    /// `without_entry`. `None` if another program wrote the conflist since.
    pub fn original(&self, name: &str, without_entry: &str) -> Option<&Original> {
        let original = self.originals.get(name)?;
        let is_unchanged = original.without_entry == without_entry
            || original.replaced_without_entry.as_deref() == Some(without_entry);
        is_unchanged.then_some(original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_format_of_the_saved_state_is_stable() {
        let text = r#"{"version":1,"lists":{"a.conflist":{"bare":"{}","was":"[]","name":"a.conf","content":{"text":"x"},"mode":420,"uid":0,"gid":0}},"own":{"00-b.conflist":"a.conf"}}"#;
        let saved: SavedState = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&saved).unwrap(), text);
    }

    #[test]
    fn the_reason_why_the_saved_state_is_not_used_names_its_path_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        std::fs::create_dir(&path).unwrap();
        let (saved, why) = SavedState::load(dir.path());
        let why = why.unwrap();
        assert_eq!(saved.file, StateFile::Unusable);
        assert_eq!(why.matches(path.to_str().unwrap()).count(), 1, "{why}");
    }
}
