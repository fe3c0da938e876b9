//! The results of a run, as JSON and as a table.

use clap::ValueEnum as _;
use serde::Serialize;

use crate::ledger::{Invariant, Ledger, Violation};
use crate::load::LoadFigures;
use crate::resources::Growth;

/// Everything that a run has seen.
#[derive(Serialize)]
pub struct Report {
    pub seed: u64,
    pub minutes: f64,
    pub versions: serde_json::Value,
    pub reads: u64,
    pub pods: Pods,
    pub actions: Vec<Row>,
    pub violations: Vec<Violation>,
    pub resources: Vec<Growth>,
}

/// Figures of the pods.
#[derive(Serialize)]
pub struct Pods {
    pub meshed: usize,
    pub unmeshed: usize,
    pub unmeshed_without_api: usize,
    pub meshed_without_api: usize,
    /// Number of times that the rules of a pod were listed.
    pub rule_checks: usize,
    /// Meshed pods that started without the plugin entry, which another writer had removed, and were repaired.
    pub repaired: usize,
    /// Tries of ADD of meshed pods that failed; kubelet retried them.
    pub failed_tries: usize,
    /// Longest start of an unmeshed pod without the plugin, in seconds.
    pub normal_start: f64,
    pub unmeshed_start: Spread,
    pub meshed_start: Spread,
}

/// Starts of pods that no outage held back: number, median, 99th percentile and maximum, in seconds.
#[derive(Serialize)]
pub struct Spread {
    pub pods: usize,
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
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

impl Spread {
    pub fn of(mut seconds: Vec<f64>) -> Spread {
        seconds.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (seconds.len() as f64 * part) as usize;
            seconds.get(index.min(seconds.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        Spread {
            pods: seconds.len(),
            p50: tenth(at(0.5)),
            p99: tenth(at(0.99)),
            max: tenth(at(1.0)),
        }
    }
}

/// Rounded to a tenth.
pub fn tenth(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

impl Pods {
    pub fn of(
        figures: LoadFigures,
        without_api: [usize; 2],
        failed_tries: usize,
        normal: f64,
    ) -> Pods {
        Pods {
            meshed: figures.meshed,
            unmeshed: figures.unmeshed,
            unmeshed_without_api: without_api[0],
            meshed_without_api: without_api[1],
            rule_checks: figures.rule_checks,
            repaired: figures.repaired,
            failed_tries,
            normal_start: tenth(normal),
            unmeshed_start: Spread::of(figures.unmeshed_starts),
            meshed_start: Spread::of(figures.meshed_starts),
        }
    }
}

/// The rows of all actions in this order, as far as they were performed.
pub fn rows(ledger: &Ledger, actions: &[&'static str]) -> Vec<Row> {
    let (performed, violations) = (ledger.performed(), ledger.violations());
    let row = |action: &&'static str| {
        let done = performed.get(action)?;
        let count = |invariant| {
            let same = |one: &&Violation| one.action == *action && one.invariant == invariant;
            (invariant, violations.iter().filter(same).count())
        };
        Some(Row {
            action,
            times: done.times,
            longest_recovery: tenth(done.longest_recovery.as_secs_f64()),
            violations: Invariant::value_variants().iter().copied().map(count).collect(),
        })
    };
    actions.iter().filter_map(row).collect()
}
