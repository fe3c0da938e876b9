//! An agent: which operations it runs one after the other.

mod step;
mod stop;

pub use step::step;
pub use stop::ask;

use crate::node::{Configs, FileContent, Id, NodeFile};
use crate::operation::Operation::{self, *};
use crate::operation::Undo;
use crate::scenario::Bug;
use crate::text::Text;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    DaemonSetExists,
    DaemonSetDeleted,
    /// HTTP 401 for every token, since SIGTERM.
    AccountsDeleted,
    /// HTTP 401 for every token, since long before SIGTERM: the signing key was replaced.
    TokensRejectedBefore,
    /// HTTP 401 for every token, since the agent's pod was deleted by force.
    PodDeletedByForce,
    Forbidden,
    Unreachable,
}

impl Api {
    /// Whether the responses prove an uninstall.
    pub fn is_proof(self) -> bool {
        matches!(self, Api::DaemonSetDeleted | Api::AccountsDeleted)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    NotStarted,
    Running,
    // The agent received SIGTERM. The responses so far.
    Deciding(Vec<Api>),
    Uninstalling {
        removal: u8,
    },
    // Killed. The kubelet starts it again.
    Crashed,
    Ended(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Killed while it stopped, so it is not started again.
    Killed,
    /// Left the plugin for the next agent.
    Left,
    Uninstalled,
    /// A newer agent has uninstalled meanwhile.
    NothingInstalled,
    /// Another program kept chaining the plugin.
    GaveUp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Agent {
    pub phase: Phase,
    /// The next operations, the last one first.
    pub queue: Vec<Operation>,
    /// A file changed since the last pass began.
    pub is_dirty: bool,
    pub holds_lock: bool,
    leftovers_removed: bool,
    newer_agent_runs: bool,
    /// Another agent ran when this one started.
    pub older_agent_ran: bool,
    /// The number of responses after which a newer agent was seen last, since SIGTERM. Then this
    /// agent no longer reconciles.
    pub newer_agent_seen: Option<u32>,
    /// The network configs as far as they are read.
    found: Configs,
    saved: Option<Text>,
    /// Files under temporary names.
    pub staged: Vec<(NodeFile, FileContent)>,
    /// The container runtime has shown that it cannot run the plugin through this agent's chain.
    pub has_evidence: bool,
    /// This agent has found or written the record of its withdrawal.
    has_recorded: bool,
    /// Passes that wrote since the environment changed. Shows writers that never come to an end.
    pub writing_passes: u8,
    wrote: bool,
}

impl Agent {
    pub fn start() -> Agent {
        Agent { phase: Phase::Running, queue: vec![Bind], is_dirty: true, ..Agent::default() }
    }

    /// The agent after SIGKILL.
    pub fn killed(&self) -> Agent {
        let phase = match self.phase {
            Phase::Running => Phase::Crashed,
            _ => Phase::Ended(End::Killed),
        };
        Agent { phase, ..Agent::default() }
    }

    pub fn reads_socket(&self) -> bool {
        self.is_alive() && !self.queue.contains(&Bind)
    }

    pub fn is_alive(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Deciding(_) | Phase::Uninstalling { .. })
    }

    /// Removes what the next states do not depend on, so that equal states are equal.
    fn forget_scan(&mut self) {
        self.found = Configs::new();
        self.saved = None;
        self.newer_agent_runs = false;
        self.wrote = false;
    }

    /// Adds operations that run before those that are already in the queue.
    fn then(
        &mut self,
        operations: impl IntoIterator<Item = Operation, IntoIter: DoubleEndedIterator>,
    ) {
        self.queue.extend(operations.into_iter().rev());
    }

    /// Removes the remaining operations of the step.
    fn abort_step(&mut self) {
        self.wrote = true;
        while let Some(operation) = self.queue.pop() {
            if operation == EndStep {
                break;
            }
        }
    }

    /// Removes the remaining operations of the step, and undoes its writes.
    fn abort_removal(&mut self, undo: Option<Undo>) {
        self.abort_step();
        if let Some(Undo { name, text, .. }) = undo {
            self.then([Remove { name, before: text, undo: None }, EndStep]);
        }
    }
}

pub fn begin_pass(world: &mut World, id: Id, bug: Bug) {
    let newer = newer_agent_runs(world, id) && bug != Bug::NoYielding;
    let agent = &mut world.agents[id];
    agent.is_dirty = false;
    agent.newer_agent_runs = newer;
    let files = [CopyBinary, WriteKubeconfig];
    let mut pass = vec![Lock, List, LoadSavedState];
    if bug != Bug::ChainBeforeBinary {
        pass.extend(files.clone());
    }
    if !agent.leftovers_removed {
        pass.push(RemoveLeftovers);
    }
    pass.extend([ReadRecord, PlanChain]);
    if bug == Bug::ChainBeforeBinary {
        pass.extend(files);
    }
    pass.push(EndPass);
    agent.then(pass);
}

/// Decides like `RecordSocket::newer_agent_runs`.
pub fn newer_agent_runs(world: &World, id: Id) -> bool {
    world.node.socket.is_some_and(|other| other != id && world.agents[other].reads_socket())
}

/// Whether the next operation waits for the lock, which the other agent holds.
pub fn is_locked_out(world: &World, id: Id) -> bool {
    world.agents[id].queue.last() == Some(&Lock) && world.agents[1 - id].holds_lock
}
