//! Applies one step of a chaining plan to the net dir.

use std::path::Path;

use crate::conflist::net_dir;
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::plan;
use crate::conflist::plan::ChainStep;
use crate::conflist::saved_state::SavedState;
use crate::conflist::text::to_bytes;
use crate::files;

/// Returns the content of the file `name` at the time of the scan, if it could be read.
pub fn content<'f>(found: &'f [ConfigFile], name: &str) -> Option<&'f Content> {
    let file = found.iter().find(|file| file.name == name)?;
    file.content.as_ref().ok()
}

/// Applies `step` to the files in `dir`, which held `found` at the time of the scan.
///
/// The order survives SIGKILL: first the saved state that uninstall needs, then the conflist,
/// and last the removal of the file that the conflist replaces. `holds_lock`: no other agent of this
/// project writes at the same time.
///
/// # Errors
/// If a file cannot be written; [`files::Error::Raced`] if another program wrote it since the
/// scan.
pub fn apply(
    dir: &Path,
    found: &[ConfigFile],
    step: &ChainStep,
    saved_state: &mut SavedState,
    holds_lock: bool,
) -> Result<(), files::Error> {
    if let ChainStep::WriteOwnConfig { name, text, access, copied_from } = step {
        if saved_state.own_configs.get(name) != Some(copied_from) {
            saved_state.own_configs.insert(name.clone(), copied_from.clone());
            saved_state.save(dir)?;
        }
        let path = dir.join(name);
        return match content(found, name) {
            Some(file) if file.link.is_none() => {
                files::replace(&path, &to_bytes(&file.text), &to_bytes(text), *access)
            }
            _ => files::write(&path, &to_bytes(text), *access),
        };
    }
    let Some(before) = content(found, step.source()) else {
        return Ok(());
    };
    if let Some(original) = plan::original_to_save(step, before, found, saved_state)
        && saved_state.originals.get(step.target()) != Some(&original)
    {
        saved_state.originals.insert(step.target().to_owned(), original);
        saved_state.save(dir)?;
    }
    match step {
        ChainStep::AddEntry { name, text } => {
            let path = dir.join(name);
            files::replace(&path, &to_bytes(&before.text), &to_bytes(text), before.access)
        }
        ChainStep::Convert { conf, conflist: list, text, .. } => {
            let conf = dir.join(conf);
            let (path, new) = (dir.join(list), &to_bytes(text));
            match content(found, list) {
                Some(file) if file.text == *text => {}
                Some(file) => files::replace(&path, &to_bytes(&file.text), new, before.access)?,
                None => files::create(&path, new, before.access, &conf)?,
            }
            let removed = files::remove_unchanged(&conf, &to_bytes(&before.text));
            // Another program removed the file, perhaps to write a conflist of its own. The runtime
            // must not load the conflist of a network that no longer exists. Another agent that
            // found this conflist removes the file, too, and counts on the conflist.
            if let Err(files::Error::Raced { .. }) = removed
                && content(found, list).is_none()
                && files::metadata(&conf)?.is_none()
                && (holds_lock || has_other_config(dir, list))
            {
                files::remove_unchanged(&path, new)?;
            }
            removed
        }
        ChainStep::WriteOwnConfig { .. } => Ok(()),
    }
}

/// Returns whether a runtime could load a network config of `dir` other than `name`.
fn has_other_config(dir: &Path, name: &str) -> bool {
    let mut found = net_dir::scan(dir, "").unwrap_or_default();
    found.retain(|file| file.name != name);
    plan::called(&found).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflist::net_dir::ConfigKind;
    use crate::files::FileAccess;

    /// Converts a `.conf` that was removed meanwhile. Returns whether the conflist is left.
    fn leaves_conflist(dir: &Path, holds_lock: bool) -> bool {
        let conf = r#"{"type":"bridge","name":"net"}"#;
        let content = Content { text: conf.into(), access: FileAccess::own(0o600), link: None };
        let found = [ConfigFile {
            name: "10-net.conf".into(),
            kind: ConfigKind::Conf,
            content: Ok(content),
        }];
        let step = ChainStep::Convert {
            conf: "10-net.conf".into(),
            conflist: "10-net.conflist".into(),
            text: "chained".into(),
            without_entry: "bare".into(),
        };
        let raced = apply(dir, &found, &step, &mut SavedState::default(), holds_lock).unwrap_err();
        assert!(matches!(raced, files::Error::Raced { .. }), "{raced}");
        dir.join("10-net.conflist").exists()
    }

    #[test]
    fn no_conflist_is_left_of_a_conf_that_another_program_removed_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!leaves_conflist(dir.path(), true));
    }

    #[test]
    fn without_the_lock_the_only_network_config_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(leaves_conflist(dir.path(), false));
        std::fs::remove_file(dir.path().join("10-net.conflist")).unwrap();
        std::fs::write(dir.path().join("20-other.conf"), r#"{"type":"ptp"}"#).unwrap();
        assert!(!leaves_conflist(dir.path(), false));
    }
}
