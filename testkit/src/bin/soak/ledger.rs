//! Violations of the invariants, with the action during or after which each was seen.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// The first action: what is seen before another one counts for it.
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

/// What the threads of the program write to.
#[derive(Clone)]
pub struct Ledger {
    begin: Instant,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    action: &'static str,
    violations: Vec<Violation>,
    performed: BTreeMap<&'static str, Performed>,
}

impl Ledger {
    pub fn new() -> Ledger {
        let inner = Inner { action: INSTALL, violations: Vec::new(), performed: BTreeMap::new() };
        Ledger { begin: Instant::now(), inner: Arc::new(Mutex::new(inner)) }
    }

    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// From now on violations are seen with this action.
    pub fn begin(&self, action: &'static str) {
        println!("{:>5} s  {action}", self.elapsed().as_secs());
        self.with(|inner| {
            inner.action = action;
            inner.performed.entry(action).or_default().times += 1;
        });
    }

    /// The current action was over after this time.
    pub fn recovered(&self, took: Duration) {
        println!("         recovered after {:.1} s", took.as_secs_f64());
        self.with(|inner| {
            let performed = inner.performed.entry(inner.action).or_default();
            performed.longest_recovery = performed.longest_recovery.max(took);
        });
    }

    pub fn violated(&self, invariant: Invariant, seen: impl Into<String>) {
        let (second, seen) = (self.elapsed().as_secs(), seen.into());
        println!("{second:>5} s  VIOLATION of {invariant:?}: {seen}");
        self.with(|inner| {
            let action = inner.action;
            inner.violations.push(Violation { invariant, action, second, seen });
        });
    }

    pub fn violations(&self) -> Vec<Violation> {
        self.with(|inner| inner.violations.clone())
    }

    pub fn performed(&self) -> BTreeMap<&'static str, Performed> {
        self.with(|inner| inner.performed.clone())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Inner) -> T) -> T {
        use_it(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
