//! An agent: which operations it runs one after the other.

use linkerd2_cni::agent::uninstall::on_stop::{Decider, Finding, StopDecision};
use linkerd2_cni::conflist::saved_state::SavedState;
use std::time::{Duration, Instant};

use crate::bug::Bug;
use crate::node::{Configs, FileContent, Id, NodeFile, saved_state, saved_text};
use crate::operation::Operation::{self, *};
use crate::operation::Undo;
use crate::plans::{self, Reference};
use crate::scenario::Scenario;
use crate::text::Text;
use crate::world::World;

/// Rounds of requests in which a stopping agent asks for proof.
const ROUNDS: usize = 3;
/// As in `agent::uninstall`.
const MAX_REMOVALS: u8 = 3;
/// As `ATTEMPTS` in `agent::uninstall`. Fewer, as the model's foreign writer writes less often.
const ATTEMPTS: u8 = 3;

/// What the API server says to an agent that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    DaemonSetExists,
    DaemonSetDeleted,
    /// HTTP 401 for every token.
    AccountsDeleted,
    /// HTTP 403.
    Forbidden,
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    NotStarted,
    Running,
    /// The agent received SIGTERM. The responses so far.
    Deciding(Vec<Api>),
    Uninstalling {
        removal: u8,
        attempt: u8,
    },
    /// Killed. The kubelet starts it again.
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
    /// Another program kept chaining the plugin.
    GaveUp,
}

/// A file under a temporary name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Staged {
    pub file: NodeFile,
    pub content: FileContent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    pub phase: Phase,
    /// The next operations, the last one first.
    pub queue: Vec<Operation>,
    /// A file changed since the last pass began.
    pub is_dirty: bool,
    pub holds_lock: bool,
    leftovers_removed: bool,
    newer_agent_runs: bool,
    /// The network configs as far as they are read.
    found: Configs,
    saved: Option<Text>,
    has_raced: bool,
    pub staged: Vec<Staged>,
    /// Passes that wrote since the environment changed. Shows writers that never come to an end.
    pub writing_passes: u8,
    wrote: bool,
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            phase: Phase::NotStarted,
            queue: Vec::new(),
            is_dirty: false,
            holds_lock: false,
            leftovers_removed: false,
            newer_agent_runs: false,
            found: Configs::new(),
            saved: None,
            has_raced: false,
            staged: Vec::new(),
            writing_passes: 0,
            wrote: false,
        }
    }
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
        matches!(self.phase, Phase::Running | Phase::Deciding(_)) && !self.queue.contains(&Bind)
    }

    fn phase_is_pass(&self) -> bool {
        !matches!(self.phase, Phase::Uninstalling { .. })
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

    fn then(
        &mut self,
        operations: impl IntoIterator<Item = Operation, IntoIter: DoubleEndedIterator>,
    ) {
        self.queue.extend(operations.into_iter().rev());
    }

    /// Cuts off the rest of the step.
    fn abort_step(&mut self) {
        self.has_raced = true;
        self.wrote = true;
        while let Some(operation) = self.queue.pop() {
            if operation == EndStep {
                break;
            }
        }
    }
}

impl Agent {
    /// Cuts off the rest of the step, and undoes what it wrote.
    fn abort_removal(&mut self, undo: Option<Undo>) {
        self.abort_step();
        if let Some(Undo { name, text, .. }) = undo {
            self.then([Remove { name, before: text, undo: None }, EndStep]);
        }
    }
}

fn scan(last: Operation) -> [Operation; 2] {
    [List, last]
}

/// Starts a pass.
pub fn begin_pass(world: &mut World, id: Id, bug: Bug) {
    let newer = newer_agent_runs(world, id) && bug != Bug::NoYielding;
    let agent = &mut world.agents[id];
    agent.is_dirty = false;
    agent.newer_agent_runs = newer;
    let files = [CopyBinary, WriteKubeconfig];
    let mut pass = vec![Lock];
    pass.extend(files.clone());
    if !agent.leftovers_removed {
        pass.push(RemoveLeftovers);
    }
    pass.extend([List, LoadSavedState, PlanChain]);
    if bug == Bug::ChainBeforeBinary {
        pass.drain(1..3);
        pass.extend(files);
    }
    pass.push(EndPass);
    agent.then(pass);
}

/// As `RecordSocket::newer_agent_runs`.
pub fn newer_agent_runs(world: &World, id: Id) -> bool {
    world.node.socket.is_some_and(|other| other != id && world.agents[other].reads_socket())
}

/// The next request of an agent that stops.
pub fn ask(world: &mut World, id: Id, bug: Bug) {
    let api = world.api[id];
    let Phase::Deciding(responses) = &mut world.agents[id].phase else {
        return;
    };
    responses.push(api);
    match decision(responses, bug) {
        Some(StopDecision::Uninstall(_)) => begin_uninstall(world, id, bug),
        Some(StopDecision::LeaveInPlace(_)) => leave(world, id),
        None => {}
    }
}

/// The decision of the product, for responses that are five seconds apart.
fn decision(responses: &[Api], bug: Bug) -> Option<StopDecision> {
    let (mut decider, begin) = (Decider::new(false), Instant::now());
    for (round, response) in (0..).zip(responses) {
        let finding = match response {
            Api::DaemonSetExists => Finding::InScope,
            Api::DaemonSetDeleted => Finding::Uninstalled("deleted".into()),
            Api::Forbidden if bug == Bug::ForbiddenIsProof => Finding::Uninstalled("403".into()),
            Api::AccountsDeleted => Finding::Rejected,
            Api::Forbidden => Finding::Unclear("HTTP 403".into()),
            Api::Unreachable => Finding::Unreachable("connection refused".into()),
        };
        if let Some(decision) = decider.decide(&finding, begin + Duration::from_secs(5 * round)) {
            return Some(decision);
        }
    }
    (responses.len() >= ROUNDS).then(|| StopDecision::LeaveInPlace("no proof".into()))
}

pub fn leave(world: &mut World, id: Id) {
    remove_socket(world, id);
    end(world, id, End::Left);
}

fn remove_socket(world: &mut World, id: Id) {
    if world.node.socket == Some(id) {
        world.node.socket = None;
        world.changed();
    }
}

fn end(world: &mut World, id: Id, end: End) {
    world.agents[id] = Agent { phase: Phase::Ended(end), ..Agent::default() };
    world.last_end = Some(id);
    world.ended_beside_uninstall |= end != End::Uninstalled
        && world.agents.iter().any(|other| matches!(other.phase, Phase::Uninstalling { .. }));
}

fn begin_uninstall(world: &mut World, id: Id, bug: Bug) {
    remove_socket(world, id);
    world.ended_beside_uninstall = false;
    let agent = &mut world.agents[id];
    agent.forget_scan();
    agent.is_dirty = false;
    agent.phase = Phase::Uninstalling { removal: 1, attempt: 0 };
    agent.then([Lock, RemoveLeftovers]);
    attempt(agent, bug);
}

/// As `agent::uninstall::attempt`.
fn attempt(agent: &mut Agent, bug: Bug) {
    let mut operations = vec![Lock, LoadSavedState];
    if bug == Bug::RemoveBinaryFirst {
        operations.extend([Stage(NodeFile::Kubeconfig), Stage(NodeFile::Binary)]);
    }
    operations.extend(scan(PlanUnchain));
    operations.extend([EndUnchain, Lock]);
    operations.extend(scan(Judge { is_staged: false }));
    // The operations of the beginning come first.
    operations.reverse();
    let first = std::mem::take(&mut agent.queue);
    agent.queue = operations;
    agent.queue.extend(first);
}

/// Runs the next operation of the agent.
pub fn step(world: &mut World, id: Id, scenario: &Scenario) {
    let Some(operation) = world.agents[id].queue.pop() else {
        return;
    };
    let bug = scenario.bug;
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
        List => {
            agent.found.clear();
            let names: Vec<Text> = world.node.configs.keys().copied().collect();
            match scenario.reads_one_by_one {
                true => agent.then(names.into_iter().map(Read).collect::<Vec<_>>()),
                false => agent.found.clone_from(&world.node.configs),
            }
            plan(world, id, scenario);
        }
        Read(name) => {
            agent.found.extend(world.node.configs.get(&name).map(|text| (name, *text)));
            plan(world, id, scenario);
        }
        LoadSavedState => {
            agent.saved = world.node.saved_text();
            plan(world, id, scenario);
        }
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
                // Without the lock, the step's file stays if it is the only network config.
                let holds_lock = agent.holds_lock;
                let configs = world.node.configs.keys();
                let undo = undo.filter(|undo| {
                    let others = configs.clone().any(|name| *name != undo.name);
                    !undo.is_for_changes && (holds_lock || others)
                });
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
        Finish => end(world, id, End::Uninstalled),
        PlanChain | PlanUnchain | Judge { .. } | EndStep | EndPass | EndUnchain => {
            world.agents[id].queue.push(operation);
        }
    }
    run_local(world, id, scenario);
}

fn agent_has_staged(world: &mut World, id: Id) -> bool {
    let agent = &mut world.agents[id];
    if agent.staged.is_empty() {
        agent.queue.retain(|operation| *operation != Undo);
    }
    !agent.staged.is_empty()
}

/// Plans as soon as all reads that the plan needs are done: planning touches no file.
fn plan(world: &mut World, id: Id, scenario: &Scenario) {
    run_local(world, id, scenario);
}

/// Runs the operations that touch no file and that no other actor can see.
fn run_local(world: &mut World, id: Id, scenario: &Scenario) {
    let bug = scenario.bug;
    loop {
        let agent = &mut world.agents[id];
        match agent.queue.last() {
            Some(EndStep) => {
                agent.queue.pop();
            }
            Some(PlanChain) => {
                agent.queue.pop();
                let steps = scenario.plans.chain(
                    id,
                    agent.newer_agent_runs,
                    &agent.found,
                    agent.saved,
                    bug,
                );
                agent.found.clear();
                agent.then(steps);
            }
            Some(PlanUnchain) => {
                agent.queue.pop();
                agent.has_raced = false;
                let steps = plans::unchain(&agent.found, agent.saved, bug);
                agent.found.clear();
                agent.then(steps);
            }
            Some(EndPass) => {
                agent.queue.pop();
                agent.is_dirty |= agent.wrote;
                agent.writing_passes += u8::from(agent.wrote);
                agent.has_raced = false;
                agent.holds_lock = false;
                agent.forget_scan();
            }
            Some(EndUnchain) => {
                agent.queue.pop();
                let Phase::Uninstalling { attempt, .. } = &mut agent.phase else {
                    return;
                };
                *attempt += 1;
                let repeats = agent.has_raced && *attempt < ATTEMPTS;
                agent.has_raced = false;
                agent.wrote = false;
                agent.holds_lock &= repeats;
                if repeats {
                    agent.then([List, PlanUnchain, EndUnchain]);
                }
            }
            Some(Judge { is_staged }) => {
                let is_staged = *is_staged;
                agent.queue.pop();
                judge(world, id, is_staged, bug);
            }
            _ => return,
        }
    }
}

fn judge(world: &mut World, id: Id, is_staged: bool, bug: Bug) {
    let agent = &mut world.agents[id];
    let reference = plans::reference(&agent.found);
    agent.found.clear();
    match (reference, is_staged) {
        (Reference::Missing, false) => {
            let files = [NodeFile::Kubeconfig, NodeFile::Binary, NodeFile::SavedState];
            agent.then(
                files
                    .map(Stage)
                    .into_iter()
                    .chain([List, Judge { is_staged: true }])
                    .collect::<Vec<_>>(),
            );
        }
        (Reference::Missing, true) => agent.then([Finish]),
        (Reference::Found, true) if !agent.staged.is_empty() => {
            agent.then(vec![Undo; agent.staged.len()]);
        }
        (Reference::Found, _) => next_removal(world, id, bug),
    }
}

/// Removes the plugin entry again, or gives up.
fn next_removal(world: &mut World, id: Id, bug: Bug) {
    let agent = &mut world.agents[id];
    agent.holds_lock = false;
    agent.forget_scan();
    match &mut agent.phase {
        Phase::Uninstalling { removal, attempt: attempts } if *removal < MAX_REMOVALS => {
            *removal += 1;
            *attempts = 0;
            attempt(agent, bug);
        }
        _ => end(world, id, End::GaveUp),
    }
}

fn write_file(world: &mut World, id: Id, file: NodeFile, content: Option<FileContent>) {
    *world.node.file(file) = content;
    world.agents[id].wrote = true;
    world.changed();
}

fn write(world: &mut World, id: Id, name: Text, text: Text) {
    world.node.configs.insert(name, text);
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

/// Whether the next operation waits for the lock, which the other agent holds.
pub fn is_locked_out(world: &World, id: Id) -> bool {
    world.agents[id].queue.last() == Some(&Lock) && world.agents[1 - id].holds_lock
}
