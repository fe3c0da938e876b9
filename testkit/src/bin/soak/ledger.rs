//! Records violations of the invariants, each with the action during or after which it was seen.
//! All threads write to one ledger.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde::Serialize;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::node::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// Conflist, kubeconfig and binaries are complete, and the plugin entry is missing only after
    /// another program has written the conflist.
    Files,
    /// A meshed pod has redirect rules, or is repaired in time.
    MeshedRules,
    /// A meshed pod responds in time.
    MeshedStart,
    /// An unmeshed pod has no rules.
    UnmeshedRules,
    /// An unmeshed pod responds in time, and no ADD of such a pod fails because of the plugin.
    UnmeshedStart,
    /// Meshed and unmeshed pods start without the API server.
    StartsWithoutApi,
    /// A pod that has responded responds until its deletion, in the same netns and with the same
    /// processes.
    Running,
    /// A deleted pod loses its network in time.
    End,
    /// The node is healthy again in time after an action.
    Recovery,
    /// The agent's and the repair controller's use of resources does not grow.
    Flat,
    /// The uninstall leaves the node's files as they were.
    Uninstall,
}

#[derive(Clone, Serialize)]
pub struct Violation {
    invariant: Invariant,
    action: &'static str,
    second: u64,
    seen: String,
}

#[derive(Clone, Serialize)]
pub struct Row {
    action: &'static str,
    times: usize,
    longest_recovery: f64,
    /// Number of violations of each invariant, in the order of [`Invariant`].
    violations: Vec<(Invariant, usize)>,
}

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
static LEDGER: Mutex<Ledger> =
    Mutex::new(Ledger { current: 0, rows: Vec::new(), violations: Vec::new() });

pub struct Ledger {
    current: usize,
    /// The rows, in the order in which the actions were performed first.
    pub rows: Vec<Row>,
    pub violations: Vec<Violation>,
}

pub fn lock<T>(access: impl FnOnce(&mut Ledger) -> T) -> T {
    access(&mut LEDGER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Starts an action: violations from now on are recorded under it.
pub fn begin(action: &'static str) {
    println!("{:>5} s  {action}", BEGIN.elapsed().as_secs());
    lock(|Ledger { rows, current, .. }| {
        *current = rows.iter().position(|row| row.action == action).unwrap_or_else(|| {
            let none = Invariant::value_variants().iter().map(|invariant| (*invariant, 0));
            rows.push(Row { action, times: 0, longest_recovery: 0.0, violations: none.collect() });
            rows.len() - 1
        });
        rows[*current].times += 1;
    });
}

pub fn recovered(took: Duration) {
    println!("         recovered after {:.1} s", took.as_secs_f64());
    lock(|ledger| {
        let row = &mut ledger.rows[ledger.current];
        row.longest_recovery = row.longest_recovery.max(seconds(took));
    });
}

pub fn violated(invariant: Invariant, seen: impl Into<String>) {
    let (second, seen) = (BEGIN.elapsed().as_secs(), seen.into());
    println!("{second:>5} s  VIOLATION of {invariant:?}: {seen}");
    lock(|ledger| {
        let row = &mut ledger.rows[ledger.current];
        row.violations[invariant as usize].1 += 1;
        ledger.violations.push(Violation { invariant, action: row.action, second, seen });
    });
}

pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

const UNMESHED: &str = "unmeshed-";

/// Reads the failed ADDs in kubelet's log. Records those of unmeshed pods, and those that did not
/// find the plugin binary, as violations. Returns the number of the others.
pub fn check_kubelet_log(node: &Node) -> usize {
    let log = node.kubelet_log();
    let failures = log.lines().filter(|line| line.contains("Failed to create sandbox for pod"));
    let mut failed = 0;
    // Pods of the release itself are left out. The names of the agent's pods contain `linkerd-cni`,
    // too.
    let release = format!("pod=\"{NAMESPACE}/");
    for line in failures {
        let error = line.replace('\\', "");
        if !error.contains("plugin type=\"linkerd-cni\"") || line.contains(&release) {
            continue;
        }
        if line.contains("failed to find plugin") {
            violated(Invariant::Files, line);
        } else if line.contains(UNMESHED) {
            violated(Invariant::UnmeshedStart, line);
        } else {
            failed += 1;
        }
    }
    failed
}
