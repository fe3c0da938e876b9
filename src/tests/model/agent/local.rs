//! The operations that touch no file and that no other actor can see: planning, and the ends of steps and passes.

use super::Phase;
use super::stop::judge;
use crate::node::Id;
use crate::operation::Operation::*;
use crate::plans;
use crate::scenario::Scenario;
use crate::world::World;

/// As `ATTEMPTS` in `node::uninstall`. Fewer, as the model's foreign writer writes less often.
const ATTEMPTS: u8 = 3;

/// Runs these operations at the front of the agent's queue.
pub(super) fn run_local(world: &mut World, id: Id, scenario: &Scenario) {
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
