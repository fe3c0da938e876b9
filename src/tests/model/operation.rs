//! The operations of an agent on the node. A kill can occur before and after each, and another
//! actor can act between two of them.

use linkerd2_cni::conflist::net_dir::ConfigFile;
use linkerd2_cni::conflist::plan::Step;
use linkerd2_cni::conflist::saved_state::OriginalContent;

use crate::node::NodeFile;
use crate::scenario::Bug;
use crate::text::Text;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Bind,
    Lock,
    // Compares the plugin binary with the image and copies it.
    CopyBinary,
    WriteKubeconfig,
    RemoveLeftovers,
    // Lists the CNI net dir. The reads of its files follow.
    List,
    Read(Text),
    LoadSavedState,
    // Reads the record of a withdrawal, and decides whether the pass chains or unchains.
    ReadRecord,
    WriteRecord,
    RemoveRecord,
    // Plans the pass; its steps follow.
    PlanChain,
    // Plans the removal of all plugin entries, because the chain is withdrawn; its steps follow.
    PlanWithdrawal,
    // Plans the removal of all plugin entries; its steps follow.
    PlanUnchain,
    // Writes the saved state with one more original. The value is JSON.
    SaveOriginal { conflist: Text, original: Text },
    // Writes the saved state with one more standalone config.
    SaveStandalone(Text),
    // Writes the saved state with this as the only file that has the plugin entry.
    SaveOnly(Option<Text>),
    // Writes the saved state without this conflist.
    Forget(Text),
    // Reads the file again: fails if it does not hold `before`.
    Check { name: Text, before: Text },
    // Exchanges the file with a temporary file that holds `new`.
    Exchange { name: Text, before: Text, new: Text },
    // Exchanges again, because the file did not hold what the agent read. The temporary file holds
    // `content`, and the file should hold `expected`.
    PutBack { name: Text, content: Text, expected: Text },
    // Renames a temporary file to a name that must not exist.
    Create { name: Text, text: Text },
    // Renames a temporary file over `name`.
    Write { name: Text, text: Text },
    // Renames `name` to a temporary name and removes it if it holds `before`.
    Remove { name: Text, before: Text, undo: Option<Undo> },
    // Gives a renamed file its name back, as it holds `content` and not what the agent read. Then
    // undoes the step.
    Return { name: Text, content: Text, undo: Option<Undo> },
    // Ends a step. A step that another writer disturbs is cut off here.
    EndStep,
    EndPass,
    EndUnchain,
    // Looks whether a network config names the plugin, before files are renamed and afterwards.
    Judge { is_staged: bool },
    // Renames a file to a temporary name.
    Stage(NodeFile),
    Undo,
    Finish,
}

/// A file that the step wrote, and which is removed again if another program disturbs the step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Undo {
    pub name: Text,
    pub text: Text,
    /// If the other file was changed. Otherwise only if it was removed.
    pub is_for_changes: bool,
}

use Operation::{Check, Create, EndStep, Exchange, Remove, SaveOriginal, SaveStandalone, Write};

/// Returns the text of the file with this name, as the agent read it.
fn content(found: &[ConfigFile], name: &str) -> Option<Text> {
    let file = found.iter().find(|file| file.name == name)?;
    Some(Text::new(&file.content.as_ref().ok()?.text))
}

/// Returns the operations that replace the text `before` of a file.
fn replace(name: &str, before: Text, new: &str, bug: Bug) -> Vec<Operation> {
    let name = Text::new(name);
    let new = Text::new(new);
    if bug == Bug::OverwriteWithoutCheck {
        return vec![Write { name, text: new }];
    }
    vec![Check { name, before }, Exchange { name, before, new }]
}

/// Returns the operations of one step of a plan, as `node::network_config_steps` applies them.
pub fn of_step(step: &Step, found: &[ConfigFile], bug: Bug) -> Vec<Operation> {
    let mut operations = operations(step, found, bug);
    operations.push(EndStep);
    operations
}

fn operations(step: &Step, found: &[ConfigFile], bug: Bug) -> Vec<Operation> {
    let target = Text::new(step.target());
    match step {
        Step::Replace { name, text, .. } => replace(name, content(found, name).unwrap(), text, bug),
        Step::WriteStandalone { name, text, .. } => {
            let mut operations = vec![SaveStandalone(target)];
            match content(found, name) {
                Some(before) => operations.extend(replace(name, before, text, bug)),
                None => operations.push(Write { name: target, text: Text::new(text) }),
            }
            operations
        }
        Step::Convert { conflist, text, original } => {
            let conf = Text::new(&original.name);
            let write = match content(found, conflist) {
                Some(before) if *before == **text => Vec::new(),
                Some(before) => replace(conflist, before, text, bug),
                None => vec![Create { name: target, text: Text::new(text) }],
            };
            let before = content(found, &conf).unwrap();
            let mut undo = None;
            if content(found, conflist).is_none() {
                undo = Some(Undo { name: target, text: Text::new(text), is_for_changes: false });
            }
            let remove = Remove { name: conf, before, undo };
            let original = Text::new(&serde_json::to_string(original).unwrap());
            let save = vec![SaveOriginal { conflist: target, original }];
            match bug {
                Bug::SaveAfterConversion => [write, vec![remove], save].concat(),
                _ => [save, write, vec![remove]].concat(),
            }
        }
        Step::Restore { original, .. } => {
            let OriginalContent::Text(text) = &original.content else {
                unreachable!("the model has no symbolic links");
            };
            let before = content(found, &target).unwrap();
            let original = Text::new(&original.name);
            let text = Text::new(text);
            if bug == Bug::RestoreOverNewerWrite {
                let remove = Remove { name: target, before, undo: None };
                return vec![Write { name: original, text }, remove];
            }
            let undo = Some(Undo { name: original, text, is_for_changes: true });
            vec![
                Check { name: target, before },
                Create { name: original, text },
                Remove { name: target, before, undo },
            ]
        }
        Step::Remove { .. } => {
            let before = content(found, &target).unwrap();
            vec![Remove { name: target, before, undo: None }]
        }
    }
}
