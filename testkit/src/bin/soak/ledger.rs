//! Violations of the invariants, with the action during or after which each was seen. All threads write to one ledger.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Name of the first action. Violations before the second action are recorded under it.
pub const INSTALL: &str = "helm install";

/// A promise of this project that is checked all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// Conflist, kubeconfig and plugin binary are whole. The conflist names no missing plugin. The plugin entry is
    /// missing only after another writer removed it.
    Files,
    /// A meshed pod has its redirect rules from its first to its last instant.
    MeshedRules,
    /// A meshed pod gets ready within the bound.
    MeshedStart,
    /// An unmeshed pod has no rules.
    UnmeshedRules,
    /// An unmeshed pod gets ready within the bound of its normal time, and no ADD fails because of the plugin.
    UnmeshedStart,
    /// Pods start while the API server is down.
    StartsWithoutApi,
    /// A pod that has responded responds until its deletion, in the same netns and with the same processes.
    Running,
    /// A deleted pod goes away within the bound.
    End,
    /// The agent is ready again within the bound after each action.
    Recovery,
    /// Memory, descriptors and threads of the agent and the repair controller do not grow.
    Flat,
    /// The uninstall leaves the node's files as they were.
    Uninstall,
}

/// One violation.
#[derive(Clone, Serialize)]
pub struct Violation {
    pub invariant: Invariant,
    /// The action during or after which it was seen.
    pub action: &'static str,
    /// Seconds since the begin.
    pub second: u64,
    pub seen: String,
}

/// One kind of action.
#[derive(Clone, Default)]
pub struct Performed {
    pub times: usize,
    pub longest_recovery: Duration,
}

pub struct Ledger {
    action: &'static str,
    pub violations: Vec<Violation>,
    pub performed: BTreeMap<&'static str, Performed>,
}

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
static LEDGER: Mutex<Ledger> =
    Mutex::new(Ledger { action: INSTALL, violations: Vec::new(), performed: BTreeMap::new() });

/// Calls `read` with the ledger.
pub fn with<T>(read: impl FnOnce(&mut Ledger) -> T) -> T {
    read(&mut LEDGER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Starts an action: violations from now on are recorded under it.
pub fn begin(action: &'static str) {
    println!("{:>5} s  {action}", BEGIN.elapsed().as_secs());
    with(|ledger| {
        ledger.action = action;
        ledger.performed.entry(action).or_default().times += 1;
    });
}

/// The current action was over after this time.
pub fn recovered(took: Duration) {
    println!("         recovered after {:.1} s", took.as_secs_f64());
    with(|ledger| {
        let performed = ledger.performed.entry(ledger.action).or_default();
        performed.longest_recovery = performed.longest_recovery.max(took);
    });
}

pub fn violated(invariant: Invariant, seen: impl Into<String>) {
    let (second, seen) = (BEGIN.elapsed().as_secs(), seen.into());
    println!("{second:>5} s  VIOLATION of {invariant:?}: {seen}");
    with(|ledger| {
        let action = ledger.action;
        ledger.violations.push(Violation { invariant, action, second, seen });
    });
}
