//! The figures of the bench, and the comparison of the counted ones with
//! `docs/maintainers/benchmarks.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How much a counted figure may differ from the committed one.
const TOLERANCE_PERCENT: u128 = 5;
/// Name of the rows of Debian's `portmap`. They are not compared, because they are not figures of
/// this project.
pub const PORTMAP: &str = "portmap";
/// Figures that depend on the processor's architecture.
const ARCHITECTURE_FIGURES: [&str; 2] = ["instructions", "bytes"];

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Figures {
    /// Architecture of the processor, on which instructions and sizes depend.
    pub architecture: String,
    /// Number of timed runs of each call. If 0, nothing is timed, and all times are 0.
    pub runs: usize,
    pub rows: Vec<Row>,
    pub unusable: Vec<Unusable>,
    pub sizes: Vec<Size>,
    pub targets: Vec<Target>,
}

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Row {
    pub name: String,
    pub wall_ms: f64,
    pub wall_p99_ms: f64,
    pub wall_max_ms: f64,
    pub ratio: f64,
    pub cpu_ms: f64,
    pub requests: u64,
    pub processes: u64,
    pub rss_mb: f64,
    pub page_faults: u64,
    /// `None` if valgrind is missing, and for `portmap`, because Go's runtime does not run under
    /// valgrind.
    pub instructions: Option<u64>,
    /// Number of heap allocations in a debug build. `None` without a debug build, and for
    /// `portmap`.
    pub allocations: Option<u64>,
    /// Size of these allocations. `None` as for `allocations`.
    pub allocated_bytes: Option<u64>,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Size {
    pub name: String,
    pub bytes: u64,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Unusable {
    pub name: String,
    pub reason: String,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Target {
    #[serde(rename = "what")]
    pub figure: String,
    #[serde(rename = "is")]
    pub actual: f64,
    #[serde(rename = "at_most")]
    pub limit: f64,
    pub holds: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub compared: usize,
    pub worse: Vec<String>,
    pub better: Vec<String>,
    pub missing: Vec<String>,
    pub skipped: Vec<String>,
}

type Key<'a> = (&'a str, &'static str);

impl Figures {
    fn counted_figures(&self) -> Vec<(Key<'_>, Option<u64>)> {
        let mut figures: Vec<(Key<'_>, Option<u64>)> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.name.starts_with(PORTMAP)) {
            figures.extend([
                ((&*row.name, "requests"), Some(row.requests)),
                ((&*row.name, "processes"), Some(row.processes)),
                ((&*row.name, "instructions"), row.instructions),
                ((&*row.name, "allocations"), row.allocations),
                ((&*row.name, "allocated bytes"), row.allocated_bytes),
            ]);
        }
        for size in self.sizes.iter().filter(|size| !size.name.starts_with(PORTMAP)) {
            figures.push(((&*size.name, "bytes"), Some(size.bytes)));
        }
        figures
    }

    fn is_unusable(&self, row: &str) -> bool {
        self.unusable.iter().any(|unusable| unusable.name == row)
    }
}

/// Compares the counted figures of a run with the committed ones.
pub fn compare(committed: &Figures, measured: &Figures) -> Comparison {
    let mut comparison = Comparison::default();
    let is_other_architecture = committed.architecture != measured.architecture;
    if is_other_architecture {
        comparison.skipped.push(format!(
            "{}: the committed figures are of {}, this machine is {}",
            ARCHITECTURE_FIGURES.join(", "),
            committed.architecture,
            measured.architecture
        ));
    }
    for row in &measured.unusable {
        comparison.skipped.push(format!("{}: {}", row.name, row.reason));
    }
    let mut measured_figures: BTreeMap<_, _> = measured.counted_figures().into_iter().collect();
    for (key, before) in committed.counted_figures() {
        let (row, name) = key;
        let after = measured_figures.remove(&key).flatten();
        let is_incomparable = is_other_architecture && ARCHITECTURE_FIGURES.contains(&name);
        if !is_incomparable && !measured.is_unusable(row) {
            comparison.add(key, before, after);
        }
    }
    // The figures that are left have no committed figure.
    for (key, value) in measured_figures {
        comparison.add(key, None, value);
    }
    comparison
}

impl Comparison {
    /// Adds a figure, with its committed value and its value in this run.
    fn add(&mut self, (row, name): Key<'_>, before: Option<u64>, after: Option<u64>) {
        let figure = format!("{row}: {name}");
        let (Some(before), Some(after)) = (before, after) else {
            let side = if before.is_none() { "the committed file" } else { "this run" };
            self.missing.push(format!("{figure}: missing in {side}"));
            return;
        };
        self.compared += 1;
        let line = format!("{figure}: {before} -> {after} ({})", change(before, after));
        let before = u128::from(before);
        let after = u128::from(after);
        if after * 100 > before * (100 + TOLERANCE_PERCENT) {
            self.worse.push(line);
        } else if after * 100 < before * (100 - TOLERANCE_PERCENT) {
            self.better.push(line);
        }
    }

    /// Whether every committed figure that this machine can measure was measured, and none is
    /// worse.
    pub fn holds(&self) -> bool {
        self.compared > 0 && self.worse.is_empty() && self.missing.is_empty()
    }

    pub fn text(&self) -> String {
        let mut text =
            format!("{} counted figures compared with the committed ones\n", self.compared);
        let parts = [
            ("not compared", &self.skipped),
            ("more than 5 % better", &self.better),
            ("missing", &self.missing),
            ("MORE THAN 5 % WORSE", &self.worse),
        ];
        for (kind, lines) in parts {
            for line in lines {
                text.push_str(&format!("{kind}: {line}\n"));
            }
        }
        if !self.holds() {
            text.push_str(
                "Make the plugin cheaper, or run `scripts/maintainers/benchmarks --counts` and say in the \
                 commit why a figure got worse.\n",
            );
        } else if !self.better.is_empty() {
            text.push_str(
                "`scripts/maintainers/benchmarks --counts` writes the better figures, so that they are kept.\n",
            );
        }
        text
    }
}

fn change(before: u64, after: u64) -> String {
    if before == 0 {
        return "was 0".to_owned();
    }
    format!("{:+.1} %", (after as f64 / before as f64 - 1.0) * 100.0)
}
