//! Compares figures and sizes with their targets.

use testkit::benchmarks::{Row, Size, Target};

use crate::scene::{MESHED_COPY, data};

pub fn targets(rows: &[Row], sizes: &[Size]) -> Vec<Target> {
    let data = data();
    let mut targets = Vec::new();
    if let (Some(copy), Some(version)) = (wall_ms(rows, MESHED_COPY), wall_ms(rows, "VERSION"))
        && version > 0.0
    {
        let figure = format!("{MESHED_COPY}: wall above VERSION, ms");
        targets.push(target(figure, copy - version, 1.0));
    }
    for row in rows {
        for (index, (figure, actual)) in figures(row).into_iter().enumerate() {
            let limit = data["targets"][&row.name][index].as_f64();
            if let (Some(actual), Some(limit)) = (actual, limit) {
                targets.push(target(format!("{}: {figure}", row.name), actual, limit));
            }
        }
    }
    for size in sizes {
        if let Some(limit) = data["sizes"][&size.name].as_f64() {
            let megabytes = size.bytes as f64 / 1e6;
            targets.push(target(format!("{}: MB", size.name), megabytes, limit));
        }
    }
    targets
}

fn target(figure: String, actual: f64, limit: f64) -> Target {
    Target { figure, actual, limit, holds: actual <= limit }
}

fn wall_ms(rows: &[Row], name: &str) -> Option<f64> {
    rows.iter().find(|row| row.name == name).map(|row| row.wall_ms)
}

/// Returns the figures of a row that can have targets, in the order of the targets in `scene.yaml`.
/// `None`: the figure was not measured.
fn figures(row: &Row) -> [(&'static str, Option<f64>); 6] {
    let is_timed = row.wall_ms > 0.0;
    [
        ("wall, x portmap", if is_timed { Some(row.ratio) } else { None }),
        ("CPU, ms", if is_timed { Some(row.cpu_ms) } else { None }),
        ("API requests", Some(row.requests as f64)),
        ("processes", Some(row.processes as f64)),
        ("peak RSS, MB", Some(row.rss_mb)),
        ("instructions, M", row.instructions.map(|count| count as f64 / 1e6)),
    ]
}
