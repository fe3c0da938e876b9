//! What holds in every state.

use linkerd2_cni::conflist::plan;
use stateright::Property;

use crate::agent::{End, Phase};
use crate::facts;
use crate::node::{Configs, FileContent, Id, config_files};
use crate::operation::Operation;
use crate::scenario::{SECOND, SECOND_TEXT, Scenario};
use crate::text::Text;
use crate::world::World;

/// Passes that write after one change of the environment. More are a loop without an end.
const MAX_WRITING_PASSES: u8 = 8;

pub const RUNS: &str = "no network config names a plugin that cannot run";
pub const ONCE: &str = "no network config names the plugin twice";
pub const KEPT: &str = "each network config that other programs wrote last is on the node";
pub const ENDS: &str = "the agents stop writing";
pub const CHAINED: &str = "an agent that runs has chained its entry, or has withdrawn it";
pub const PROVEN: &str = "an agent uninstalls only with proof";
pub const PATIENT: &str = "an agent with proof leaves the plugin only at the end of its time";
pub const CLEAN: &str = "an uninstalled node is as it was before";

pub fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(RUNS, |_, world: &World| runs(world)),
        Property::always(ONCE, |_, world: &World| {
            world.node.configs.values().all(|text| facts::config(*text).calls <= 1)
        }),
        Property::always(KEPT, |scenario, world: &World| {
            foreign_configs(scenario, world).into_values().all(|text| is_kept(world, text))
        }),
        Property::always(ENDS, |_, world: &World| {
            world.agents.iter().all(|agent| agent.writing_passes <= MAX_WRITING_PASSES)
        }),
        Property::always(CHAINED, |scenario, world: &World| {
            !world.is_quiescent() || is_chained(scenario, world)
        }),
        Property::always(PROVEN, |_, world: &World| is_proven(world)),
        Property::always(PATIENT, |_, world: &World| !world.left_early),
        Property::always(CLEAN, |scenario, world: &World| {
            !world.is_quiescent() || is_clean(scenario, world)
        }),
    ]
}

fn runs(world: &World) -> bool {
    world.node.can_run_plugin()
        || world.node.configs.values().all(|text| facts::config(*text).calls == 0)
}

/// The network configs as other programs wrote them last.
fn foreign_configs(scenario: &Scenario, world: &World) -> Configs {
    let mut configs = Configs::new();
    if let Some(latest) = world.foreign.latest {
        configs.insert(world.foreign.name, latest);
    }
    if scenario.has_second {
        configs.insert(Text::new(SECOND), Text::new(SECOND_TEXT));
    }
    configs
}

/// Whether the text `latest` of another program is a file, a chained conflist, the original of a
/// conflist, or about to be put back.
fn is_kept(world: &World, latest: Text) -> bool {
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

/// Whether the newest agent's entry is in the network config of its mode, its files are in place,
/// and no other network config has a plugin entry if the mode chains only one.
fn is_chained(scenario: &Scenario, world: &World) -> bool {
    let Some(newest) = world.newest_running() else {
        return true;
    };
    let (mode, _) = &scenario.plans.agents[newest];
    if mode.only_config().is_none() && world.foreign.latest.is_none() {
        // Without a network there is nothing to chain to.
        return true;
    }
    let has_entry = has_own_entry(scenario, world, newest);
    let calls = world.node.configs.values().filter(|text| facts::config(**text).calls > 0).count();
    let own = Some(FileContent::WrittenBy(newest));
    if world.node.withdrawn == Some(newest) {
        return calls == 0 && world.node.binary == own && world.node.kubeconfig == own;
    }
    has_entry
        && (mode.only_config().is_none() || calls == 1)
        && world.node.binary == own
        && world.node.kubeconfig == own
}

/// Whether the plugin entry of the agent is in the network config of its mode.
pub fn has_own_entry(scenario: &Scenario, world: &World, id: Id) -> bool {
    let (mode, entry) = &scenario.plans.agents[id];
    let found = config_files(&world.node.configs);
    plan::chained_config(mode, &found).is_some_and(|file| match mode.standalone_config() {
        Some(_) => file.text() == entry.standalone_conf(),
        None => file.plugin_entry().is_some_and(|found| found.text == entry.text()),
    })
}

fn is_proven(world: &World) -> bool {
    world.agents.iter().zip(world.api).all(|(agent, api)| {
        let uninstalls = matches!(
            agent.phase,
            Phase::Uninstalling { .. } | Phase::Ended(End::Uninstalled | End::GaveUp)
        );
        !uninstalls || api.is_proof()
    })
}

/// Whether nothing of the agents is left, if the last of them has uninstalled.
fn is_clean(scenario: &Scenario, world: &World) -> bool {
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
    let is_gone = node.binary.is_none()
        && node.kubeconfig.is_none()
        && node.saved_state.is_none()
        && !node.has_leftovers
        && node.withdrawn.is_none()
        && node.configs.values().all(|text| facts::config(*text).calls == 0);
    let is_restored =
        world.foreign.latest.is_none() || node.configs == foreign_configs(scenario, world);
    is_gone && is_restored
}
