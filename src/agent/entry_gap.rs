//! Measures how long the active conflist lacks the plugin entry. Pure.

use std::time::{Duration, Instant};

/// Whether the active conflist had the plugin entry when it was last read.
#[derive(Debug)]
pub struct EntryGap {
    has_entry: bool,
    /// The time until this instant is counted.
    counted_until: Instant,
    /// The conflist was read at least once.
    was_read: bool,
}

impl EntryGap {
    /// Starts at `now`, before the conflist is first read. Until the entry is written, the time
    /// counts as a gap, unless the first read finds the entry.
    pub fn new(now: Instant) -> Self {
        EntryGap { has_entry: false, counted_until: now, was_read: false }
    }

    /// Records that the active conflist has the entry or lacks it at `now`. Returns the time without
    /// the entry since the last call. If the entry was removed since then, the gap begins with the
    /// last change of the file, which was `changed_before` ago.
    pub fn observe(
        &mut self,
        now: Instant,
        has_entry: bool,
        changed_before: Option<Duration>,
    ) -> Duration {
        let elapsed = now.saturating_duration_since(self.counted_until);
        let gap = match (self.has_entry, has_entry) {
            (true, true) => Duration::ZERO,
            (false, true) if !self.was_read => Duration::ZERO,
            // At most the time since the last read: a timestamp may be copied, and a clock may have
            // been set.
            (true, false) => changed_before.unwrap_or_default().min(elapsed),
            (false, _) => elapsed,
        };
        self.was_read = true;
        self.has_entry = has_entry;
        self.counted_until = now;
        gap
    }

    /// Records that no network config is active at `now`, so that no pod can start. This time is not
    /// counted.
    pub fn pause(&mut self, now: Instant) {
        self.has_entry = false;
        self.counted_until = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_the_entry_in_an_active_conflist_is_counted() {
        enum Read {
            /// The conflist lacks the entry, and changed that many seconds ago.
            Lacks(u64),
            Has,
            /// No network config is active.
            Nothing,
        }
        use Read::{Has, Lacks, Nothing};
        let start = Instant::now();
        for (reads, expected) in [
            (&[(3, Lacks(0)), (4, Has), (30, Has)][..], &[3, 1, 0][..]),
            (&[(3, Has)], &[0]),
            (&[(30, Has), (60, Lacks(5)), (61, Lacks(6)), (63, Has)], &[0, 5, 1, 2]),
            // No gap begins before the last read.
            (&[(0, Has), (1, Lacks(3600)), (1, Has)], &[0, 1, 0]),
            (&[(0, Has), (60, Nothing), (90, Nothing), (91, Lacks(60))], &[0, 0, 0, 1]),
        ] {
            let mut gap = EntryGap::new(start);
            for ((at, read), seconds) in reads.iter().zip(expected) {
                let now = start + Duration::from_secs(*at);
                let counted = match read {
                    Lacks(ago) => gap.observe(now, false, Some(Duration::from_secs(*ago))),
                    Has => gap.observe(now, true, None),
                    Nothing => {
                        gap.pause(now);
                        Duration::ZERO
                    }
                };
                assert_eq!(counted, Duration::from_secs(*seconds), "at {at} s of {expected:?}");
            }
        }
    }
}
