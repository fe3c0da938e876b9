//! One operation of an agent on the node.

use linkerd2_cni::conflist::saved_state::SavedState;

use super::conflist_step::change;
use super::local::run_local;
use super::stop::{end, next_removal};
use super::{End, Phase, Staged};
use crate::bug::Bug;
use crate::node::{FileContent, Id, NodeFile, saved_state, saved_text};
use crate::operation::Operation::{self, *};
use crate::scenario::Scenario;
use crate::text::Text;
use crate::world::World;

/// Runs the next operation of the agent.
pub fn step(world: &mut World, id: Id, scenario: &Scenario) {
    let Some(operation) = world.agents[id].queue.pop() else {
        return;
    };
    match operation {
        Bind | Lock | CopyBinary | WriteKubeconfig | RemoveLeftovers => {
            prepare(world, id, operation, scenario.bug);
        }
        List | Read(_) | LoadSavedState => read(world, id, operation, scenario),
        SaveOriginal { .. } | SaveOwnConfig { .. } | Forget(_) => remember(world, id, operation),
        Check { .. }
        | Exchange { .. }
        | PutBack { .. }
        | Create { .. }
        | Write { .. }
        | Remove { .. }
        | Return { .. } => {
            change(world, id, operation);
        }
        Stage(_) | Undo => stage(world, id, operation, scenario.bug),
        Finish => end(world, id, End::Uninstalled),
        PlanChain | PlanUnchain | Judge { .. } | EndStep | EndPass | EndUnchain => {
            world.agents[id].queue.push(operation);
        }
    }
    run_local(world, id, scenario);
}

/// The operations before the network configs are read.
fn prepare(world: &mut World, id: Id, operation: Operation, bug: Bug) {
    let agent = &mut world.agents[id];
    match operation {
        Bind => {
            world.node.socket = Some(id);
            world.changed();
        }
        Lock => agent.holds_lock = bug != Bug::NoLock,
        CopyBinary => {
            let own = Some(FileContent::WrittenBy(id));
            let is_right = match agent.newer_agent_runs {
                true => world.node.binary.is_some(),
                false => world.node.binary == own,
            };
            if !is_right {
                write_file(world, id, NodeFile::Binary, own);
            }
        }
        WriteKubeconfig => {
            let own = Some(FileContent::WrittenBy(id));
            let (stopping, found) =
                (matches!(agent.phase, Phase::Deciding(_)), world.node.kubeconfig);
            if stopping && found.is_none() {
                // The plugin is not chained without a kubeconfig.
                agent.queue.retain(|operation| *operation == EndPass);
            } else if !(stopping || agent.newer_agent_runs && found.is_some()) && found != own {
                write_file(world, id, NodeFile::Kubeconfig, own);
            }
        }
        RemoveLeftovers => {
            agent.leftovers_removed = true;
            agent.holds_lock &= agent.phase_is_pass();
            world.node.has_leftovers = false;
            let other = &mut world.agents[1 - id];
            if matches!(other.queue.last(), Some(PutBack { .. } | Return { .. })) {
                other.queue.pop();
                other.abort_step();
            }
        }
        other => unreachable!("{other:?}"),
    }
}

/// The operations that read what a plan needs.
fn read(world: &mut World, id: Id, operation: Operation, scenario: &Scenario) {
    let agent = &mut world.agents[id];
    match operation {
        List => {
            agent.found.clear();
            let names: Vec<Text> = world.node.configs.keys().copied().collect();
            match scenario.reads_one_by_one {
                true => agent.then(names.into_iter().map(Read).collect::<Vec<_>>()),
                false => agent.found.clone_from(&world.node.configs),
            }
        }
        Read(name) => {
            agent.found.extend(world.node.configs.get(&name).map(|text| (name, *text)));
        }
        LoadSavedState => {
            agent.saved = world.node.saved_text();
        }
        other => unreachable!("{other:?}"),
    }
}

/// The operations on the saved state.
fn remember(world: &mut World, id: Id, operation: Operation) {
    let agent = &mut world.agents[id];
    match operation {
        SaveOriginal { conflist, original } => {
            let original = serde_json::from_str(&original).unwrap();
            let is_same = |saved: &SavedState| saved.originals.get(&*conflist) == Some(&original);
            if !is_same(&saved_state(agent.saved)) {
                save(world, id, |saved| {
                    saved.originals.insert(conflist.to_string(), original);
                });
            }
        }
        SaveOwnConfig { name, copied_from } => {
            let copied_from = copied_from.map(|name| name.to_string());
            if saved_state(agent.saved).own_configs.get(&*name) != Some(&copied_from) {
                save(world, id, |saved| {
                    saved.own_configs.insert(name.to_string(), copied_from);
                });
            }
        }
        Forget(name) => {
            let mut saved = saved_state(agent.saved);
            let was_original = saved.originals.remove(&*name).is_some();
            if saved.own_configs.remove(&*name).is_some() || was_original {
                save(world, id, |there| *there = saved);
            }
        }
        other => unreachable!("{other:?}"),
    }
}

/// The operations on the files that an uninstall removes.
fn stage(world: &mut World, id: Id, operation: Operation, bug: Bug) {
    let agent = &mut world.agents[id];
    match operation {
        Stage(file) => {
            if let Some(content) = world.node.file(file).take() {
                agent.staged.push(Staged { file, content });
                world.changed();
            }
        }
        Undo => {
            if let Some(Staged { file, content }) = agent.staged.pop() {
                let there = world.node.file(file);
                if there.is_none() {
                    *there = Some(content);
                    world.changed();
                }
            }
            if !agent_has_staged(world, id) {
                next_removal(world, id, bug);
            }
        }
        other => unreachable!("{other:?}"),
    }
}

fn agent_has_staged(world: &mut World, id: Id) -> bool {
    let agent = &mut world.agents[id];
    if agent.staged.is_empty() {
        agent.queue.retain(|operation| *operation != Undo);
    }
    !agent.staged.is_empty()
}

fn write_file(world: &mut World, id: Id, file: NodeFile, content: Option<FileContent>) {
    *world.node.file(file) = content;
    world.agents[id].wrote = true;
    world.changed();
}

fn save(world: &mut World, id: Id, change: impl FnOnce(&mut SavedState)) {
    let mut saved = saved_state(world.agents[id].saved);
    change(&mut saved);
    let text = saved_text(&saved);
    world.agents[id].saved = Some(text);
    world.node.saved_state = Some(FileContent::Text(text));
    world.changed();
}
