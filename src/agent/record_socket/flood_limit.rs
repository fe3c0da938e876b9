//! Limits how many plugin records the agent reads, and so how many lines of its log they cause. A
//! process that floods the socket must neither keep the agent busy nor fill its log.

use std::thread;
use std::time::{Duration, Instant};

use crate::backoff::RateLimit;

/// Records that are read without a pause between them: all pods of a node may start at once.
const RECORDS_AT_ONCE: u32 = 256;
/// Time between two records after so many.
const INTERVAL: Duration = Duration::from_millis(100);

pub struct FloodLimit(RateLimit);

impl FloodLimit {
    pub fn new() -> FloodLimit {
        FloodLimit(RateLimit::new(INTERVAL, RECORDS_AT_ONCE, Instant::now()))
    }

    /// Counts a record, and waits until the next record may be read.
    pub fn wait_after_record(&mut self) {
        self.0.count(Instant::now());
        thread::sleep(self.0.due().saturating_duration_since(Instant::now()));
    }
}
