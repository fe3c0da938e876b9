//! The results of a run, as JSON.

use std::time::Duration;

use clap::ValueEnum as _;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use testkit::statistics::percentile;

use crate::ledger::{self, Invariant, Violation};
use crate::load::LoadFigures;
use crate::resources::Growth;

/// Everything that a run has seen.
#[derive(Serialize)]
pub struct Report {
    pub seed: u64,
    pub minutes: f64,
    pub versions: Value,
    /// Number of times that the node's files were read.
    pub reads: u64,
    pub pods: Pods,
    pub actions: Vec<Row>,
    pub violations: Vec<Violation>,
    pub resources: Vec<Growth>,
}

/// Figures of the pods.
#[derive(Serialize)]
pub struct Pods {
    #[serde(flatten)]
    pub load: LoadFigures,
    /// Tries of ADD of meshed pods that failed; kubelet retried them.
    pub failed_tries: usize,
    /// Longest start of an unmeshed pod without the plugin, in seconds.
    pub normal_start: f64,
}

/// An action and what was seen during or after it.
#[derive(Serialize)]
pub struct Row {
    pub action: &'static str,
    pub times: usize,
    /// In seconds.
    pub longest_recovery: f64,
    /// By invariant, in the order of their definition.
    pub violations: Vec<(Invariant, usize)>,
}

/// Writes the number of starts, their median, their 99th percentile and the longest one, in seconds.
pub fn spread<S: Serializer>(starts: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
    let mut starts = starts.to_vec();
    let mut at = |percent| seconds(percentile(&mut starts, percent));
    let (p50, p99, max) = (at(50), at(99), at(100));
    json!({"pods": starts.len(), "p50": p50, "p99": p99, "max": max}).serialize(serializer)
}

/// Seconds, rounded to a tenth.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// The rows of all actions in this order, as far as they were performed.
pub fn rows(actions: &[&'static str]) -> Vec<Row> {
    ledger::with(|ledger| {
        let row = |action: &&'static str| {
            let done = ledger.performed.get(action)?;
            let count = |invariant| {
                let same = |one: &&Violation| one.action == *action && one.invariant == invariant;
                (invariant, ledger.violations.iter().filter(same).count())
            };
            Some(Row {
                action,
                times: done.times,
                longest_recovery: seconds(done.longest_recovery),
                violations: Invariant::value_variants().iter().copied().map(count).collect(),
            })
        };
        actions.iter().filter_map(row).collect()
    })
}
