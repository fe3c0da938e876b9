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
            // Clocks that were set, and copied timestamps, never make the gap longer than this.
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

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_time_from_the_removal_of_the_entry_until_its_return_is_counted() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut gap = EntryGap::new(start);
        assert_eq!(gap.observe(at(3), false, None), 3 * SECOND);
        assert_eq!(gap.observe(at(4), true, None), SECOND);
        assert_eq!(gap.observe(at(30), true, Some(2 * SECOND)), Duration::ZERO);
        assert_eq!(gap.observe(at(60), false, Some(5 * SECOND)), 5 * SECOND);
        assert_eq!(gap.observe(at(61), false, Some(6 * SECOND)), SECOND);
        assert_eq!(gap.observe(at(63), true, None), 2 * SECOND);
    }

    #[test]
    fn an_entry_found_at_the_first_read_is_no_gap() {
        let start = Instant::now();
        let mut gap = EntryGap::new(start);
        assert_eq!(gap.observe(start + 3 * SECOND, true, None), Duration::ZERO);
    }

    #[test]
    fn the_time_without_an_active_conflist_is_not_counted() {
        let start = Instant::now();
        let mut gap = EntryGap::new(start);
        gap.observe(start, true, None);
        gap.pause(start + 60 * SECOND);
        gap.pause(start + 90 * SECOND);
        assert_eq!(gap.observe(start + 91 * SECOND, false, Some(60 * SECOND)), SECOND);
    }

    #[test]
    fn a_gap_never_begins_before_the_last_read_of_the_conflist() {
        let start = Instant::now();
        let mut gap = EntryGap::new(start);
        gap.observe(start, true, None);
        let removed = gap.observe(start + SECOND, false, Some(3600 * SECOND));
        assert_eq!(removed, SECOND);
        assert_eq!(gap.observe(start + SECOND, true, None), Duration::ZERO);
    }
}
