//! The rows, the targets and the table.

use std::io;
use std::path::Path;
use std::time::Duration;

use testkit::benchmarks::{Figures, Row, Size, Target, Unusable};

use crate::measure::{Counts, Timings, median, percentile_ms};
use crate::scene::{Call, MESHED_COPY};

/// The row of `call`. `yardstick_ms` is the median of the first row.
pub fn row(call: &Call, yardstick_ms: f64, mut timings: Timings, counts: &Counts) -> Row {
    let wall_ms = ms(&mut timings.wall);
    Row {
        name: call.name.to_owned(),
        wall_ms,
        wall_p99_ms: percentile_ms(&mut timings.wall, 99),
        wall_max_ms: percentile_ms(&mut timings.wall, 100),
        ratio: if yardstick_ms > 0.0 { wall_ms / yardstick_ms } else { 1.0 },
        cpu_ms: ms(&mut timings.cpu),
        requests: counts.requests as u64,
        processes: counts.processes as u64,
        rss_mb: counts.rss_kib as f64 / 1024.0,
        page_faults: median(&mut timings.page_faults),
        instructions: counts.instructions,
        allocations: counts.allocations.map(|found| found.number),
        allocated_bytes: counts.allocations.map(|found| found.bytes),
    }
}

fn ms(durations: &mut [Duration]) -> f64 {
    median(durations).as_secs_f64() * 1000.0
}

pub fn size(name: &str, path: &Path) -> io::Result<Size> {
    Ok(Size { name: name.to_owned(), bytes: path.metadata()?.len() })
}

/// The targets of the rows and sizes that there are.
pub fn targets(rows: &[Row], sizes: &[Size]) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut target = |what: String, is: f64, at_most: f64| {
        targets.push(Target { what, is, at_most, holds: is <= at_most });
    };
    let wall = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.wall_ms);
    if let (Some(copy), Some(version)) = (wall(MESHED_COPY), wall("VERSION"))
        && version > 0.0
    {
        target(format!("{MESHED_COPY}: wall above VERSION, ms"), copy - version, 1.0);
    }
    for row in rows {
        let (wall, cpu, requests, rss, instructions) = match row.name.as_str() {
            "meshed ADD, auto" => (2.2, 4.0, 2.0, 6.0, 4.9),
            "meshed ADD, injected" => (2.2, 4.0, 1.0, 6.0, 4.9),
            MESHED_COPY => (1.5, 4.0, 0.0, 4.0, 1.0),
            "unmeshed ADD, annotations" | "unmeshed ADD, copy" => {
                (0.5, f64::INFINITY, 0.0, 3.0, 0.4)
            }
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

/// The floor varies by some pages from run to run.
fn rss(row: &Row, floor_mb: f64) -> String {
    let bound = if row.rss_mb <= floor_mb * 1.05 { "<= " } else { "" };
    format!("{bound}{:.1}", row.rss_mb)
}

/// The figures for people.
pub fn table(figures: &Figures) -> String {
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
    let dash = || "-".to_owned();
    for row in &figures.rows {
        let millions = |count: u64| format!("{:.2} M", count as f64 / 1e6);
        text.push_str(&format!(
            "{:<46}{:>9.2}{:>10.2}{:>8.2}{:>10}{:>11}{:>9}{:>8}{:>14}{:>13}\n",
            row.name,
            row.wall_ms,
            row.ratio,
            row.cpu_ms,
            row.requests,
            row.processes,
            rss(row, figures.rss_floor_mb),
            row.page_faults,
            row.instructions.map_or_else(dash, millions),
            row.allocations.map_or_else(dash, |number| number.to_string())
        ));
    }
    text.push_str(&format!(
        "medians of {} interleaved runs; - : without valgrind or a debug build, or not of this program\n\n",
        figures.runs
    ));
    for Unusable { name, reason } in &figures.unusable {
        text.push_str(&format!("not measured: {name}: {reason}\n"));
    }
    for burst in &figures.bursts {
        text.push_str(&format!(
            "{:<46}p50 {:>8.2} ms   p99 {:>8.2} ms   max {:>8.2} ms   {} ADDs, {} at a time\n",
            burst.name, burst.p50_ms, burst.p99_ms, burst.max_ms, burst.adds, burst.at_once
        ));
    }
    for size in &figures.sizes {
        text.push_str(&format!("{:<46}{:>9.2} MB\n", size.name, size.bytes as f64 / 1e6));
    }
    text.push('\n');
    for target in &figures.targets {
        let verdict = if target.holds { "holds" } else { "MISSED" };
        text.push_str(&format!(
            "{verdict:<8}{:<64}{:>6.2}  at most {}\n",
            target.what, target.is, target.at_most
        ));
    }
    text
}
