//! Undoes chaining in one network config: removes the plugin entry, or restores the original file.

use std::path::Path;

use tracing::warn;

use crate::conflist::net_dir;
use crate::conflist::plan::UnchainStep;
use crate::conflist::saved_state::OriginalContent;
use crate::conflist::text::to_bytes;
use crate::files;

/// Applies `step` in `dir`. `before` returns the content of a file when the step was planned.
///
/// # Errors
/// If a file cannot be written; [`files::Error::Raced`] if another program has changed a file since
/// the plan.
pub fn apply<'f>(
    dir: &Path,
    step: &UnchainStep,
    before: impl Fn(&str) -> Option<&'f net_dir::Content>,
) -> Result<(), files::Error> {
    let unchanged = |list: &str| match before(list) {
        Some(content) => files::check_unchanged(&dir.join(list), &to_bytes(&content.text)),
        None => Ok(()),
    };
    let remove = |list: &str| match before(list) {
        Some(content) => files::remove_unchanged(&dir.join(list), &to_bytes(&content.text)),
        None => files::remove(&dir.join(list)).map(|_| ()),
    };
    match step {
        UnchainStep::RemoveEntry { name, text } => match before(name) {
            Some(content) => {
                let (old, new) = (to_bytes(&content.text), to_bytes(text));
                files::replace(&dir.join(name), &old, &new, content.access)
            }
            None => Ok(()),
        },
        UnchainStep::Restore { conflist: list, original } => {
            let path = dir.join(&original.name);
            unchanged(list)?;
            match &original.content {
                OriginalContent::Text(text) => {
                    files::create(&path, &to_bytes(text), original.access(), &dir.join(list))?;
                }
                OriginalContent::Link(target) => files::write_link(&path, target)?,
            }
            // The original file is restored before the conflist is removed, so that the node
            // always has a network config.
            match original.name == *list {
                true => Ok(()),
                false => remove(list).inspect_err(|_| {
                    let seen = before(list).map(|content| to_bytes(&content.text));
                    // If the conflist is missing, the restored file may be the only network config.
                    if files::read(&dir.join(list))
                        .is_ok_and(|(now, _)| seen.as_deref() != Some(&*now))
                    {
                        drop_restored(&path, &original.content);
                    }
                }),
            }
        }
        UnchainStep::RemoveFile { name: list } => remove(list),
    }
}

/// Removes the restored file `path` again, because another program wrote the conflist at the same
/// time. Beside the new conflist, an outdated original could become the active network config.
fn drop_restored(path: &Path, original: &OriginalContent) {
    if let OriginalContent::Text(text) = original
        && let Err(error) = files::remove_unchanged(path, &to_bytes(text))
    {
        warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conflist::saved_state::Original;
    use crate::files::FileAccess;

    const MADE: &str = "made from the conf";

    fn original() -> Original {
        Original {
            without_entry: MADE.into(),
            replaced_without_entry: None,
            name: "20-net.conf".into(),
            content: OriginalContent::Text("the conf".into()),
            mode: 0o600,
            uid: FileAccess::own(0).uid,
            gid: FileAccess::own(0).gid,
        }
    }

    #[test]
    fn a_file_that_another_program_has_changed_is_neither_replaced_nor_removed() {
        let list = "20-net.conflist".to_owned();
        let seen =
            net_dir::Content { text: MADE.into(), access: FileAccess::own(0o600), link: None };
        let restore = UnchainStep::Restore { conflist: list.clone(), original: original() };
        let drop = UnchainStep::RemoveFile { name: list };
        for (step, name) in
            [(&restore, "20-net.conflist"), (&restore, "20-net.conf"), (&drop, "20-net.conflist")]
        {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("20-net.conflist"), MADE).unwrap();
            fs::write(dir.path().join(name), "foreign").unwrap();
            let before = fs::read_dir(dir.path()).unwrap().count();
            let raced = apply(dir.path(), step, |_| Some(&seen)).unwrap_err();
            assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"foreign");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
        }
    }

    /// Restores the original in a directory in which another program acts on the conflist after the original was
    /// written, and fails for that reason. Returns the directory.
    fn restore_while(other: impl Fn(&Path)) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let conflist = dir.path().join("20-net.conflist");
        fs::write(&conflist, MADE).unwrap();
        let seen =
            net_dir::Content { text: MADE.into(), access: FileAccess::own(0o600), link: None };
        let restore =
            UnchainStep::Restore { conflist: "20-net.conflist".into(), original: original() };
        let raced = apply(dir.path(), &restore, |_| {
            if dir.path().join("20-net.conf").exists() {
                other(&conflist);
            }
            Some(&seen)
        });
        let raced = raced.unwrap_err();
        assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
        dir
    }

    #[test]
    fn a_restored_file_stays_if_another_uninstall_removes_the_conflist_meanwhile() {
        let dir = restore_while(|conflist| drop(fs::remove_file(conflist)));
        assert_eq!(fs::read(dir.path().join("20-net.conf")).unwrap(), b"the conf");
    }

    #[test]
    fn a_restored_file_is_removed_again_if_another_program_writes_the_conflist_meanwhile() {
        let dir = restore_while(|conflist| fs::write(conflist, "foreign").unwrap());
        assert_eq!(fs::read(dir.path().join("20-net.conflist")).unwrap(), b"foreign");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
