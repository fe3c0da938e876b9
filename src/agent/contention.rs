//! Detects contention: another program that keeps undoing a write of this agent.
//!
//! Contention means that the agent had to repeat the same write more than 5 times in a minute. The
//! agent then writes again only every 10 to 12 s. For example, Cilium with `cni.exclusive=true` removes
//! the plugin entry from the active conflist again and again. A primary CNI that rewrites its conflist
//! with new content does not cause contention: the agent chains the plugin at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::subject::Subject;
use crate::backoff::{RateLimit, between};
pub use crate::node::OVERWRITTEN;

/// The same writes that are allowed without contention.
const BURST: u32 = 6;
/// Shortest and longest time in which one more of them is allowed, and between two writes under
/// contention. Random, as two agents with the same time would always write in the same order.
const INTERVAL: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(12)];
/// Contention is over if no write was needed for this long after the next one was allowed.
const OVER_AFTER: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContendedFile {
    /// A network config has one of two subjects.
    /// - [`Subject::NetworkConfig`]: another program removes the plugin entry. Meshed pods may then
    ///   start without redirect rules, so the node is not ready.
    /// - [`Subject::File`]: another agent overwrites the plugin entry. Pods get their redirect rules,
    ///   so the node stays ready while the entry is correct: a rollout waits until the new agent is
    ///   ready, and that agent would never become ready while the old agent runs.
    pub subject: Subject,
    /// The path in the agent's container; for plugin binaries that of their directory.
    pub path: PathBuf,
}

impl ContendedFile {
    pub fn is_plugin_entry(&self) -> bool {
        self.subject == Subject::NetworkConfig
    }
}

/// Says that another program keeps overwriting the file, and what to do.
impl fmt::Display for ContendedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {OVERWRITTEN}", self.path.display())?;
        f.write_str(match self.is_plugin_entry() {
            true => {
                ", which removes the plugin entry, so meshed pods may start without redirect rules: \
                 with Cilium set cni.exclusive=false, otherwise stop that writer"
            }
            false => {
                ": stop that writer, such as a second agent with another image or ServiceAccount"
            }
        })
    }
}

#[derive(Default)]
pub struct Contention {
    writes: BTreeMap<ContendedFile, Writes>,
}

/// The recent writes to one file. The key may have a token, so it has no `Debug`.
struct Writes {
    key: String,
    limit: RateLimit,
    is_contended: bool,
}

impl Contention {
    /// Returns when `file` may be written, if this write repeats earlier writes too soon.
    /// Writes with the same `key` repeat each other. The key is the replaced content for a network
    /// config, the written content for the kubeconfig, and empty for plugin binaries.
    pub fn blocked_until(&self, file: &ContendedFile, key: &str, now: Instant) -> Option<Instant> {
        let writes = self.writes.get(file)?;
        let due = writes.limit.due();
        (writes.key == key && now < due).then_some(due)
    }

    /// Counts a write; `key` as in [`Contention::blocked_until`]. True if contention begins.
    pub fn record_write(&mut self, file: ContendedFile, key: &str, now: Instant) -> bool {
        let new = || {
            let limit = RateLimit::new(between(INTERVAL[0], INTERVAL[1]), BURST, now);
            Writes { key: key.to_owned(), limit, is_contended: false }
        };
        let writes = self.writes.entry(file).or_insert_with(new);
        if writes.key != key || writes.is_contended && writes.is_over(now) {
            *writes = new();
        }
        writes.limit.count(now);
        let begins = !writes.is_contended && now < writes.limit.due();
        writes.is_contended |= begins;
        begins
    }

    /// Returns the files under contention, and when it ends for each if no further write is needed.
    pub fn active(&self, now: Instant) -> impl Iterator<Item = (&ContendedFile, Instant)> {
        let is_active = move |writes: &Writes| writes.is_contended && !writes.is_over(now);
        let writes = self.writes.iter().filter(move |(_, writes)| is_active(writes));
        writes.map(|(file, writes)| (file, writes.limit.due() + OVER_AFTER))
    }
}

impl Writes {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.limit.due() + OVER_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binaries() -> ContendedFile {
        ContendedFile { subject: Subject::Binary, path: "bin".into() }
    }

    #[test]
    fn repeated_writes_over_the_same_content_are_contention_and_get_rarer() {
        let (mut contention, begin) = (Contention::default(), Instant::now());
        let (mut now, mut writes, mut begins) = (begin, 0, 0);
        while now < begin + Duration::from_secs(300) {
            if contention.blocked_until(&binaries(), "same", now).is_none() {
                begins += usize::from(contention.record_write(binaries(), "same", now));
                writes += 1;
                assert_eq!(contention.active(now).count(), usize::from(writes >= 6));
            }
            now += Duration::from_millis(10);
        }
        assert!((30..=36).contains(&writes), "{writes}");
        assert_eq!(begins, 1);
        assert_eq!(contention.blocked_until(&binaries(), "other", now), None);
        let other = ContendedFile { subject: Subject::Kubeconfig, ..binaries() };
        assert_eq!(contention.blocked_until(&other, "same", now), None);
        assert_eq!(contention.active(now + INTERVAL[1] + OVER_AFTER).count(), 0);
    }
}
