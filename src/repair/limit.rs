//! How often pods of one owner are deleted, so that a node whose plugin is really
//! broken does not see its pods deleted without end (D-47).

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::verdict::Stranded;

/// How long a replaced pod that is stranded again is left alone.
pub const HOLD: Duration = Duration::from_secs(60);

/// How many owners are remembered; more pods than this do not fit on a node.
const OWNERS: usize = 1024;

/// The newest deletion for each owner.
///
/// A pod made before it is one more that the boot left behind and may go at once; a
/// pod made after it shows that deleting has not helped, and has to wait. Which is
/// which is told by the API server's clock and this node's, which may differ a
/// little: then a pod waits that need not, or goes once more.
#[derive(Default)]
pub struct Limit {
    newest: HashMap<String, Deletion>,
}

struct Deletion {
    at: Instant,
    stamp: String,
}

impl Limit {
    /// Whether the pod may be deleted at `now`.
    pub fn allows(&self, pod: &Stranded, now: Instant) -> bool {
        self.newest.get(&pod.owner).is_none_or(|deletion| {
            pod.created < deletion.stamp || now.duration_since(deletion.at) >= HOLD
        })
    }

    /// Remembers that the pod was deleted at `now`, which the calendar calls `date`.
    pub fn deleted(&mut self, pod: &Stranded, now: Instant, date: SystemTime) {
        self.newest
            .retain(|_, deletion| now.duration_since(deletion.at) < HOLD);
        if self.newest.len() >= OWNERS {
            let oldest = self.newest.iter().min_by_key(|(_, deletion)| deletion.at);
            if let Some(owner) = oldest.map(|(owner, _)| owner.clone()) {
                self.newest.remove(&owner);
            }
        }
        let stamp = humantime::format_rfc3339_seconds(date).to_string();
        self.newest
            .insert(pod.owner.clone(), Deletion { at: now, stamp });
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn pod(owner: &str, created_at: u64) -> Stranded {
        let created = UNIX_EPOCH + Duration::from_secs(created_at);
        Stranded {
            namespace: "a".into(),
            name: "b".into(),
            uid: "c".into(),
            owner: owner.into(),
            created: humantime::format_rfc3339_seconds(created).to_string(),
        }
    }

    #[test]
    fn what_the_boot_left_behind_goes_at_once_and_what_comes_back_waits() {
        let now = Instant::now();
        let mut limit = Limit::default();
        limit.deleted(&pod("web", 50), now, UNIX_EPOCH + Duration::from_secs(100));
        for (name, pod, after, expected) in [
            ("a sibling made before", pod("web", 60), 1, true),
            ("the replacement", pod("web", 101), 12, false),
            ("made in the same second", pod("web", 100), 1, false),
            ("the replacement, later", pod("web", 101), 60, true),
            ("another owner's pod", pod("voting", 101), 1, true),
        ] {
            let then = now + Duration::from_secs(after);
            assert_eq!(limit.allows(&pod, then), expected, "{name}");
        }
    }

    #[test]
    fn memory_is_bounded_and_old_deletions_are_forgotten() {
        let now = Instant::now();
        let mut limit = Limit::default();
        for owner in 0..2 * OWNERS {
            let later = now + Duration::from_micros(owner as u64);
            limit.deleted(&pod(&owner.to_string(), 0), later, UNIX_EPOCH);
        }
        assert_eq!(limit.newest.len(), OWNERS);
        assert!(limit.newest.contains_key(&(2 * OWNERS - 1).to_string()));
        limit.deleted(&pod("new", 0), now + 2 * HOLD, UNIX_EPOCH);
        assert_eq!(limit.newest.len(), 1);
    }
}
