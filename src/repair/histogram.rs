//! Histogram of durations, with upstream's buckets.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets: in milliseconds, and in seconds as printed.
const BUCKETS: [(u64, &str); 11] = [
    (5, "0.005"),
    (10, "0.01"),
    (25, "0.025"),
    (50, "0.05"),
    (100, "0.1"),
    (250, "0.25"),
    (500, "0.5"),
    (1000, "1.0"),
    (2500, "2.5"),
    (5000, "5.0"),
    (10000, "10.0"),
];

/// Counts durations by bucket.
#[derive(Default)]
pub struct Histogram {
    /// One count for each bucket and one for longer durations; not cumulative.
    counts: [AtomicU64; BUCKETS.len() + 1],
    sum_micros: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let bucket = BUCKETS
            .iter()
            .position(|(bound, _)| took <= Duration::from_millis(*bound))
            .unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_micros.fetch_add(micros, Relaxed);
    }

    /// Appends the samples to `out` as OpenMetrics text.
    pub fn write(&self, out: &mut String, name: &str) {
        let sum = Duration::from_micros(self.sum_micros.load(Relaxed));
        let mut count = 0;
        let bounds = BUCKETS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
        for (bound, in_bucket) in bounds.zip(&self.counts) {
            count += in_bucket.load(Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{name}_count {count}");
        let _ = writeln!(out, "{name}_sum {:?}", sum.as_secs_f64());
    }
}
