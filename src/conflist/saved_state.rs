//! What cannot be got back from a patched list alone: the file it was made from.
//!
//! Taking our entry out of a list gives the owner's bytes back, so most lists need no
//! record. A list that was made from a `.conf`, or that replaced a symbolic link, does;
//! so does a file that is ours as a whole, or it could be taken for a network's.
//! The record lies in the net dir, survives the agent, and is written before the list.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files;
use crate::files::Access;

/// No runtime loads a file of this name.
pub const NAME: &str = ".linkerd-cni-state";

const VERSION: u32 = 1;

/// Files by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    version: u32,
    pub lists: BTreeMap<String, Origin>,
    /// The files that are ours as a whole, each with the name of the one that it is a
    /// copy of, if it is one.
    #[serde(default)]
    pub own: BTreeMap<String, Option<String>>,
    /// There is one on the host that cannot be read now, and is not to be written over.
    #[serde(skip)]
    pub unread: bool,
}

/// What a list was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The list as it is without our entry. As long as it is that, nobody else wrote it.
    pub bare: String,
    /// The same of the list that this one replaces. An agent that was killed before it
    /// wrote the new list left that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// The name of the file that was there.
    pub name: String,
    pub content: Content,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// What the file was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    Text(String),
    Link(PathBuf),
}

impl Origin {
    /// Who could do what with the file.
    pub fn access(&self) -> Access {
        Access {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
        }
    }
}

impl Journal {
    /// Reads the journal in `dir`, and says why if that was in vain. There being none is
    /// an empty one.
    pub fn load(dir: &Path) -> (Journal, Option<String>) {
        let path = dir.join(NAME);
        let empty = |unread| Journal {
            unread,
            ..Journal::default()
        };
        let bytes = match files::read(&path) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.is_missing() => return (empty(false), None),
            Err(error) => {
                let unread = matches!(error, files::Error::Io { .. });
                return (empty(unread), Some(error.to_string()));
            }
        };
        match serde_json::from_slice::<Journal>(&bytes) {
            Ok(journal) if journal.version <= VERSION => (journal, None),
            _ => {
                let why = format!("{} is not readable", path.display());
                (empty(false), Some(why))
            }
        }
    }

    /// Writes the journal into `dir`, for root only: a network's configuration can hold
    /// credentials.
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

    /// `name` is nothing of ours any more: forgets what was noted of it, on the host too.
    pub fn forget(&mut self, name: &str, dir: &Path) -> Result<(), files::Error> {
        let list = self.lists.remove(name).is_some();
        if self.own.remove(name).is_some() || list {
            self.save(dir)?;
        }
        Ok(())
    }

    /// The record of `list`, if the list, which is now `bare` without our entry, is still
    /// the one that was made.
    pub fn origin(&self, list: &str, bare: &str) -> Option<&Origin> {
        let origin = self.lists.get(list)?;
        (origin.bare == bare || origin.was.as_deref() == Some(bare)).then_some(origin)
    }
}
