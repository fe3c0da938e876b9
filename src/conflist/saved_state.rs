//! The saved state: the original files that uninstall cannot restore from a conflist alone.
//!
//! Cutting the plugin entry out of a conflist restores its original bytes, so most conflists are
//! not in the saved state. The saved state has
//! - the originals of conflists that were made from a `.conf`, or that replaced a symbolic link
//! - the names of standalone configs, because their content may look like that of another program
//! - the name of the only network config with a plugin entry, for an older agent that may still run
//!
//! The saved state is a file in the CNI net dir, so that it outlives the agent. The file is written
//! before the network config, so that an uninstall can undo every change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::net_dir::Content;
use crate::files;
use crate::files::FileAccess;

/// File name in the CNI net dir. Runtimes ignore the file because of its extension.
pub const NAME: &str = ".linkerd-cni-state";

/// File name to which a saved state is renamed that cannot be parsed, so that an operator can look
/// at it.
pub const DAMAGED: &str = ".linkerd-cni-state.damaged";

/// What uninstall needs besides the network configs. The serialized names of the members are part
/// of the file format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    /// Conflists by file name, each with the original that it was made from.
    #[serde(default)]
    pub originals: BTreeMap<String, Original>,
    /// Names of standalone configs.
    #[serde(default)]
    pub standalone_configs: BTreeSet<String>,
    /// Name of the only network config that keeps the plugin entry, saved by the agent that removes
    /// the entry from the others. An older agent then does not chain the plugin to the others
    /// again. Without this name it would: it does not know the newer agent's mode, and a network
    /// config from which the entry was removed looks like one that its owner has just written.
    #[serde(default, rename = "only", skip_serializing_if = "Option::is_none")]
    pub only_config: Option<String>,
    /// Why the saved state on disk cannot be used: a sentence that starts with the file's path.
    #[serde(skip)]
    pub unusable: Option<String>,
    /// Whether the content of the `unusable` file is invalid. If it is not, the file could not be
    /// read, and a later attempt may succeed.
    #[serde(skip)]
    pub is_damaged: bool,
}

/// The file that a conflist was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Original {
    /// Text of the conflist without the plugin entry. If the conflist on disk differs from this
    /// text, another program has written it.
    pub without_entry: String,
    /// `without_entry` of the earlier conflist that the new one replaces. If the agent is killed
    /// before it writes the new conflist, the earlier one is still on disk and equals this text.
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
    /// Records the file `name` with this `content`, from which a conflist is made. `without_entry`
    /// is the text of that conflist without the plugin entry.
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
    /// Reads the saved state in `dir`. Returns an empty one if the file is missing or unusable.
    pub fn load(dir: &Path) -> SavedState {
        let path = dir.join(NAME);
        let bytes = match files::read(&path) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.is_missing() => return SavedState::default(),
            Err(error) => {
                // Errors that are not I/O errors say that no such file can be a saved state: it is
                // a directory, for example, or too large.
                let is_damaged = !matches!(error, files::Error::Io { .. });
                return SavedState::unusable_state(&path, &error.without_path(), is_damaged);
            }
        };
        match serde_json::from_slice(&bytes) {
            Ok(saved) => saved,
            Err(_) => SavedState::unusable_state(&path, "is damaged", true),
        }
    }

    /// Returns an empty saved state in place of the file at `path`, which cannot be used.
    fn unusable_state(path: &Path, reason: &str, is_damaged: bool) -> SavedState {
        let unusable = Some(format!("{} {reason}", path.display()));
        SavedState { unusable, is_damaged, ..SavedState::default() }
    }

    /// Writes the saved state to `dir`, readable only for root, because a network config can hold
    /// credentials. Fails if the present file is unusable: it may have originals that would be
    /// lost. Fails also if [`SavedState::load`] could not read the new file. The network config is
    /// then not written either, as an uninstall could not restore it.
    pub fn save(&mut self, dir: &Path) -> Result<(), files::Error> {
        let path = dir.join(NAME);
        if self.unusable.is_some() {
            return Err(files::Error::Unusable {
                path,
                why: "cannot be read, so it is not overwritten",
            });
        }
        let Ok(text) = serde_json::to_vec(self) else {
            let why = "cannot be written, because a symbolic link to a network config has a target \
                       that is not UTF-8; replace that link with a regular file";
            return Err(files::Error::Unusable { path, why });
        };
        if text.len() as u64 > files::LIMIT {
            let why = "would be larger than 5 MiB with the originals of all network configs that \
                       are replaced; move network configs that no runtime loads out of the \
                       directory";
            return Err(files::Error::Unusable { path, why });
        }
        files::write(&path, &text, FileAccess::own(0o600))
    }

    /// Renames a damaged file to [`DAMAGED`], so that a new saved state can be written.
    pub fn rename_damaged_file(&mut self, dir: &Path) -> Result<(), files::Error> {
        files::rename(&dir.join(NAME), &dir.join(DAMAGED))?;
        self.unusable = None;
        Ok(())
    }

    /// Removes what is saved about the network config `name`, after the config was restored. Writes
    /// the saved state to `dir` if that changed anything.
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
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    const STATE: &str = concat!(
        r#"{"originals":{"a.conflist":{"without_entry":"{}","replaced_without_entry":"[]","#,
        r#""name":"a.conf","content":{"text":"x"},"mode":420,"uid":0,"gid":0}},"#,
        r#""standalone_configs":["b.conf"],"only":"b.conf"}"#,
    );

    #[test]
    fn saved_state_is_read_and_written_in_the_same_format() {
        let saved: SavedState = serde_json::from_str(STATE).unwrap();
        assert_eq!(serde_json::to_string(&saved).unwrap(), STATE);
    }

    /// An original whose text or link has `content`.
    fn with_original(content: OriginalContent) -> SavedState {
        let original = Original {
            without_entry: "{}".into(),
            replaced_without_entry: None,
            name: "a.conf".into(),
            content,
            access: FileAccess::own(0o600),
        };
        let originals = BTreeMap::from([("a.conflist".to_owned(), original)]);
        SavedState { originals, ..SavedState::default() }
    }

    #[test]
    fn a_saved_state_that_could_not_be_read_again_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut small = with_original(OriginalContent::Text("x".into()));
        small.save(dir.path()).unwrap();
        let too_large = OriginalContent::Text("x".repeat(files::LIMIT as usize));
        let not_utf8 = OriginalContent::Link(OsString::from_vec(vec![0xff]).into());
        for (content, why) in
            [(too_large, "would be larger than 5 MiB"), (not_utf8, "that is not UTF-8")]
        {
            let error = with_original(content).save(dir.path()).unwrap_err().to_string();
            assert!(error.contains(NAME) && error.contains(why), "{error}");
            assert_eq!(SavedState::load(dir.path()), small);
        }
    }

    #[test]
    fn error_about_the_saved_state_names_its_path_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        std::fs::create_dir(&path).unwrap();
        let saved = SavedState::load(dir.path());
        assert!(saved.is_damaged);
        let unusable = saved.unusable.unwrap();
        assert_eq!(unusable.matches(path.to_str().unwrap()).count(), 1, "{unusable}");
    }
}
