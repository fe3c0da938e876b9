//! An agent that stops: the requests, the decision, and the uninstall.

use std::time::{Duration, Instant};

use linkerd2_cni::agent::api_history::{ApiHistory, TokenHistory};
use linkerd2_cni::agent::own_pod::{Deletion, OwnPod};
use linkerd2_cni::agent::stop::{Evidence, Round, TokenFacts, Verdict, verdict};

use super::{Agent, Api, End, Phase, newer_agent_runs};
use crate::facts;
use crate::node::{Id, NodeFile};
use crate::operation::Operation::*;
use crate::plans;
use crate::scenario::Bug;
use crate::world::World;

/// Rounds of requests in which a stopping agent asks for proof, and the time between them.
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_secs(5);
/// As in `node::uninstall`.
const MAX_REMOVALS: u8 = 3;

/// Sends the requests of one round, and acts on the verdict.
pub fn ask(world: &mut World, id: Id, bug: Bug) {
    let api = world.api[id];
    let newer_agent_runs = newer_agent_runs(world, id);
    let older_agent_ran = world.agents[id].older_agent_ran;
    let is_left_alone = world.agents[id].newer_agent_seen.is_some() && !newer_agent_runs;
    let Phase::Deciding(responses) = &mut world.agents[id].phase else {
        return;
    };
    responses.push(api);
    let responses = responses.clone();
    if newer_agent_runs {
        world.agents[id].newer_agent_seen = Some(responses.len() as u32);
    }
    let seen = world.agents[id].newer_agent_seen;
    let verdict = decide(&responses, newer_agent_runs, seen, older_agent_ran, bug);
    match verdict {
        Verdict::Uninstall(_) => begin_uninstall(world, id, bug),
        Verdict::AskAgain(_) if newer_agent_runs && bug == Bug::LeaveToNewerAgent => {
            leave(world, id, &responses);
        }
        Verdict::LeaveInPlace(_) => leave(world, id, &responses),
        Verdict::AskAgain(_) if is_left_alone && !is_installed(world) => {
            end(world, id, End::NothingInstalled);
        }
        Verdict::AskAgain(_) => {}
    }
}

/// Decides like `Reconciler::is_installed`.
fn is_installed(world: &World) -> bool {
    let configs = &world.node.configs;
    world.node.kubeconfig.is_some() || configs.values().any(|text| facts::config(*text).calls > 0)
}

/// Returns the verdict of the product, for responses that are five seconds apart. The watch has
/// shown the agent that its pod is being deleted, and its tokens were accepted until then. A newer
/// agent was seen last after `newer_agent_seen` responses.
fn decide(
    responses: &[Api],
    newer_agent_runs: bool,
    newer_agent_seen: Option<u32>,
    older_agent_ran: bool,
    bug: Bug,
) -> Verdict {
    let begin = Instant::now();
    let accepted = TokenHistory { accepted: Some(begin), rejected: None };
    let rejected = TokenHistory { accepted: None, rejected: Some(begin - ROUND) };
    let is_stale =
        responses.contains(&Api::TokensRejectedBefore) && bug != Bug::StaleRejectionIsProof;
    let own_token = if is_stale { rejected } else { accepted };
    let is_forced =
        responses.contains(&Api::PodDeletedByForce) && bug != Bug::ForcedDeletionIsProof;
    let graceful = Deletion::Graceful { shown: begin, token_ends: begin + ROUNDS * ROUND };
    let deletion = if is_forced { Deletion::Forced } else { graceful };
    let token = TokenFacts { has_expired: false, outlives_pod: false };
    let daemonset_ends = || Round::DaemonSetEnds("deleted".into());
    let round = |response: &Api| match response {
        Api::DaemonSetExists => Round::InScope,
        Api::DaemonSetDeleted => daemonset_ends(),
        Api::Forbidden if bug == Bug::ForbiddenIsProof => daemonset_ends(),
        Api::AccountsDeleted | Api::TokensRejectedBefore | Api::PodDeletedByForce => {
            Round::TokensRejected { own: token, plugin: token }
        }
        Api::Forbidden => Round::Unclear("HTTP 403".into()),
        Api::Unreachable => Round::Unreachable("connection refused".into()),
    };
    let times = (0..).map(|number| begin + number * ROUND);
    let evidence = Evidence {
        own_pod: OwnPod { deletion, ..OwnPod::default() },
        history: ApiHistory { own_token, plugin_token: accepted, disconnected: None },
        begin,
        end: begin + ROUNDS * ROUND,
        newer_agent_runs,
        newer_agent_seen: newer_agent_seen.map(|number| begin + number * ROUND),
        older_agent_ran,
        rounds: times.zip(responses.iter().map(round)).collect(),
    };
    verdict(&evidence, begin + responses.len() as u32 * ROUND)
}

fn leave(world: &mut World, id: Id, responses: &[Api]) {
    world.left_early |= world.api[id].is_proof() && responses.len() < ROUNDS as usize;
    end(world, id, End::Left);
}

fn remove_socket(world: &mut World, id: Id) {
    if world.node.socket == Some(id) {
        world.node.socket = None;
        world.changed();
    }
}

pub(super) fn end(world: &mut World, id: Id, end: End) {
    remove_socket(world, id);
    world.agents[id] = Agent { phase: Phase::Ended(end), ..Agent::default() };
    if end == End::NothingInstalled {
        return;
    }
    world.last_end = Some(id);
    world.ended_beside_uninstall |= end != End::Uninstalled
        && world.agents.iter().any(|other| matches!(other.phase, Phase::Uninstalling { .. }));
}

fn begin_uninstall(world: &mut World, id: Id, bug: Bug) {
    world.ended_beside_uninstall = false;
    let agent = &mut world.agents[id];
    agent.forget_scan();
    agent.is_dirty = false;
    agent.phase = Phase::Uninstalling { removal: 1 };
    agent.then([Lock, RemoveLeftovers]);
    attempt(agent, bug);
}

/// Plans one removal of the plugin, like `node::uninstall::attempt`.
fn attempt(agent: &mut Agent, bug: Bug) {
    let mut operations = vec![Lock, LoadSavedState];
    if bug == Bug::RemoveBinaryFirst {
        operations.extend([Stage(NodeFile::Kubeconfig), Stage(NodeFile::Binary)]);
    }
    operations.extend([List, PlanUnchain, EndUnchain, Lock, List, Judge { is_staged: false }]);
    // The operations that are already planned come first.
    let planned = std::mem::take(&mut agent.queue);
    agent.then(operations);
    agent.queue.extend(planned);
}

/// Decides by the found network configs whether the files can be removed.
pub(super) fn judge(world: &mut World, id: Id, is_staged: bool, bug: Bug) {
    let agent = &mut world.agents[id];
    let found = std::mem::take(&mut agent.found);
    if plans::name_plugin(&found) {
        if is_staged && !agent.staged.is_empty() {
            agent.then(vec![Undo; agent.staged.len()]);
        } else {
            next_removal(world, id, bug);
        }
    } else if is_staged {
        agent.then([EndUnchain, Finish]);
    } else {
        let files = [NodeFile::Kubeconfig, NodeFile::Binary, NodeFile::SavedState];
        agent.then([List, Judge { is_staged: true }]);
        agent.then(files.map(Stage));
    }
}

/// Removes the plugin entry again, or gives up.
pub(super) fn next_removal(world: &mut World, id: Id, bug: Bug) {
    let agent = &mut world.agents[id];
    agent.holds_lock = false;
    agent.forget_scan();
    match &mut agent.phase {
        Phase::Uninstalling { removal } if *removal < MAX_REMOVALS => {
            *removal += 1;
            attempt(agent, bug);
        }
        _ => end(world, id, End::GaveUp),
    }
}
