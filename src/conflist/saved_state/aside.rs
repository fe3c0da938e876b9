//! Copies of saved states that an agent could not use, kept for a newer agent or an operator.
//!
//! An agent that is rolled back finds the saved state of a newer agent, which may hold originals
//! that the older agent cannot read. The newer agent uses the copy when it comes back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{NAME, Original, SavedState, StateFile, partial};
use crate::files;

/// Highest number at the end of a copy's name. Bounds the copies on a node that is rolled back and
/// forth.
const LAST: u32 = 9;

/// Returns the path of the copy `number` in `dir`. Runtimes ignore it for its extension.
fn path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{NAME}.aside-{number}"))
}

/// Keeps the saved state in `dir` under another name, which is returned. The file itself stays
/// until it is overwritten, so that a crash in between loses nothing.
///
/// # Errors
/// Fails if the copy cannot be made, or if all names are used by copies with other content.
pub(super) fn keep(dir: &Path) -> Result<PathBuf, files::Error> {
    let state = dir.join(NAME);
    for number in 1..=LAST {
        let copy = path(dir, number);
        if files::link(&state, &copy)? {
            return Ok(copy);
        }
        // An agent that was killed before it overwrote the file has made this copy.
        if is_file(&state)? && is_file(&copy)? && files::have_equal_content(&state, &copy)? {
            return Ok(copy);
        }
    }
    Err(files::Error::Unusable {
        path: state,
        why: "is not usable and cannot be kept under another name; remove the files \
              .linkerd-cni-state.aside-* beside it",
    })
}

fn is_file(path: &Path) -> Result<bool, files::Error> {
    Ok(files::metadata(path)?.is_some_and(|metadata| metadata.is_file()))
}

/// Returns the originals in all copies in `dir`, by conflist. The copy with the highest
/// number wins.
pub(super) fn originals(dir: &Path) -> BTreeMap<String, Original> {
    let texts = existing(dir).into_iter().filter_map(|copy| files::read(&copy).ok());
    texts.flat_map(|(text, _)| partial::parse(&text).0.originals).collect()
}

/// Returns the copies in `dir` whose whole content this agent knows, so that it can remove them at
/// uninstall, and the other copies.
pub fn known_and_unknown(dir: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    existing(dir).into_iter().partition(|copy| {
        let saved = files::read(copy).map(|(text, _)| SavedState::parse(&text).0);
        saved.is_ok_and(|saved| saved.file == StateFile::Usable)
    })
}

/// Returns the paths of all copies in `dir`, in the order of their numbers.
fn existing(dir: &Path) -> Vec<PathBuf> {
    let paths = (1..=LAST).map(|number| path(dir, number));
    paths.filter(|path| files::metadata(path).is_ok_and(|metadata| metadata.is_some())).collect()
}
