//! The plans of the product, for what an agent of the model read.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linkerd2_cni::agent::yielding::{Yielding, usable_entry_is_installed};
use linkerd2_cni::conflist::chain_mode::ChainMode;
use linkerd2_cni::conflist::{Entry, plan};

use crate::bug::Bug;
use crate::facts;
use crate::node::{Configs, Id, config_files, saved_state};
use crate::operation::{Operation, of_step};
use crate::text::Text;

pub const KUBECONFIG: &str = "/etc/cni/net.d/kubeconfig";

/// Whether a network config names the plugin.
pub enum Reference {
    Missing,
    Found,
}

/// What a plan to chain depends on.
type Input = (Id, bool, Configs, Option<Text>);

/// The agents' modes and entries.
pub struct Planner {
    pub agents: [(ChainMode, Entry); 2],
    known: Mutex<HashMap<Input, Vec<Operation>>>,
}

impl Planner {
    pub fn new(modes: [ChainMode; 2]) -> Planner {
        let mut id = 0;
        let agents = modes.map(|mode| {
            id += 1;
            (mode, entry(id))
        });
        Planner { agents, known: Mutex::default() }
    }

    /// The operations by which agent `id` chains the plugin. Equal plans are made once.
    pub fn chain(
        &self,
        id: Id,
        newer_agent_runs: bool,
        found: &Configs,
        saved: Option<Text>,
        bug: Bug,
    ) -> Vec<Operation> {
        let input = (id, newer_agent_runs, found.clone(), saved);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || self.plan(id, newer_agent_runs, found, saved, bug);
        known.entry(input).or_insert_with(make).clone()
    }

    fn plan(
        &self,
        id: Id,
        newer_agent_runs: bool,
        found: &Configs,
        saved: Option<Text>,
        bug: Bug,
    ) -> Vec<Operation> {
        let (mode, own) = &self.agents[id];
        let (found, saved) = (config_files(found), saved_state(saved));
        if newer_agent_runs && usable_entry_is_installed(own, KUBECONFIG, mode, &found) {
            return Vec::new();
        }
        let mut yielding = Yielding::new(Duration::from_secs(30));
        let other = yielding.choose(own, KUBECONFIG, &found, newer_agent_runs, Instant::now());
        let entry = other.map_or_else(|| own.clone(), |(_, entry)| entry);
        let plan = plan::chain(mode, &found, &entry, &saved);
        let steps = plan.steps.iter();
        let mut operations: Vec<Operation> =
            steps.flat_map(|step| of_step(step, &found, bug)).collect();
        for step in &plan.unchain_steps {
            operations.extend(of_step(step, &found, bug));
            operations.insert(operations.len() - 1, Operation::Forget(Text::new(step.target())));
        }
        operations
    }
}

fn entry(number: usize) -> Entry {
    let template = format!(
        r#"{{"type":"linkerd-cni","kubernetes":{{"kubeconfig":"{KUBECONFIG}"}},"linkerd":{{"incoming-proxy-port":{number}}}}}"#
    );
    Entry::new(&template, KUBECONFIG).unwrap()
}

/// The operations by which an uninstall removes all plugin entries.
pub fn unchain(found: &Configs, saved: Option<Text>, bug: Bug) -> Vec<Operation> {
    type Known = HashMap<(Configs, Option<Text>), Vec<Operation>>;
    thread_local!(static KNOWN: RefCell<Known> = RefCell::default());
    if bug != Bug::None {
        return plan_unchain(found, saved, bug);
    }
    let input = (found.clone(), saved);
    KNOWN.with(|known| facts::once(known, &input, || plan_unchain(found, saved, bug)))
}

fn plan_unchain(found: &Configs, saved: Option<Text>, bug: Bug) -> Vec<Operation> {
    let (found, saved) = (config_files(found), saved_state(saved));
    let steps = plan::unchain(&found, &saved);
    let mut operations = Vec::new();
    for step in steps {
        operations.extend(of_step(&step, &found, bug));
    }
    operations
}

/// As `NetDirWatch::scan`.
pub fn reference(found: &Configs) -> Reference {
    match found.values().any(|text| facts::config(*text).may_call) {
        true => Reference::Found,
        false => Reference::Missing,
    }
}
