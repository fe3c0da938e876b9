//! The figures of the bench, and the comparison of the counted ones with
//! `docs/maintainers/benchmarks.json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

const TOLERANCE_PERCENT: u128 = 5;
/// Debian's `portmap`, whose figures are not this project's.
pub const PORTMAP: &str = "portmap";
/// Figures that depend on the processor's architecture.
const OF_ARCHITECTURE: [&str; 2] = ["instructions", "bytes"];

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Figures {
    /// Architecture of the processor, on which instructions and sizes depend.
    pub architecture: String,
    /// Timed runs of each call. If 0, the figures are counted only, and all times are 0.
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
    /// `None` without valgrind, and of `portmap`: Go's runtime does not run under it.
    pub instructions: Option<u64>,
    /// Heap allocations of a debug build. `None` without one, and of `portmap`.
    pub allocations: Option<u64>,
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
    pub what: String,
    pub is: f64,
    pub at_most: f64,
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
    fn counted(&self) -> Vec<(Key<'_>, Option<u64>)> {
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

pub fn compare(committed: &Figures, measured: &Figures) -> Comparison {
    let mut comparison = Comparison::default();
    let other_machine = committed.architecture != measured.architecture;
    if other_machine {
        comparison.skipped.push(format!(
            "{}: the committed figures are of {}, this machine is {}",
            OF_ARCHITECTURE.join(", "),
            committed.architecture,
            measured.architecture
        ));
    }
    for row in &measured.unusable {
        comparison.skipped.push(format!("{}: {}", row.name, row.reason));
    }
    let mut new: BTreeMap<_, _> = measured.counted().into_iter().collect();
    for (key, before) in committed.counted() {
        let (row, name) = key;
        let after = new.remove(&key).flatten();
        let depends_on_machine = other_machine && OF_ARCHITECTURE.contains(&name);
        if !depends_on_machine && !measured.is_unusable(row) {
            comparison.add(key, before, after);
        }
    }
    for (key, value) in new {
        comparison.add(key, None, value);
    }
    comparison
}

impl Comparison {
    fn add(&mut self, (row, name): Key<'_>, before: Option<u64>, after: Option<u64>) {
        let figure = format!("{row}: {name}");
        let (Some(before), Some(after)) = (before, after) else {
            let side = if before.is_none() { "the committed file" } else { "this run" };
            self.missing.push(format!("{figure}: missing in {side}"));
            return;
        };
        self.compared += 1;
        let line = format!("{figure}: {before} -> {after} ({})", change(before, after));
        let (before, after) = (u128::from(before), u128::from(after));
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
