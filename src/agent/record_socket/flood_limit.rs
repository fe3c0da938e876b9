//! Limits how many plugin records the agent reads. A process that floods the socket can then
//! neither keep the agent busy nor fill its log.

use std::thread;
use std::time::{Duration, Instant};

use crate::backoff::RateLimit;

/// Number of records that are read without a pause between them. All pods of a node may start at
/// once, and their records should not wait.
const BURST: u32 = 256;
/// Time between two records after such a burst.
const INTERVAL: Duration = Duration::from_millis(100);

pub struct FloodLimit {
    rate_limit: RateLimit,
}

impl FloodLimit {
    pub fn new() -> FloodLimit {
        FloodLimit { rate_limit: RateLimit::new(INTERVAL, BURST, Instant::now()) }
    }

    /// Counts a record, and waits until the next record may be read.
    pub fn wait_after_record(&mut self) {
        self.rate_limit.count(Instant::now());
        thread::sleep(self.rate_limit.due().saturating_duration_since(Instant::now()));
    }
}
