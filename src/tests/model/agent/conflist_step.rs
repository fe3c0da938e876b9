//! The operations of the steps of a plan: they change a conflist only if it holds what the agent read.

use super::Agent;
use crate::node::Id;
use crate::operation::Operation::{self, *};
use crate::text::Text;
use crate::world::World;

/// Runs one operation on a file in the CNI net dir.
pub(super) fn change(world: &mut World, id: Id, operation: Operation) {
    let agent: &mut Agent = &mut world.agents[id];
    match operation {
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
                write(world, id, name, new);
            }
        },
        PutBack { name, content, expected } => match world.node.configs.get(&name).copied() {
            None => agent.abort_step(),
            Some(found) => {
                match found == expected {
                    true => agent.abort_step(),
                    false => agent.then([PutBack { name, content: found, expected: content }]),
                }
                write(world, id, name, content);
            }
        },
        Create { name, text } => match world.node.configs.contains_key(&name) {
            true => agent.abort_step(),
            false => write(world, id, name, text),
        },
        Write { name, text } => write(world, id, name, text),
        Remove { name, before, undo } => match world.node.configs.get(&name).copied() {
            None => {
                // Without the lock, the step's file stays.
                let holds_lock = agent.holds_lock;
                let undo = undo.filter(|undo| !undo.is_for_changes && holds_lock);
                agent.abort_removal(undo);
            }
            Some(found) => {
                world.node.configs.remove(&name);
                agent.wrote = true;
                if found != before {
                    agent.then([Return { name, content: found, undo }]);
                }
                world.changed();
            }
        },
        Return { name, content, undo } => {
            agent.abort_removal(undo.filter(|undo| undo.is_for_changes));
            world.node.configs.entry(name).or_insert(content);
            world.changed();
        }
        other => unreachable!("{other:?} changes no network config"),
    }
}

fn write(world: &mut World, id: Id, name: Text, text: Text) {
    world.node.configs.insert(name, text);
    world.agents[id].wrote = true;
    world.changed();
}
