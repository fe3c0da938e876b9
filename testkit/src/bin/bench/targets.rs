//! The targets of rows and sizes.

use testkit::benchmarks::{Row, Size, Target};

use crate::scene::{MESHED_COPY, data};

pub fn targets(rows: &[Row], sizes: &[Size]) -> Vec<Target> {
    let (data, mut targets) = (data(), Vec::new());
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
        let is_timed = row.wall_ms > 0.0;
        let figures = [
            ("wall, x portmap", is_timed.then_some(row.ratio)),
            ("CPU, ms", is_timed.then_some(row.cpu_ms)),
            ("API requests", Some(row.requests as f64)),
            ("processes", Some(row.processes as f64)),
            ("peak RSS, MB", Some(row.rss_mb)),
            ("instructions, M", row.instructions.map(|count| count as f64 / 1e6)),
        ];
        for (index, (figure, is)) in figures.into_iter().enumerate() {
            if let (Some(is), Some(at_most)) = (is, data["targets"][&row.name][index].as_f64()) {
                target(format!("{}: {figure}", row.name), is, at_most);
            }
        }
    }
    for size in sizes {
        if let Some(at_most) = data["sizes"][&size.name].as_f64() {
            target(format!("{}: MB", size.name), size.bytes as f64 / 1e6, at_most);
        }
    }
    targets
}
