//! The targets of rows and sizes.

use testkit::benchmarks::{Row, Size, Target};

use crate::scene::MESHED_COPY;

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
