//! Records violations of the invariants, each with the action during or after which it was seen.
//! All threads write to one ledger.

use std::ops::Range;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
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
    /// Seconds from the start of the soak to the violation.
    #[serde(rename = "second")]
    elapsed_seconds: u64,
    #[serde(rename = "seen")]
    description: String,
}

#[derive(Clone, Serialize)]
pub struct Row {
    action: &'static str,
    times: usize,
    /// In seconds.
    longest_recovery: f64,
    /// Number of violations of each invariant, in the order of [`Invariant`].
    violations: Vec<(Invariant, usize)>,
}

impl Row {
    fn new(action: &'static str) -> Row {
        let invariants = Invariant::value_variants().iter();
        let violations = invariants.map(|invariant| (*invariant, 0)).collect();
        Row { action, times: 0, longest_recovery: 0.0, violations }
    }

    fn count_violation(&mut self, violated: Invariant) {
        for (invariant, count) in &mut self.violations {
            if *invariant == violated {
                *count += 1;
            }
        }
    }
}

static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
static LEDGER: Mutex<Ledger> = Mutex::new(Ledger {
    current: 0,
    rows: Vec::new(),
    violations: Vec::new(),
    expected_failures: Vec::new(),
});

pub struct Ledger {
    /// Index of the row of the current action.
    current: usize,
    /// The rows, in the order in which the actions were performed first.
    pub rows: Vec<Row>,
    pub violations: Vec<Violation>,
    /// Parts of kubelet's log in which every ADD of the plugin may fail, from byte to byte.
    expected_failures: Vec<Range<usize>>,
}

pub fn lock() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins an action: later violations are recorded in its row.
pub fn begin_action(action: &'static str) {
    println!("{:>5} s  {action}", BEGIN.elapsed().as_secs());
    let mut ledger = lock();
    let index = match ledger.rows.iter().position(|row| row.action == action) {
        Some(index) => index,
        None => {
            ledger.rows.push(Row::new(action));
            ledger.rows.len() - 1
        }
    };
    ledger.rows[index].times += 1;
    ledger.current = index;
}

/// Records that the node has recovered from the current action.
pub fn record_recovery(time: Duration) {
    println!("         recovered after {:.1} s", time.as_secs_f64());
    let mut ledger = lock();
    let index = ledger.current;
    let row = &mut ledger.rows[index];
    row.longest_recovery = row.longest_recovery.max(seconds(time));
}

pub fn record_violation(invariant: Invariant, description: impl Into<String>) {
    let elapsed_seconds = BEGIN.elapsed().as_secs();
    let description = description.into();
    println!("{elapsed_seconds:>5} s  VIOLATION of {invariant:?}: {description}");
    let mut ledger = lock();
    let index = ledger.current;
    let row = &mut ledger.rows[index];
    row.count_violation(invariant);
    let action = row.action;
    ledger.violations.push(Violation { invariant, action, elapsed_seconds, description });
}

/// Records that ADDs of the plugin had to fail while kubelet wrote this part of its log.
pub fn expect_failures(log_part: Range<usize>) {
    lock().expected_failures.push(log_part);
}

/// Rounds to a tenth of a second.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// Start of the names of unmeshed pods.
const UNMESHED: &str = "unmeshed-";

/// Reads the failed ADDs in kubelet's log. Failures of unmeshed pods, and failures because the
/// plugin binary was missing, are recorded as violations. Returns the number of the other failures.
pub fn check_kubelet_log(node: &Node) -> usize {
    let log = node.kubelet_log();
    let expected_failures = lock().expected_failures.clone();
    let mut allowed_failures = 0;
    let mut end = 0;
    // Pods of the release itself are left out. The names of the agent's pods contain `linkerd-cni`,
    // too.
    let release = format!("pod=\"{NAMESPACE}/");
    for line in log.split_inclusive('\n') {
        end += line.len();
        if !line.contains("Failed to create sandbox for pod")
            || expected_failures.iter().any(|log_part| log_part.contains(&(end - 1)))
        {
            continue;
        }
        let error = line.replace('\\', "");
        if !error.contains("plugin type=\"linkerd-cni\"") || line.contains(&release) {
            continue;
        }
        if line.contains("failed to find plugin") {
            record_violation(Invariant::Files, line);
        } else if line.contains(UNMESHED) {
            record_violation(Invariant::UnmeshedStart, line);
        } else {
            allowed_failures += 1;
        }
    }
    allowed_failures
}
