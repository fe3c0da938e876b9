//! Detects contention: another program that keeps undoing a write of this agent.
//!
//! Contention means that the agent had to repeat the same write more than 5 times in 60 s. The
//! agent then waits longer before each further write. For example, Cilium with
//! `cni.exclusive=true` removes the plugin entry from the active conflist again and again. A
//! primary CNI that rewrites its conflist with new content does not cause contention: the agent
//! chains the plugin at once.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::subject::Subject;
use crate::backoff::jitter;
pub use crate::node::OVERWRITTEN;

/// Maximum number of repetitions of the same write within [`WINDOW`] without contention.
const TOLERATED_REPEATS: usize = 5;
/// Time for which writes are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Delay before the first write under contention. Each further delay is a third longer.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// Longest delay before a write, without jitter.
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// Contention is over if no write was needed for this long after the last delay ended.
const OVER_AFTER: Duration = Duration::from_secs(12);

/// A file for which this agent and another program may contend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContendedFile {
    /// A network config has one of two subjects.
    /// - [`Subject::NetworkConfig`]: another program removes the plugin entry. Meshed pods may then
    ///   start without redirect rules, so the node is not ready.
    /// - [`Subject::File`]: another agent overwrites the plugin entry. Pods get their redirect rules,
    ///   so the node stays ready while the entry is correct: a rollout waits until the new agent is
    ///   ready, and that agent would never become ready while the old agent runs.
    pub subject: Subject,
    /// The path in the agent's container. For plugin binaries it is their directory, because the
    /// agent may install several.
    pub path: PathBuf,
}

impl ContendedFile {
    /// Returns whether another program removes the plugin entry, so that the node is not ready.
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

/// The recent writes to files that another program may overwrite.
#[derive(Debug, Default)]
pub struct Contention {
    writes: BTreeMap<ContendedFile, Writes>,
}

/// The recent writes to one file.
#[derive(Debug)]
struct Writes {
    /// Hash of the key of the last write.
    key: u64,
    times: VecDeque<Instant>,
    /// The last delay. `None` without contention.
    delay: Option<Duration>,
    /// Earliest time of the next write with the same key.
    next: Instant,
}

impl Contention {
    /// Returns the time before which `file` must not be written. `None` allows
    /// the write now: there is no contention, the delay has passed, or the write is a new one.
    /// Writes with the same `key` repeat each other. The key is the replaced content for a network
    /// config, the written content for the kubeconfig, and empty for plugin binaries.
    pub fn blocked_until(&self, file: &ContendedFile, key: &str, now: Instant) -> Option<Instant> {
        let writes = self.writes.get(file)?;
        (writes.key == hash(key) && now < writes.next).then_some(writes.next)
    }

    /// Records a write to `file`, with the `key` of [`Contention::blocked_until`]. Returns whether
    /// contention began with this write.
    pub fn record_write(&mut self, file: ContendedFile, key: &str, now: Instant) -> bool {
        let key = hash(key);
        let writes = self.writes.entry(file).or_insert(Writes {
            key,
            times: VecDeque::new(),
            delay: None,
            next: now,
        });
        if writes.key != key || writes.is_over(now) {
            writes.delay = None;
        }
        if writes.key != key {
            writes.key = key;
            writes.times.clear();
        }
        writes.times.retain(|time| now.duration_since(*time) < WINDOW);
        writes.times.push_back(now);
        if writes.times.len() <= 1 + TOLERATED_REPEATS {
            return false;
        }
        let before = writes.delay;
        let delay = before.map_or(FIRST_DELAY, |delay| (delay * 4 / 3).min(LONGEST_DELAY));
        writes.delay = Some(delay);
        // Two agents with the same delay would always write in the same order, so that the same one
        // always loses.
        writes.next = now + delay + jitter(delay / 3);
        before.is_none()
    }

    /// Returns the files under contention, each with the time at which contention is over if
    /// no further write is needed.
    pub fn active(&self, now: Instant) -> impl Iterator<Item = (&ContendedFile, Instant)> {
        let is_active = move |writes: &Writes| writes.delay.is_some() && !writes.is_over(now);
        let writes = self.writes.iter();
        writes.filter_map(move |(file, writes)| {
            is_active(writes).then_some((file, writes.next + OVER_AFTER))
        })
    }
}

impl Writes {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.next + OVER_AFTER
    }
}

fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
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
        while now < begin + 5 * WINDOW {
            if contention.blocked_until(&binaries(), "same", now).is_none() {
                begins += usize::from(contention.record_write(binaries(), "same", now));
                writes += 1;
                assert_eq!(contention.active(now).count(), usize::from(writes > 6));
            }
            now += Duration::from_millis(10);
        }
        assert!((40..=60).contains(&writes), "{writes}");
        assert_eq!(begins, 1);
        // Jitter makes the last delay up to a third longer.
        assert_eq!(contention.active(now + LONGEST_DELAY * 4 / 3 + OVER_AFTER).count(), 0);
    }

    #[test]
    fn writes_over_new_content_are_never_delayed() {
        let (mut contention, now) = (Contention::default(), Instant::now());
        for turn in 0..1000 {
            let content = format!("mtu {turn}");
            assert_eq!(contention.blocked_until(&binaries(), &content, now), None);
            assert!(!contention.record_write(binaries(), &content, now));
        }
        for _ in 0..7 {
            contention.record_write(binaries(), "same", now);
        }
        assert!(contention.blocked_until(&binaries(), "same", now).is_some());
        assert_eq!(contention.blocked_until(&binaries(), "other", now), None);
        let other = ContendedFile { subject: Subject::Kubeconfig, ..binaries() };
        assert_eq!(contention.blocked_until(&other, "same", now), None);
    }
}
