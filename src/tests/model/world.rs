//! The state of the model, and what can happen next.

use stateright::{Model, Property};

use crate::agent::{self, Agent, Api, Phase};
use crate::foreign::{Foreign, ForeignAction};
use crate::node::{Id, Node};
use crate::operation::Operation;
use crate::properties;
use crate::scenario::{SECOND, SECOND_TEXT, Scenario};
use crate::text::Text;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub node: Node,
    pub agents: [Agent; 2],
    pub foreign: Foreign,
    pub api: [Api; 2],
    pub kills_left: u8,
    /// The agent that ended last.
    pub last_end: Option<Id>,
    /// An agent was killed, or left the plugin in place, while the last uninstall ran.
    pub ended_beside_uninstall: bool,
    /// An agent with proof left the plugin in place before its time was over.
    pub left_early: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Start(Id),
    /// SIGTERM.
    Stop(Id),
    /// SIGKILL.
    Kill(Id),
    /// The kubelet starts a killed agent again.
    Restart(Id),
    Pass(Id),
    Step(Id, Operation),
    Ask(Id),
    /// An Event shows that the container runtime cannot run the plugin through the agent's chain.
    Evidence(Id),
    /// Creates the record socket again, whose owner has ended.
    Rebind(Id),
    Foreign(ForeignAction),
}

impl World {
    /// Tells the agents that a file changed.
    pub fn changed(&mut self) {
        for agent in &mut self.agents {
            agent.is_dirty |= matches!(agent.phase, Phase::Running | Phase::Deciding(_));
        }
    }

    /// What the agents and the kubelet do sooner or later, whatever else happens.
    pub fn due(&self) -> Vec<Action> {
        let mut due = Vec::new();
        for (id, agent) in self.agents.iter().enumerate() {
            if agent.phase == Phase::Crashed {
                due.push(Action::Restart(id));
            }
            if let Some(operation) = agent.queue.last() {
                if !agent::is_locked_out(self, id) {
                    due.push(Action::Step(id, operation.clone()));
                }
                continue;
            }
            if !matches!(agent.phase, Phase::Running | Phase::Deciding(_)) {
                continue;
            }
            if agent.is_dirty && agent.newer_agent_seen.is_none() {
                due.push(Action::Pass(id));
            }
            if matches!(agent.phase, Phase::Deciding(_)) {
                due.push(Action::Ask(id));
            }
            if self.node.socket != Some(id) && !agent::newer_agent_runs(self, id) {
                due.push(Action::Rebind(id));
            }
        }
        due
    }

    pub fn is_quiescent(&self) -> bool {
        self.due().is_empty()
    }

    /// The agent that started last of those that run. It has the record socket.
    pub fn newest_running(&self) -> Option<Id> {
        let runs = |id: &Id| self.agents[*id].phase == Phase::Running;
        self.node.socket.filter(runs).or_else(|| [0, 1].into_iter().find(runs))
    }

    /// What may happen, but need not.
    fn possible(&self, scenario: &Scenario, actions: &mut Vec<Action>) {
        for (id, agent) in self.agents.iter().enumerate().take(scenario.agents) {
            let may_start = id == 0 || self.agents[0].phase != Phase::NotStarted;
            if agent.phase == Phase::NotStarted && may_start {
                actions.push(Action::Start(id));
            }
            // A running pass does not notice the signal.
            if agent.phase == Phase::Running && agent.queue.is_empty() {
                actions.push(Action::Stop(id));
            }
            if scenario.has_evidence && self.may_get_evidence(scenario, id) {
                actions.push(Action::Evidence(id));
            }
            let is_putting_back = matches!(
                agent.queue.last(),
                Some(Operation::PutBack { .. } | Operation::Return { .. })
            );
            if self.kills_left > 0
                && agent.is_alive()
                && !agent.queue.is_empty()
                && !is_putting_back
            {
                actions.push(Action::Kill(id));
            }
        }
        let is_returning =
            |agent: &Agent| matches!(agent.queue.last(), Some(Operation::Return { .. }));
        if !self.agents.iter().any(is_returning) {
            actions.extend(self.foreign.actions(&self.node).into_iter().map(Action::Foreign));
        }
    }

    /// Whether the chain of the agent is in place, and nothing has spoken against it yet.
    fn may_get_evidence(&self, scenario: &Scenario, id: Id) -> bool {
        let agent = &self.agents[id];
        agent.phase == Phase::Running
            && agent.queue.is_empty()
            && !agent.is_dirty
            && !agent.has_evidence
            && self.node.withdrawn != Some(id)
            && self.newest_running() == Some(id)
            && properties::has_own_entry(scenario, self, id)
    }

    fn stop(&mut self, id: Id) {
        if agent::newer_agent_runs(self, id) {
            self.agents[id].newer_agent_seen = Some(0);
        }
        self.agents[id].phase = Phase::Deciding(Vec::new());
    }

    fn kill(&mut self, id: Id) {
        let killed = self.agents[id].killed();
        let other = &self.agents[1 - id];
        self.ended_beside_uninstall |= matches!(other.phase, Phase::Uninstalling { .. });
        if matches!(killed.phase, Phase::Ended(_)) {
            self.last_end = Some(id);
        }
        self.agents[id] = killed;
        self.kills_left -= 1;
        self.node.has_leftovers = true;
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        for api in &self.api {
            let (foreign, mut node) = Foreign::start(self.primary, self.foreign_writes);
            if self.has_second {
                node.configs.insert(Text::new(SECOND), Text::new(SECOND_TEXT));
            }
            worlds.push(World {
                node,
                agents: Default::default(),
                foreign,
                api: *api,
                kills_left: self.kills,
                last_end: None,
                ended_beside_uninstall: false,
                left_early: false,
            });
        }
        worlds
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        actions.extend(world.due());
        world.possible(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        if matches!(
            action,
            Action::Start(_)
                | Action::Stop(_)
                | Action::Kill(_)
                | Action::Evidence(_)
                | Action::Foreign(_)
        ) {
            world.agents.iter_mut().for_each(|agent| agent.writing_passes = 0);
        }
        match action {
            Action::Start(id) | Action::Restart(id) => world.agents[id] = Agent::start(),
            Action::Stop(id) => world.stop(id),
            Action::Kill(id) => world.kill(id),
            Action::Pass(id) => agent::begin_pass(&mut world, id, self.bug),
            Action::Step(id, _) => agent::step(&mut world, id, self),
            Action::Ask(id) => agent::ask(&mut world, id, self.bug),
            Action::Evidence(id) => {
                world.agents[id].has_evidence = true;
                world.agents[id].is_dirty = true;
            }
            Action::Rebind(id) => {
                world.node.socket = Some(id);
                world.changed();
            }
            Action::Foreign(action) => world.foreign_writes(action),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Scenario>> {
        properties::all()
    }
}
