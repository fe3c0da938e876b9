//! Conflists that the agent makes from a `.conf` or `.json`, and what uninstall needs to restore
//! the original.

use super::steps::Step;
use crate::conflist::net_dir::{ConfigFile, Content};
use crate::conflist::saved_state::{Origin, OriginalContent, SavedState};
use crate::conflist::{self, Conflist, Entry};

/// Plans the conflist that replaces `file`, a single plugin, among the `foreign` files.
///
/// # Errors
/// Says why `file` is not converted.
pub(super) fn convert(
    foreign: &[&ConfigFile],
    file: &ConfigFile,
    text: &str,
    entry: &Entry,
    saved: &SavedState,
) -> Result<Step, String> {
    let describe = |error: conflist::Error| error.to_string();
    let bare = conflist::wrap(text).map_err(describe)?;
    let name = list_name(&file.name);
    if let Some(beside) = foreign.iter().find(|other| other.name == name)
        && !made_from(beside, &file.name, saved)
    {
        // Overwriting a conflist that the agent did not make would lose a network config.
        return Err(format!("has {name} beside it, which was not made from it"));
    }
    let text = Conflist::parse(&bare).map_err(describe)?.with(entry);
    Ok(Step::Convert { conf: file.name.clone(), list: name, text, bare })
}

/// Returns the name of the conflist that is made from the `.conf` or `.json` file `conf`.
pub(super) fn list_name(conf: &str) -> String {
    let stem = conf.rsplit_once('.').map_or(conf, |(stem, _)| stem);
    format!("{stem}.conflist")
}

/// Returns whether the agent made `list` from `conf` and no other program wrote it since. If both
/// exist, the primary CNI wrote `conf` again, or the agent stopped before it removed `conf`.
fn made_from(list: &ConfigFile, conf: &str, saved: &SavedState) -> bool {
    origin(list, saved).is_some_and(|origin| origin.name == conf)
}

fn origin<'s>(list: &ConfigFile, saved: &'s SavedState) -> Option<&'s Origin> {
    let text = &list.content.as_ref().ok()?.text;
    saved.origin(&list.name, &Conflist::read(text).ok()?.without())
}

/// Returns what to add to the saved state before `step` runs, where `content` is the file that the
/// step reads. `None` if unchaining the written conflist restores the original.
pub fn record(
    step: &Step,
    content: &Content,
    found: &[ConfigFile],
    saved: &SavedState,
) -> Option<Origin> {
    let (name, bare) = match step {
        Step::Convert { conf, bare, .. } => (conf, bare.clone()),
        Step::Patch { name, .. } => {
            content.link.as_ref()?;
            (name, Conflist::read(&content.text).ok()?.without())
        }
        Step::Own { .. } => return None,
    };
    let existing = found.iter().find(|file| file.name == step.list());
    let made = existing.filter(|list| list.name != *name && made_from(list, name, saved));
    let was = made.and_then(|list| {
        let text = &list.content.as_ref().ok()?.text;
        Some(Conflist::read(text).ok()?.without())
    });
    Some(Origin {
        was: was.filter(|was| *was != bare),
        bare,
        name: name.clone(),
        content: match &content.link {
            Some(target) => OriginalContent::Link(target.clone()),
            None => OriginalContent::Text(content.text.clone()),
        },
        mode: content.access.mode,
        uid: content.access.uid,
        gid: content.access.gid,
    })
}
