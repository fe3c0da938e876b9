//! Limits writes to the node's files that another program keeps undoing (contention).
//!
//! Contention means that the agent had to repeat the same write more than 5 times in a minute. The
//! agent then writes again only every 10 to 12 s. For example, Cilium with `cni.exclusive=true`
//! removes the plugin entry from the active conflist each time that the agent adds it. A primary
//! CNI that rewrites its conflist with new content does not cause contention: the agent chains the
//! plugin at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::OVERWRITTEN;
use crate::backoff::{RateLimit, between};

/// Number of equal writes that are allowed without a wait between them.
const BURST: u32 = 6;
/// Shortest and longest time after which one more equal write is allowed. So this is also the time
/// between two writes under contention. The time is random, because two agents that wait for the
/// same time would always write in the same order.
const INTERVAL: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(12)];
/// Time without a further write after which contention is over, counted from when that write would
/// have been allowed.
const OVER_AFTER: Duration = Duration::from_secs(2);

/// A file that the agent writes, with its path in the agent's container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WrittenFile {
    /// The plugin binaries, with the path of their directory.
    Binaries(PathBuf),
    Kubeconfig(PathBuf),
    /// A network config that has no plugin entry before the write. Under contention another program
    /// removes the plugin entry. Meshed pods may then start without redirect rules, so the node is
    /// not ready.
    ConfigWithoutEntry(PathBuf),
    /// A network config that has a plugin entry before the write with which the plugin does not
    /// work. Under contention another program overwrites the plugin entry. The node is not ready.
    ConfigWithUnusableEntry(PathBuf),
    /// A network config that has a plugin entry before the write with which the plugin works. Under
    /// contention another agent overwrites the plugin entry. Pods get their redirect rules
    /// nevertheless, so the node stays ready. If it did not, a rolling update would never end: it
    /// stops the old agent only once the new agent is ready.
    ConfigWithEntry(PathBuf),
}

impl WrittenFile {
    pub fn path(&self) -> &Path {
        match self {
            WrittenFile::Binaries(path)
            | WrittenFile::Kubeconfig(path)
            | WrittenFile::ConfigWithoutEntry(path)
            | WrittenFile::ConfigWithUnusableEntry(path)
            | WrittenFile::ConfigWithEntry(path) => path,
        }
    }
}

/// Writes the message that another program keeps overwriting the file, and what to do.
impl fmt::Display for WrittenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {OVERWRITTEN}", self.path().display())?;
        f.write_str(match self {
            WrittenFile::ConfigWithoutEntry(_) => {
                ", which removes the plugin entry, so meshed pods may start without redirect rules: \
                 with Cilium set cni.exclusive=false, otherwise stop that writer"
            }
            WrittenFile::ConfigWithUnusableEntry(_) => {
                ", with a plugin entry that does not work, so meshed pods may start without \
                 redirect rules: stop that writer, such as a second agent with another kubeconfig"
            }
            WrittenFile::Binaries(_)
            | WrittenFile::Kubeconfig(_)
            | WrittenFile::ConfigWithEntry(_) => {
                ": stop that writer, such as a second agent with another image or ServiceAccount"
            }
        })
    }
}

/// Why [`LimitedWriter::write`] did not write.
#[derive(Debug)]
pub enum WriteError<E> {
    /// The write would repeat earlier writes too soon. It is allowed from this time on.
    Limited(Instant),
    Failed(E),
}

/// A file under contention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContendedFile {
    pub file: WrittenFile,
    /// When the contention is over if no further write is needed until then.
    pub over_at: Instant,
    /// Whether the contention began after the last call of [`LimitedWriter::contended`].
    pub is_new: bool,
}

/// Writes files of the node, and limits how often it repeats a write.
pub struct LimitedWriter {
    /// Called before each write.
    announce: Box<dyn Fn(&WrittenFile)>,
    recent: BTreeMap<WrittenFile, RecentWrites>,
}

/// The recent writes to one file. The type does not implement `Debug`, because the key of a
/// kubeconfig contains a token.
struct RecentWrites {
    /// Key of the last write.
    key: String,
    limit: RateLimit,
    contention: Contention,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contention {
    Absent,
    Unreported,
    Reported,
}

impl LimitedWriter {
    /// Returns a writer that calls `announce` before each write.
    pub fn new(announce: impl Fn(&WrittenFile) + 'static) -> LimitedWriter {
        LimitedWriter { announce: Box::new(announce), recent: BTreeMap::new() }
    }

    /// Calls `write`, which writes `file`, unless this would repeat earlier writes too soon.
    ///
    /// Writes of a file with equal keys count as repetitions of each other. The `key` is the
    /// replaced content for a network config, the written content for the kubeconfig, and empty for
    /// plugin binaries.
    pub fn write<T, E>(
        &mut self,
        file: &WrittenFile,
        key: &str,
        now: Instant,
        write: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, WriteError<E>> {
        if let Some(until) = self.limited_until(file, key, now) {
            return Err(WriteError::Limited(until));
        }
        (self.announce)(file);
        let written = write().map_err(WriteError::Failed)?;
        self.count(file, key, now);
        Ok(written)
    }

    /// Returns the files under contention, in the order of [`WrittenFile`].
    pub fn contended(&mut self, now: Instant) -> Vec<ContendedFile> {
        let mut contended = Vec::new();
        for (file, writes) in &mut self.recent {
            if writes.contention == Contention::Absent || writes.is_over(now) {
                continue;
            }
            contended.push(ContendedFile {
                file: file.clone(),
                over_at: writes.limit.due() + OVER_AFTER,
                is_new: writes.contention == Contention::Unreported,
            });
            writes.contention = Contention::Reported;
        }
        contended
    }

    /// Returns when `file` may be written, if that is later than `now`.
    fn limited_until(&self, file: &WrittenFile, key: &str, now: Instant) -> Option<Instant> {
        let writes = self.recent.get(file)?;
        let due = writes.limit.due();
        if writes.key == key && now < due { Some(due) } else { None }
    }

    /// Counts a write of `file`. Contention begins with the write after which the next equal one
    /// has to wait.
    fn count(&mut self, file: &WrittenFile, key: &str, now: Instant) {
        let recent = self.recent.entry(file.clone()).or_insert_with(|| RecentWrites::new(key, now));
        let contention_is_over = recent.contention != Contention::Absent && recent.is_over(now);
        if recent.key != key || contention_is_over {
            *recent = RecentWrites::new(key, now);
        }
        recent.limit.count(now);
        if recent.contention == Contention::Absent && now < recent.limit.due() {
            recent.contention = Contention::Unreported;
        }
    }
}

impl RecentWrites {
    fn new(key: &str, now: Instant) -> RecentWrites {
        let interval = between(INTERVAL[0], INTERVAL[1]);
        let limit = RateLimit::new(interval, BURST, now);
        RecentWrites { key: key.to_owned(), limit, contention: Contention::Absent }
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.limit.due() + OVER_AFTER
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn binaries() -> WrittenFile {
        WrittenFile::Binaries("bin".into())
    }

    /// Returns whether a write of `file` with this `key` is made at the time `now`.
    fn is_written(writer: &mut LimitedWriter, file: &WrittenFile, key: &str, now: Instant) -> bool {
        let mut is_called = false;
        let written = writer.write(file, key, now, || -> Result<(), ()> {
            is_called = true;
            Ok(())
        });
        assert_eq!(written.is_ok(), is_called);
        is_called
    }

    #[test]
    fn repeated_equal_writes_are_contention_and_are_delayed() {
        let announced = Rc::new(Cell::new(0));
        let count = Rc::clone(&announced);
        let mut writer = LimitedWriter::new(move |_| count.set(count.get() + 1));
        let begin = Instant::now();
        let mut now = begin;
        let mut writes = 0;
        let mut new_contentions = 0;
        while now < begin + Duration::from_secs(300) {
            if is_written(&mut writer, &binaries(), "same", now) {
                writes += 1;
                let contended = writer.contended(now);
                assert_eq!(contended.len(), usize::from(writes >= 6));
                new_contentions += contended.iter().filter(|file| file.is_new).count();
            }
            now += Duration::from_millis(10);
        }
        assert!((30..=36).contains(&writes), "{writes}");
        // A write that is delayed is not announced: readiness stays as the last pass judged it.
        assert_eq!((new_contentions, announced.get()), (1, writes));
        assert_eq!(writer.contended(now + INTERVAL[1] + OVER_AFTER), []);
        assert!(is_written(&mut writer, &binaries(), "other", now));
        let kubeconfig = WrittenFile::Kubeconfig("bin".into());
        assert!(is_written(&mut writer, &kubeconfig, "same", now));
    }

    #[test]
    fn a_failed_write_does_not_count_as_contention() {
        let mut writer = LimitedWriter::new(|_| {});
        let now = Instant::now();
        for _ in 0..20 {
            let failed = writer.write(&binaries(), "", now, || Err::<(), _>("disk full"));
            assert!(matches!(failed, Err(WriteError::Failed("disk full"))));
        }
        assert_eq!(writer.contended(now), []);
    }
}
