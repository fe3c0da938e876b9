//! Applies one step of an install or uninstall to the network configs.

use std::path::Path;

use tracing::warn;

use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::plan::Step;
use crate::conflist::saved_state::{Original, OriginalContent, SavedState};
use crate::files::{self, FileAccess};

/// Returns the content of the file `name` among the scanned network configs `found`. `None` if
/// there is no such file, or if it could not be read.
pub fn content<'f>(found: &'f [ConfigFile], name: &str) -> Option<&'f Content> {
    let file = found.iter().find(|file| file.name == name)?;
    file.content.as_ref().ok()
}

/// The CNI net dir, with the content that its files had when the steps were planned.
pub struct NetDir<'a, Seen> {
    pub path: &'a Path,
    /// Returns the content that a file had when the steps were planned. `None` if there was no such
    /// file. A step is not applied to a file whose content has changed since.
    pub seen: Seen,
    /// Whether this agent has the lock, so that no other agent of this project writes meanwhile.
    pub is_locked: bool,
}

impl<'a, Seen: Fn(&str) -> Option<&'a Content>> NetDir<'a, Seen> {
    /// Applies `step`, after it has added to `saved_state` what uninstall needs to undo the step.
    ///
    /// The agent may be killed at any time. So the saved state is written first, then the new
    /// network config, and the file that the new network config replaces is removed last.
    ///
    /// Fails with [`files::Error::Raced`] if another program has changed a file since the plan.
    pub fn apply(&self, step: &Step, saved_state: &mut SavedState) -> Result<(), files::Error> {
        self.save_originals(step, saved_state)?;
        match step {
            Step::Replace { name, text, .. } => self.replace(name, text),
            Step::WriteStandalone { name, text, access } => {
                self.write_standalone(name, text, *access)
            }
            Step::Convert { conflist, text, original } => self.convert(conflist, text, original),
            Step::Restore { conflist, original } => self.restore(conflist, original),
            Step::Remove { name } => self.remove(name),
        }
    }

    /// Adds to `saved_state` what uninstall needs to undo `step`, and writes the saved state if
    /// that has changed it.
    fn save_originals(
        &self,
        step: &Step,
        saved_state: &mut SavedState,
    ) -> Result<(), files::Error> {
        let before = saved_state.clone();
        let name = step.target().to_owned();
        match step {
            Step::Convert { original, .. } | Step::Replace { original: Some(original), .. } => {
                saved_state.originals.insert(name, original.clone());
            }
            Step::WriteStandalone { .. } => {
                saved_state.standalone_configs.insert(name);
            }
            Step::Replace { .. } | Step::Restore { .. } | Step::Remove { .. } => {}
        }
        if *saved_state == before {
            return Ok(());
        }
        let saved = saved_state.save(self.path);
        if saved.is_err() {
            // The step is not applied. The next steps save the state without it.
            *saved_state = before;
        }
        saved
    }

    /// Replaces the content of the file `name`. Does nothing if there was no such file.
    fn replace(&self, name: &str, text: &str) -> Result<(), files::Error> {
        let Some(seen) = (self.seen)(name) else {
            return Ok(());
        };
        let path = self.path.join(name);
        files::replace(&path, seen.text.as_bytes(), text.as_bytes(), seen.access)
    }

    /// Writes the standalone config `name`. Replaces a symbolic link by a file.
    fn write_standalone(
        &self,
        name: &str,
        text: &str,
        access: FileAccess,
    ) -> Result<(), files::Error> {
        let path = self.path.join(name);
        if let Some(seen) = (self.seen)(name)
            && seen.link.is_none()
        {
            return files::replace(&path, seen.text.as_bytes(), text.as_bytes(), access);
        }
        files::write(&path, text.as_bytes(), access)
    }

    fn remove(&self, name: &str) -> Result<(), files::Error> {
        let path = self.path.join(name);
        match (self.seen)(name) {
            Some(seen) => files::remove_unchanged(&path, seen.text.as_bytes()),
            None => files::remove(&path).map(|_| ()),
        }
    }

    /// Writes `conflist` and removes the `original`.
    ///
    /// If another program removes the original meanwhile, perhaps to write a conflist of its own,
    /// the new conflist is removed too, because the runtime must not load the conflist of a network
    /// that no longer exists. But if this agent does not have the lock, the new conflist stays:
    /// another agent may have removed the original, because that agent made the same conflist.
    fn convert(&self, conflist: &str, text: &str, original: &Original) -> Result<(), files::Error> {
        let path = self.path.join(conflist);
        let original_path = self.path.join(&original.name);
        match (self.seen)(conflist) {
            Some(seen) if seen.text == text => {}
            // The new content may have a secret of the original, so the conflist gets the mode of
            // the original.
            Some(seen) => {
                files::replace(&path, seen.text.as_bytes(), text.as_bytes(), original.access)?;
            }
            None => files::create(&path, text.as_bytes(), original.access, &original_path)?,
        }
        let removed = self.remove(&original.name);
        let is_raced = matches!(removed, Err(files::Error::Raced { .. }));
        let is_new_conflist = (self.seen)(conflist).is_none();
        if is_raced
            && is_new_conflist
            && self.is_locked
            && files::metadata(&original_path)?.is_none()
        {
            files::remove_unchanged(&path, text.as_bytes())?;
        }
        removed
    }

    /// Writes the `original` and then removes `conflist`, in this order, so that the node always
    /// has a network config.
    ///
    /// If another program writes the conflist meanwhile, the restored file is removed again: beside
    /// the new conflist, an outdated original could become the active network config. If another
    /// program removes the conflist meanwhile, the restored file stays, because it may be the only
    /// network config.
    fn restore(&self, conflist: &str, original: &Original) -> Result<(), files::Error> {
        let path = self.path.join(conflist);
        let original_path = self.path.join(&original.name);
        let seen = (self.seen)(conflist).map(|seen| seen.text.as_bytes());
        if let Some(seen) = seen {
            files::check_unchanged(&path, seen)?;
        }
        match &original.content {
            OriginalContent::Text(text) => {
                files::create(&original_path, text.as_bytes(), original.access, &path)?;
            }
            OriginalContent::Link(target) => files::write_link(&original_path, target)?,
        }
        if original.name == conflist {
            return Ok(());
        }
        let removed = self.remove(conflist);
        if removed.is_err()
            && has_other_content(&path, seen)
            && let OriginalContent::Text(text) = &original.content
            && let Err(error) = files::remove_unchanged(&original_path, text.as_bytes())
        {
            warn!("{error}");
        }
        removed
    }
}

/// Returns whether the file at `path` can be read and has another content than `seen`.
fn has_other_content(path: &Path, seen: Option<&[u8]>) -> bool {
    match files::read(path) {
        Ok((content, _)) => seen != Some(&content[..]),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const CONF: &str = "20-net.conf";
    const CONFLIST: &str = "20-net.conflist";
    const MADE: &str = "made from the conf";

    fn content_of(text: &str) -> Content {
        Content { text: text.into(), access: FileAccess::own(0o600), link: None }
    }

    fn original() -> Original {
        Original::new(CONF, &content_of("the conf"), MADE.into())
    }

    fn restore() -> Step {
        Step::Restore { conflist: CONFLIST.into(), original: original() }
    }

    /// Applies `step`, and asserts that it fails because another program has changed a file.
    fn assert_raced<'a>(
        dir: &'a Path,
        step: &Step,
        is_locked: bool,
        seen: impl Fn(&str) -> Option<&'a Content>,
    ) {
        let net_dir = NetDir { path: dir, seen, is_locked };
        let raced = net_dir.apply(step, &mut SavedState::default()).unwrap_err();
        assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
    }

    #[test]
    fn a_converted_conflist_is_removed_if_its_conf_disappears() {
        for is_locked in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let conf = content_of("the conf");
            let step = Step::Convert {
                conflist: CONFLIST.into(),
                text: "chained".into(),
                original: original(),
            };
            let seen = |name: &str| (name == CONF).then_some(&conf);
            assert_raced(dir.path(), &step, is_locked, seen);
            assert_eq!(dir.path().join(CONFLIST).exists(), !is_locked);
        }
    }

    #[test]
    fn a_conflist_converted_again_gets_the_file_mode_of_the_new_conf() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONF), "the conf").unwrap();
        fs::write(dir.path().join(CONFLIST), MADE).unwrap();
        let conf = content_of("the conf");
        let mut conflist = content_of(MADE);
        conflist.access = FileAccess::own(0o644);
        let seen = |name: &str| Some(if name == CONF { &conf } else { &conflist });
        let net_dir = NetDir { path: dir.path(), seen, is_locked: true };
        let step = Step::Convert {
            conflist: CONFLIST.into(),
            text: "chained".into(),
            original: original(),
        };
        net_dir.apply(&step, &mut SavedState::default()).unwrap();
        let mode = fs::metadata(dir.path().join(CONFLIST)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_another_program_has_changed_is_neither_replaced_nor_removed() {
        let seen = content_of(MADE);
        for (step, name) in [
            (restore(), CONFLIST),
            (restore(), CONF),
            (Step::Remove { name: CONFLIST.into() }, CONFLIST),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(CONFLIST), MADE).unwrap();
            fs::write(dir.path().join(name), "foreign").unwrap();
            let before = fs::read_dir(dir.path()).unwrap().count();
            assert_raced(dir.path(), &step, true, |_| Some(&seen));
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"foreign");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
        }
    }

    #[test]
    fn a_restored_conf_is_removed_if_another_program_rewrote_its_conflist() {
        // What another program does with the conflist, and the file that is left with its content.
        type ForeignChange = fn(&Path);
        let cases: [(ForeignChange, &str, &[u8]); 2] = [
            (|conflist| fs::remove_file(conflist).unwrap(), CONF, b"the conf"),
            (|conflist| fs::write(conflist, "foreign").unwrap(), CONFLIST, b"foreign"),
        ];
        for (change, left, content) in cases {
            let dir = tempfile::tempdir().unwrap();
            let conflist = dir.path().join(CONFLIST);
            fs::write(&conflist, MADE).unwrap();
            let seen = content_of(MADE);
            assert_raced(dir.path(), &restore(), true, |_| {
                // The step asks for the seen content a second time after it has restored the conf
                // and before it removes the conflist. The other program acts at that moment.
                if dir.path().join(CONF).exists() && conflist.exists() {
                    change(&conflist);
                }
                Some(&seen)
            });
            assert_eq!(fs::read(dir.path().join(left)).unwrap(), content);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
