//! The saved state: the original files that uninstall cannot restore from a conflist alone.
//!
//! Cutting the plugin entry out of a conflist restores its original bytes, so most conflists are
//! not in the saved state. It holds
//! - conflists that were made from a `.conf`, or that replaced a symbolic link
//! - names of standalone configs, which look like any network config
//! - the name of the file whose plugin entry is the only one, while an older agent may still run
//!
//! The file in the CNI net dir outlives the agent, and is written before the conflist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::net_dir::Content;
use crate::files;
use crate::files::FileAccess;

/// File name in the CNI net dir. Runtimes ignore it for its extension.
pub const NAME: &str = ".linkerd-cni-state";

/// Name of a file that could not be parsed, kept for an operator.
pub const DAMAGED: &str = ".linkerd-cni-state.damaged";

/// What uninstall needs beside the conflists. The names of the members are part of the file format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    /// Conflists by file name, each with the original that it was made from.
    #[serde(default)]
    pub originals: BTreeMap<String, Original>,
    /// Names of standalone configs.
    #[serde(default)]
    pub standalone_configs: BTreeSet<String>,
    /// [`ChainMode::only`](super::chain_mode::ChainMode::only) of the agent that removed the plugin
    /// entry from other network configs. An older agent then leaves them as they are: it does not
    /// know the newer agent's mode, and a network config without the plugin entry looks the same
    /// after its owner wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<String>,
    /// Why the file could not be used: a sentence that starts with its path.
    #[serde(skip)]
    pub unusable: Option<String>,
    /// Whether the file has no valid saved state. An `unusable` file that is not damaged could not
    /// be read, perhaps temporarily.
    #[serde(skip)]
    pub is_damaged: bool,
}

/// The file that a conflist was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// The conflist without the plugin entry. While this matches, no other program wrote it.
    pub without_entry: String,
    /// `without_entry` of the conflist that this one replaces. If the agent is killed before it
    /// writes the new conflist, the old one remains and matches this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_without_entry: Option<String>,
    pub name: String,
    pub content: OriginalContent,
    #[serde(flatten)]
    pub access: FileAccess,
}

/// Content of the original: a regular file with this text, or a symbolic link to this path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginalContent {
    Text(String),
    Link(PathBuf),
}

impl Original {
    /// Keeps the file `name`, from which a conflist is made.
    pub fn new(name: &str, content: &Content, without_entry: String) -> Original {
        Original {
            without_entry,
            replaced_without_entry: None,
            name: name.to_owned(),
            content: match &content.link {
                Some(target) => OriginalContent::Link(target.clone()),
                None => OriginalContent::Text(content.text.clone()),
            },
            access: content.access,
        }
    }
}

impl SavedState {
    /// Reads the saved state in `dir`. Empty if the file is missing, or if it cannot be used.
    pub fn load(dir: &Path) -> SavedState {
        let path = dir.join(NAME);
        match files::read(&path) {
            Ok((bytes, _)) => match serde_json::from_slice(&bytes) {
                Ok(saved) => saved,
                Err(_) => SavedState::unusable(&path, "is damaged", true),
            },
            Err(error) if error.is_missing() => SavedState::default(),
            Err(error) => {
                let is_damaged = !matches!(error, files::Error::Io { .. });
                SavedState::unusable(&path, &error.without_path(), is_damaged)
            }
        }
    }

    fn unusable(path: &Path, why: &str, is_damaged: bool) -> SavedState {
        let unusable = Some(format!("{} {why}", path.display()));
        SavedState { unusable, is_damaged, ..SavedState::default() }
    }

    /// Writes the saved state, readable only for root: a network config can hold credentials.
    /// Fails also if the file there cannot be used.
    pub fn save(&mut self, dir: &Path) -> Result<(), files::Error> {
        let path = dir.join(NAME);
        if self.unusable.is_some() {
            return Err(files::Error::Unusable {
                path,
                why: "cannot be read, so it is not overwritten",
            });
        }
        let text = serde_json::to_vec(self).unwrap_or_default();
        files::write(&path, &text, FileAccess::own(0o600))
    }

    /// Renames a damaged file to [`DAMAGED`], so that a new one can be written.
    pub fn keep_damaged(&mut self, dir: &Path) -> Result<(), files::Error> {
        files::rename(&dir.join(NAME), &dir.join(DAMAGED))?;
        self.unusable = None;
        Ok(())
    }

    /// Removes `name`, which is restored, and writes the file if that changed anything.
    pub fn forget(&mut self, name: &str, dir: &Path) -> Result<(), files::Error> {
        let had_original = self.originals.remove(name).is_some();
        let was_standalone = self.standalone_configs.remove(name);
        if had_original || was_standalone {
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
        if is_unchanged { Some(original) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = concat!(
        r#"{"originals":{"a.conflist":{"without_entry":"{}","replaced_without_entry":"[]","#,
        r#""name":"a.conf","content":{"text":"x"},"mode":420,"uid":0,"gid":0}},"#,
        r#""standalone_configs":["b.conf"],"only":"b.conf"}"#,
    );

    #[test]
    fn the_file_format_is_stable() {
        let saved: SavedState = serde_json::from_str(STATE).unwrap();
        assert_eq!(serde_json::to_string(&saved).unwrap(), STATE);
    }

    #[test]
    fn an_error_about_the_saved_state_names_its_path_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        std::fs::create_dir(&path).unwrap();
        let saved = SavedState::load(dir.path());
        assert!(saved.is_damaged);
        let unusable = saved.unusable.unwrap();
        assert_eq!(unusable.matches(path.to_str().unwrap()).count(), 1, "{unusable}");
    }
}
