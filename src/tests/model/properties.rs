//! What holds in every state.

use linkerd2_cni::conflist::plugin_entry;
use stateright::Property;

use crate::agent::{Api, End, Phase};
use crate::facts;
use crate::node::FileContent;
use crate::operation::Operation;
use crate::scenario::Scenario;
use crate::text::Text;
use crate::world::World;

/// Passes that write after one change of the environment. More are a loop without an end.
const MAX_WRITING_PASSES: u8 = 8;

pub const RUNS: &str = "no network config names a plugin that cannot run";
pub const ONCE: &str = "no network config names the plugin twice";
pub const KEPT: &str = "what the primary CNI wrote last is on the node";
pub const ENDS: &str = "the agents stop writing";
pub const CHAINED: &str = "an agent that runs has chained its entry";
pub const PROVEN: &str = "an agent uninstalls only with proof";
pub const CLEAN: &str = "an uninstalled node is as it was before";

pub fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(RUNS, |_, world: &World| runs(world)),
        Property::always(ONCE, |_, world: &World| {
            world.node.configs.values().all(|text| facts::config(*text).calls <= 1)
        }),
        Property::always(KEPT, |_, world: &World| is_kept(world)),
        Property::always(ENDS, |_, world: &World| {
            world.agents.iter().all(|agent| agent.writing_passes <= MAX_WRITING_PASSES)
        }),
        Property::always(CHAINED, |scenario, world: &World| {
            !world.is_quiescent() || is_chained(scenario, world)
        }),
        Property::always(PROVEN, |_, world: &World| is_proven(world)),
        Property::always(CLEAN, |_, world: &World| !world.is_quiescent() || is_clean(world)),
    ]
}

fn runs(world: &World) -> bool {
    world.node.can_run_plugin()
        || world.node.configs.values().all(|text| facts::config(*text).calls == 0)
}

/// Whether the text that the primary CNI wrote last is a file, a chained conflist, the original of a
/// conflist, or about to be put back.
fn is_kept(world: &World) -> bool {
    let Some(latest) = world.foreign.latest else {
        return true;
    };
    let node = &world.node;
    let holds = |text: &Text| *text == latest || facts::config(*text).bare == Some(latest);
    if node.configs.values().any(holds) {
        return true;
    }
    let is_put_back = |operation: &Operation| {
        matches!(operation, Operation::PutBack { content, .. } | Operation::Return { content, .. }
            if *content == latest)
    };
    if world.agents.iter().any(|agent| agent.queue.last().is_some_and(is_put_back)) {
        return true;
    }
    let Some(saved) = node.saved_text() else {
        return false;
    };
    let is_saved = |(name, text): &(Text, Text)| *text == latest && node.configs.contains_key(name);
    facts::originals(saved).iter().any(is_saved)
}

/// Whether the newest agent's entry is in the active network config, and its files are in place.
fn is_chained(scenario: &Scenario, world: &World) -> bool {
    let Some(newest) = world.newest_running() else {
        return true;
    };
    // Without a network there is nothing to chain to.
    let Some((_, text)) = world.node.active().filter(|_| world.foreign.latest.is_some()) else {
        return true;
    };
    let own = Some(FileContent::WrittenBy(newest));
    let entry = scenario.plans.agents[newest].1.text();
    plugin_entry(&text).is_some_and(|found| found.text == entry)
        && world.node.binary == own
        && world.node.kubeconfig == own
}

fn is_proven(world: &World) -> bool {
    world.agents.iter().zip(world.api).all(|(agent, api)| {
        let uninstalls = matches!(
            agent.phase,
            Phase::Uninstalling { .. } | Phase::Ended(End::Uninstalled | End::GaveUp)
        );
        !uninstalls || matches!(api, Api::DaemonSetDeleted | Api::AccountsDeleted)
    })
}

/// Whether nothing of the agents is left, if the last of them has uninstalled.
fn is_clean(world: &World) -> bool {
    let is_over = |phase: &Phase| matches!(phase, Phase::NotStarted | Phase::Ended(_));
    let has_uninstalled =
        world.last_end.is_some_and(|id| world.agents[id].phase == Phase::Ended(End::Uninstalled));
    if !world.agents.iter().all(|agent| is_over(&agent.phase))
        || !has_uninstalled
        || world.ended_beside_uninstall
    {
        return true;
    }
    let node = &world.node;
    let foreign = &world.foreign;
    let is_gone = node.binary.is_none()
        && node.kubeconfig.is_none()
        && node.saved_state.is_none()
        && !node.has_leftovers
        && node.configs.values().all(|text| facts::config(*text).calls == 0);
    let is_restored = foreign.latest.is_none_or(|latest| {
        node.configs.len() == 1 && node.configs.get(&foreign.name) == Some(&latest)
    });
    is_gone && is_restored
}
