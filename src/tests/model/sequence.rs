//! The order in which one undisturbed agent of the model writes. The test `operations` of the suite
//! `agent` compares the real agent's writes, as strace shows them, with the same files.

use linkerd2_cni::conflist::PLUGIN;
use linkerd2_cni::conflist::saved_state;
use linkerd2_cni::record::SOCKET_NAME;
use stateright::Model;

use crate::node::NodeFile;
use crate::operation::Operation::{self, *};
use crate::scenario::{CONF, CONFLIST, Scenario, every};
use crate::world::{Action, World};

fn file_name(file: NodeFile) -> &'static str {
    match file {
        NodeFile::Kubeconfig => "kubeconfig.json",
        NodeFile::Binary => PLUGIN,
        NodeFile::SavedState => saved_state::NAME,
    }
}

/// The operation as the test of the real agent describes it.
fn line(operation: &Operation) -> Option<String> {
    Some(match operation {
        Bind => format!("write {SOCKET_NAME}"),
        CopyBinary => format!("write {PLUGIN}"),
        WriteKubeconfig => format!("write {}", file_name(NodeFile::Kubeconfig)),
        SaveOriginal { .. } | SaveStandalone(_) | SaveOnly(_) | Forget(_) => {
            format!("write {}", saved_state::NAME)
        }
        Exchange { name, .. } => format!("exchange {}", &**name),
        Create { name, .. } => format!("create {}", &**name),
        Write { name, .. } => format!("write {}", &**name),
        Remove { name, .. } => format!("take {}", &**name),
        Finish => format!("remove {SOCKET_NAME}"),
        Stage(file) => format!("take {}", file_name(*file)),
        _ => return None,
    })
}

/// Performs an action and all that follows from it. Adds a line for each write.
fn run(scenario: &Scenario, world: &mut World, first: Action, lines: &mut Vec<String>) {
    let mut next = Some(first);
    while let Some(action) = next {
        let after = scenario.next_state(world, action.clone()).unwrap();
        let held_lock = world.agents[0].holds_lock;
        let holds_lock = after.agents[0].holds_lock;
        if !held_lock && holds_lock {
            lines.push("lock".into());
        }
        if world.node != after.node {
            match &action {
                Action::Step(_, operation) => lines.extend(line(operation)),
                _ => lines.push(format!("remove {SOCKET_NAME}")),
            }
        }
        if held_lock && !holds_lock {
            if lines.last().is_some_and(|line| line == "lock") {
                // The agent wrote nothing while it held the lock, so the line is removed.
                lines.pop();
            } else {
                lines.push("unlock".into());
            }
        }
        *world = after;
        // The agent is asked only once nothing else is due.
        next = world.due().into_iter().next();
    }
}

/// Returns the writes from the start of an agent to the end of its uninstall.
fn sequence(primary: &'static str) -> String {
    let scenario = Scenario { agents: 1, ..Scenario::new("", [every(), every()], primary) };
    let mut world = scenario.init_states().remove(0);
    let mut lines = Vec::new();
    run(&scenario, &mut world, Action::Start(0), &mut lines);
    run(&scenario, &mut world, Action::Stop(0), &mut lines);
    lines.join("\n") + "\n"
}

#[test]
fn model_writes_in_the_order_of_the_real_agent() {
    assert_eq!(sequence(CONFLIST), include_str!("sequence/10-net.conflist.txt"));
    assert_eq!(sequence(CONF), include_str!("sequence/10-net.conf.txt"));
}
