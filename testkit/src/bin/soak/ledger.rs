//! Violations of the invariants, with the action during or after which each was seen. All threads
//! write to one ledger.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde::Serialize;
use testkit::cluster::helm::NAMESPACE;
use testkit::cluster::node::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Invariant {
    /// Conflist, kubeconfig and binaries are whole, and the plugin entry is missing only after
    /// another writer.
    Files,
    MeshedRules,
    MeshedStart,
    UnmeshedRules,
    /// An unmeshed pod gets ready within the bound of its normal time, and no ADD fails because of
    /// the plugin.
    UnmeshedStart,
    StartsWithoutApi,
    /// A pod that has responded responds until its deletion, in the same netns and with the same
    /// processes.
    Running,
    End,
    Recovery,
    Flat,
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
    /// Number by invariant, in the order of their definition.
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

/// Records failed ADDs of unmeshed pods, and those without the plugin binary, as violations.
/// Returns the number of other failed ADDs.
pub fn check_kubelet_log(node: &Node) -> usize {
    let log = node.kubelet_log();
    let failures = log.lines().filter(|line| line.contains("Failed to create sandbox for pod"));
    let mut failed = 0;
    // The name of the agent's pod also contains `linkerd-cni`; that pod is in the release's
    // namespace.
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
