//! One operation of an agent on the node.

use linkerd2_cni::conflist::saved_state::SavedState;

use super::stop::{end, judge, next_removal};
use super::{End, Phase, newer_agent_runs};
use crate::facts;
use crate::node::{FileContent, Id, NodeFile, saved_state, saved_text};
use crate::operation::Operation::{self, *};
use crate::operation::Undo;
use crate::plans::Purpose;
use crate::scenario::{Bug, Scenario};
use crate::text::Text;
use crate::world::World;

/// Runs the next operation of the agent, and those after it that no other actor can see.
pub fn step(world: &mut World, id: Id, scenario: &Scenario) {
    let Some(operation) = world.agents[id].queue.pop() else {
        return;
    };
    run(world, id, operation, scenario);
    // Agents read and write the record only while they hold the lock, so reading it is local.
    let is_local = |operation: &mut Operation| {
        matches!(
            operation,
            ReadRecord
                | PlanChain
                | PlanWithdrawal
                | PlanUnchain
                | Judge { .. }
                | EndStep
                | EndPass
                | EndUnchain
        )
    };
    while let Some(operation) = world.agents[id].queue.pop_if(is_local) {
        run_local(world, id, operation, scenario);
    }
}

fn run(world: &mut World, id: Id, operation: Operation, scenario: &Scenario) {
    let agent = &mut world.agents[id];
    match operation {
        Bind => {
            let older_agent_ran = newer_agent_runs(world, id);
            world.agents[id].older_agent_ran = older_agent_ran;
            world.node.socket = Some(id);
            world.changed();
        }
        Lock => agent.holds_lock = scenario.bug != Bug::NoLock,
        CopyBinary => {
            let own = Some(FileContent::WrittenBy(id));
            let is_right = if agent.newer_agent_runs {
                world.node.binary.is_some()
            } else {
                world.node.binary == own
            };
            // Like `Reconciler::reconcile`, an agent that stops leaves an empty node as it is.
            let is_deferred = matches!(agent.phase, Phase::Deciding(_))
                && world.node.binary.is_none()
                && world.node.kubeconfig.is_none()
                && agent.found.values().all(|text| facts::config(*text).calls == 0);
            if !is_right && !is_deferred {
                write_file(world, id, NodeFile::Binary, own);
            }
        }
        WriteKubeconfig => write_kubeconfig(world, id),
        RemoveLeftovers => remove_leftovers(world, id),
        List => {
            agent.found.clear();
            if scenario.reads_one_by_one {
                let reads: Vec<Operation> = world.node.configs.keys().copied().map(Read).collect();
                agent.then(reads);
            } else {
                agent.found.clone_from(&world.node.configs);
            }
        }
        Read(name) => {
            if let Some(text) = world.node.configs.get(&name) {
                agent.found.insert(name, *text);
            }
        }
        LoadSavedState => agent.saved = world.node.saved_text(),
        SaveOriginal { conflist, original } => {
            let original = serde_json::from_str(&original).unwrap();
            save(world, id, |saved| {
                saved.originals.insert(conflist.to_string(), original);
            });
        }
        SaveStandalone(name) => save(world, id, |saved| {
            saved.standalone_configs.insert(name.to_string());
        }),
        SaveOnly(name) => save(world, id, |saved| {
            saved.only_config = name.map(|name| name.to_string());
        }),
        Forget(name) => save(world, id, |saved| {
            saved.originals.remove(&*name);
            saved.standalone_configs.remove(&*name);
        }),
        Check { name, before } => {
            if world.node.configs.get(&name) != Some(&before) {
                agent.abort_step();
            }
        }
        Exchange { name, before, new } => match world.node.configs.get(&name).copied() {
            None => agent.abort_step(),
            Some(found) => {
                if found != before {
                    agent.then([PutBack { name, content: found, expected: new }]);
                }
                write_config(world, id, name, new);
            }
        },
        PutBack { name, content, expected } => match world.node.configs.get(&name).copied() {
            None => agent.abort_step(),
            Some(found) => {
                if found == expected {
                    agent.abort_step();
                } else {
                    agent.then([PutBack { name, content: found, expected: content }]);
                }
                write_config(world, id, name, content);
            }
        },
        Create { name, text } => {
            if world.node.configs.contains_key(&name) {
                agent.abort_step();
            } else {
                write_config(world, id, name, text);
            }
        }
        Write { name, text } => write_config(world, id, name, text),
        Remove { name, before, undo } => remove(world, id, name, before, undo),
        Return { name, content, undo } => {
            agent.abort_removal(undo.filter(|undo| undo.is_for_changes));
            world.node.configs.entry(name).or_insert(content);
            world.changed();
        }
        Stage(file) => {
            if let Some(content) = world.node.file(file).take() {
                agent.staged.push((file, content));
                world.changed();
            }
        }
        Undo => undo_stage(world, id, scenario.bug),
        Finish => {
            if world.node.withdrawn.take().is_some() {
                world.changed();
            }
            end(world, id, End::Uninstalled);
        }
        WriteRecord => {
            world.node.withdrawn = Some(id);
            world.changed();
        }
        RemoveRecord => {
            world.node.withdrawn = None;
            world.changed();
        }
        ReadRecord
        | PlanChain
        | PlanWithdrawal
        | PlanUnchain
        | Judge { .. }
        | EndStep
        | EndPass
        | EndUnchain => {
            run_local(world, id, operation, scenario);
        }
    }
}

/// Runs an operation that touches no file and that no other actor can see: planning, and the ends
/// of steps and passes.
fn run_local(world: &mut World, id: Id, operation: Operation, scenario: &Scenario) {
    let (agent, bug) = (&mut world.agents[id], scenario.bug);
    match operation {
        ReadRecord => read_record(world, id, bug),
        PlanChain | PlanWithdrawal | PlanUnchain => {
            let purpose = match operation {
                PlanChain => Purpose::Chain { id, newer_agent_runs: agent.newer_agent_runs },
                PlanWithdrawal => Purpose::Withdrawal,
                _ => Purpose::Uninstall,
            };
            let found = std::mem::take(&mut agent.found);
            agent.then(scenario.plans.steps((purpose, found, agent.saved), bug));
        }
        EndPass => {
            agent.is_dirty |= agent.wrote;
            agent.writing_passes += u8::from(agent.wrote);
            agent.holds_lock = false;
            agent.forget_scan();
        }
        EndUnchain => {
            agent.wrote = false;
            agent.holds_lock = false;
        }
        Judge { is_staged } => judge(world, id, is_staged, bug),
        // Ends a step that nothing disturbed.
        _ => {}
    }
}

/// As `Withdrawals::decide`.
fn read_record(world: &mut World, id: Id, bug: Bug) {
    let recorded = world.node.withdrawn;
    let agent = &mut world.agents[id];
    let is_ignored = bug == Bug::IgnoreRecordOfNewerAgent;
    if agent.newer_agent_runs {
        if recorded.is_some() && !is_ignored {
            agent.queue.retain(|operation| *operation != PlanChain);
        }
        return;
    }
    if recorded == Some(id) {
        agent.has_recorded = true;
    } else if agent.has_recorded {
        // The record is gone.
        agent.has_recorded = false;
        agent.has_evidence = false;
    }
    if recorded == Some(id) || agent.has_evidence {
        agent.queue.retain(|operation| *operation != PlanChain);
        agent.then([PlanWithdrawal]);
    }
    if recorded.is_some_and(|other| other != id) {
        agent.then([RemoveRecord]);
    }
    if recorded != Some(id) && agent.has_evidence {
        agent.has_recorded = true;
        agent.then([WriteRecord]);
    }
}

fn write_kubeconfig(world: &mut World, id: Id) {
    let agent = &mut world.agents[id];
    let own = Some(FileContent::WrittenBy(id));
    let (stopping, found) = (matches!(agent.phase, Phase::Deciding(_)), world.node.kubeconfig);
    if stopping && found.is_none() {
        // The plugin is not chained without a kubeconfig.
        agent.queue.retain(|operation| *operation == EndPass);
    } else if !(stopping || agent.newer_agent_runs && found.is_some()) && found != own {
        write_file(world, id, NodeFile::Kubeconfig, own);
    }
}

fn remove_leftovers(world: &mut World, id: Id) {
    let agent = &mut world.agents[id];
    agent.leftovers_removed = true;
    agent.holds_lock &= !matches!(agent.phase, Phase::Uninstalling { .. });
    world.node.has_leftovers = false;
    let other = &mut world.agents[1 - id];
    if matches!(other.queue.last(), Some(PutBack { .. } | Return { .. })) {
        other.queue.pop();
        other.abort_step();
    }
}

fn remove(world: &mut World, id: Id, name: Text, before: Text, undo: Option<Undo>) {
    let agent = &mut world.agents[id];
    let Some(found) = world.node.configs.remove(&name) else {
        // Without the lock, the step's file stays.
        let holds_lock = agent.holds_lock;
        return agent.abort_removal(undo.filter(|undo| !undo.is_for_changes && holds_lock));
    };
    agent.wrote = true;
    if found != before {
        agent.then([Return { name, content: found, undo }]);
    }
    world.changed();
}

/// Gives the file that was staged last its name back. After the first one, the uninstall continues.
fn undo_stage(world: &mut World, id: Id, bug: Bug) {
    if let Some((file, content)) = world.agents[id].staged.pop() {
        let current = world.node.file(file);
        if current.is_none() {
            *current = Some(content);
            world.changed();
        }
    }
    let agent = &mut world.agents[id];
    if agent.staged.is_empty() {
        agent.queue.retain(|operation| *operation != Operation::Undo);
        next_removal(world, id, bug);
    }
}

fn write_file(world: &mut World, id: Id, file: NodeFile, content: Option<FileContent>) {
    *world.node.file(file) = content;
    world.agents[id].wrote = true;
    world.changed();
}

fn write_config(world: &mut World, id: Id, name: Text, text: Text) {
    world.node.configs.insert(name, text);
    world.agents[id].wrote = true;
    world.changed();
}

/// Writes the saved state if `change` changes it.
fn save(world: &mut World, id: Id, change: impl FnOnce(&mut SavedState)) {
    let before = saved_state(world.agents[id].saved);
    let mut saved = before.clone();
    change(&mut saved);
    if saved != before {
        let text = saved_text(&saved);
        world.agents[id].saved = Some(text);
        world.node.saved_state = Some(FileContent::Text(text));
        world.changed();
    }
}
