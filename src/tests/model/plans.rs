//! The plans of the product, for what an agent of the model read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linkerd2_cni::agent::yielding::{Yielding, usable_entry_is_installed};
use linkerd2_cni::conflist::chain_mode::ChainMode;
use linkerd2_cni::conflist::net_dir::ConfigFile;
use linkerd2_cni::conflist::plan::Step;
use linkerd2_cni::conflist::saved_state::SavedState;
use linkerd2_cni::conflist::{Entry, plan};

use crate::facts;
use crate::node::{Configs, Id, config_files, saved_state};
use crate::operation::{Operation, of_step};
use crate::scenario::Bug;
use crate::text::Text;

pub const KUBECONFIG: &str = "/etc/cni/net.d/kubeconfig";

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    Chain { id: Id, newer_agent_runs: bool },
    Withdrawal,
    Uninstall,
}

/// What a plan depends on: its purpose, the network configs, and the saved state.
pub type Input = (Purpose, Configs, Option<Text>);

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

    /// The operations of a plan. Equal plans are made once.
    pub fn steps(&self, input: Input, bug: Bug) -> Vec<Operation> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let make = |input: &Input| {
            let (found, saved) = (config_files(&input.1), saved_state(input.2));
            match input.0 {
                Purpose::Chain { id, newer_agent_runs } => {
                    self.chain(id, newer_agent_runs, &found, &saved, bug)
                }
                Purpose::Withdrawal => {
                    unchain_and_forget(&plan::unchain(&found, &saved), &found, bug)
                }
                Purpose::Uninstall => {
                    let steps = plan::unchain(&found, &saved);
                    steps.iter().flat_map(|step| of_step(step, &found, bug)).collect()
                }
            }
        };
        known.entry(input).or_insert_with_key(make).clone()
    }

    fn chain(
        &self,
        id: Id,
        newer_agent_runs: bool,
        found: &[ConfigFile],
        saved: &SavedState,
        bug: Bug,
    ) -> Vec<Operation> {
        let (mode, own) = &self.agents[id];
        if newer_agent_runs && usable_entry_is_installed(own, KUBECONFIG, mode, found, saved) {
            return Vec::new();
        }
        let mut yielding = Yielding::new(Duration::from_secs(30));
        let other = yielding.choose(own, KUBECONFIG, mode, found, newer_agent_runs, Instant::now());
        let yielded = other.as_ref().map(|(_, entry)| entry);
        let plan = plan::chain(mode, found, own, yielded, saved);
        let steps = plan.steps.iter();
        let mut operations: Vec<Operation> =
            steps.flat_map(|step| of_step(step, found, bug)).collect();
        if plan.saves_only_config {
            operations.push(Operation::SaveOnly(mode.only_config().map(Text::new)));
        }
        operations.extend(unchain_and_forget(&plan.unchain_steps, found, bug));
        operations
    }
}

/// Operations of steps that unchain the plugin while the agent runs.
fn unchain_and_forget(steps: &[Step], found: &[ConfigFile], bug: Bug) -> Vec<Operation> {
    let mut operations = Vec::new();
    for step in steps {
        operations.extend(of_step(step, found, bug));
        operations.insert(operations.len() - 1, Operation::Forget(Text::new(step.target())));
    }
    operations
}

fn entry(number: usize) -> Entry {
    let template = format!(
        r#"{{"type":"linkerd-cni","kubernetes":{{"kubeconfig":"{KUBECONFIG}"}},"linkerd":{{"incoming-proxy-port":{number}}}}}"#
    );
    Entry::new(&template, KUBECONFIG).unwrap()
}

pub fn name_plugin(found: &Configs) -> bool {
    found.values().any(|text| facts::config(*text).may_call)
}
