//! The table, the JSON, and the targets.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::measure::{Counts, Timings, median, percentile_ms};

/// One call's medians.
#[derive(Serialize)]
pub struct Row {
    pub name: &'static str,
    pub wall_ms: f64,
    pub wall_p99_ms: f64,
    pub wall_max_ms: f64,
    /// To the first row, which is the yardstick.
    pub ratio: f64,
    pub cpu_ms: f64,
    pub requests: usize,
    pub processes: usize,
    pub rss_mb: f64,
    pub page_faults: u64,
    pub instructions: Option<u64>,
    /// Heap allocations of the debug build.
    pub allocations: Option<u64>,
    pub allocated_bytes: Option<u64>,
}

/// Times of ADDs that ran at the same time.
#[derive(Serialize)]
pub struct Burst {
    pub name: &'static str,
    pub adds: usize,
    pub at_once: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Bytes of what is shipped.
#[derive(Serialize)]
pub struct Size {
    pub name: String,
    pub bytes: u64,
}

/// A call that this machine lacks the backend for.
#[derive(Clone, Serialize)]
pub struct Unusable {
    pub name: &'static str,
    pub reason: String,
}

#[derive(Serialize)]
pub struct Report {
    /// The processor's, as instructions and sizes depend on it.
    pub architecture: &'static str,
    /// Timed runs of each call. If 0, the figures are counted only, and all times are 0.
    pub runs: usize,
    /// Smaller sizes than this cannot be told.
    pub rss_floor_mb: f64,
    pub rows: Vec<Row>,
    pub unusable: Vec<Unusable>,
    pub bursts: Vec<Burst>,
    pub sizes: Vec<Size>,
    pub targets: Vec<Target>,
}

/// A figure and what it may be at most.
#[derive(Serialize)]
pub struct Target {
    pub what: String,
    pub is: f64,
    pub at_most: f64,
    pub holds: bool,
}

impl Row {
    pub fn new(name: &'static str, yardstick: f64, mut timings: Timings, counts: &Counts) -> Self {
        let wall_ms = ms(&mut timings.wall);
        Row {
            name,
            wall_ms,
            wall_p99_ms: percentile_ms(&mut timings.wall, 99),
            wall_max_ms: percentile_ms(&mut timings.wall, 100),
            ratio: if yardstick > 0.0 { wall_ms / yardstick } else { 1.0 },
            cpu_ms: ms(&mut timings.cpu),
            requests: counts.requests,
            processes: counts.processes,
            rss_mb: counts.rss_kib as f64 / 1024.0,
            page_faults: median(&mut timings.page_faults),
            instructions: counts.instructions,
            allocations: counts.allocations.map(|found| found.number),
            allocated_bytes: counts.allocations.map(|found| found.bytes),
        }
    }
}

fn ms(durations: &mut [Duration]) -> f64 {
    median(durations).as_secs_f64() * 1000.0
}

impl Size {
    pub fn of(name: &str, path: &Path) -> io::Result<Self> {
        Ok(Size { name: name.to_owned(), bytes: path.metadata()?.len() })
    }
}

/// The targets, for the rows and sizes that there are.
pub fn targets(rows: &[Row], sizes: &[Size]) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut target = |what: String, is: f64, at_most: f64| {
        targets.push(Target { what, is, at_most, holds: is <= at_most });
    };
    for row in rows {
        let (wall, cpu, requests, rss, instructions) = match row.name {
            "meshed ADD, auto" => (2.2, 4.0, 2.0, 6.0, 4.9),
            "meshed ADD, injected" => (2.2, 4.0, 1.0, 6.0, 4.9),
            "meshed ADD, injected, podDetection injector" => (2.2, 4.0, 0.0, 6.0, 1.0),
            "unmeshed ADD, annotations" => (0.5, f64::INFINITY, 0.0, 3.0, 0.4),
            _ => continue,
        };
        let what = |figure: &str| format!("{}: {figure}", row.name);
        if row.wall_ms > 0.0 {
            target(what("wall, x portmap"), row.ratio, wall);
        }
        if row.wall_ms > 0.0 && cpu.is_finite() {
            target(what("CPU, ms"), row.cpu_ms, cpu);
        }
        target(what("API requests"), row.requests as f64, requests);
        target(what("processes"), row.processes as f64, 0.0);
        target(what("peak RSS, MB"), row.rss_mb, rss);
        if let Some(count) = row.instructions {
            target(what("instructions, M"), count as f64 / 1e6, instructions);
        }
    }
    for size in sizes {
        let limit = match size.name.as_str() {
            "linkerd-cni" => 4.0,
            "image" => 8.0,
            _ => continue,
        };
        target(format!("{}: MB", size.name), size.bytes as f64 / 1e6, limit);
    }
    targets
}

impl Report {
    pub fn holds(&self) -> bool {
        self.targets.iter().all(|target| target.holds)
    }

    /// The floor varies by some pages from run to run.
    fn rss(&self, row: &Row) -> String {
        if row.rss_mb <= self.rss_floor_mb * 1.05 {
            format!("<= {:.1}", row.rss_mb)
        } else {
            format!("{:.1}", row.rss_mb)
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<46}{:>9}{:>10}{:>8}{:>10}{:>11}{:>9}{:>8}{:>14}{:>13}\n",
            "",
            "wall ms",
            "x portmap",
            "CPU ms",
            "requests",
            "processes",
            "RSS MB",
            "faults",
            "instructions",
            "allocations"
        );
        for row in &self.rows {
            let instructions = row
                .instructions
                .map_or_else(|| "-".to_owned(), |count| format!("{:.2} M", count as f64 / 1e6));
            let allocations = row.allocations.map_or_else(|| "-".to_owned(), |n| n.to_string());
            text.push_str(&format!(
                "{:<46}{:>9.2}{:>10.2}{:>8.2}{:>10}{:>11}{:>9}{:>8}{:>14}{:>13}\n",
                row.name,
                row.wall_ms,
                row.ratio,
                row.cpu_ms,
                row.requests,
                row.processes,
                self.rss(row),
                row.page_faults,
                instructions,
                allocations
            ));
        }
        text.push_str(&format!("medians of {} interleaved runs", self.runs));
        if self.rows.iter().any(|row| row.instructions.is_none()) {
            text.push_str(
                "; - : not measured: without valgrind or a debug build, or not for this program",
            );
        }
        text.push_str("\n\n");
        for Unusable { name, reason } in &self.unusable {
            text.push_str(&format!("not measured: {name}: {reason}\n"));
        }
        for burst in &self.bursts {
            text.push_str(&format!(
                "{:<46}p50 {:>8.2} ms   p99 {:>8.2} ms   max {:>8.2} ms   {} ADDs, {} at a time\n",
                burst.name, burst.p50_ms, burst.p99_ms, burst.max_ms, burst.adds, burst.at_once
            ));
        }
        for size in &self.sizes {
            text.push_str(&format!("{:<46}{:>9.2} MB\n", size.name, size.bytes as f64 / 1e6));
        }
        text.push('\n');
        for target in &self.targets {
            let verdict = if target.holds { "holds" } else { "MISSED" };
            text.push_str(&format!(
                "{verdict:<8}{:<64}{:>6.2}  at most {}\n",
                target.what, target.is, target.at_most
            ));
        }
        text
    }
}
