//! How often the same is done again, so that a node whose plugin is really broken does
//! not see its pods deleted, or programmed, without end (D-47).

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use super::verdict::Stranded;

/// How long a pod is left alone that is stranded again after it was dealt with.
pub const HOLD: Duration = Duration::from_secs(60);

/// How many are remembered; more pods than this do not fit on a node.
const MOST: usize = 1024;

/// What makes two acts the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Deleting: another pod of the same owner.
    Owner,
    /// What leaves the pod there: the same pod.
    Pod,
}

/// The newest act for each owner or pod.
///
/// For deletions: a pod made before is one more that the boot left behind and may go
/// at once; a pod made after shows that deleting has not helped, and has to wait. Which
/// is which is told by the API server's clock and this node's, which may differ: then a
/// pod waits that need not, or goes once more. A pod no younger than one that was dealt
/// with is left behind by the API server's clock alone, however wrong a booting node's is.
pub struct Limit {
    by: By,
    hold: Duration,
    newest: HashMap<String, Act>,
}

struct Act {
    at: Instant,
    stamp: String,
    /// When the youngest pod was made that was dealt with.
    created: String,
    /// Somebody was told that the next one is held.
    told: bool,
}

impl Limit {
    pub fn new(by: By, hold: Duration) -> Self {
        Limit {
            by,
            hold,
            newest: HashMap::new(),
        }
    }

    /// Whether the pod may be dealt with at `now`.
    pub fn allows(&self, pod: &Stranded, now: Instant) -> bool {
        self.newest.get(self.key(pod)).is_none_or(|act| {
            let left_behind =
                self.by == By::Owner && (pod.created < act.stamp || pod.created <= act.created);
            left_behind || now.duration_since(act.at) >= self.hold
        })
    }

    /// Whether this is the first time since the last act that somebody asks, so that
    /// each hold is told once.
    pub fn tell(&mut self, pod: &Stranded) -> bool {
        let key = self.key(pod).to_owned();
        let act = self.newest.get_mut(&key);
        act.is_some_and(|act| !std::mem::replace(&mut act.told, true))
    }

    /// Remembers that the pod was dealt with at `now`, which the calendar calls `date`.
    pub fn done(&mut self, pod: &Stranded, now: Instant, date: SystemTime) {
        let hold = self.hold;
        self.newest
            .retain(|_, act| now.duration_since(act.at) < hold);
        if self.newest.len() >= MOST {
            let oldest = self.newest.iter().min_by_key(|(_, act)| act.at);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.newest.remove(&key);
            }
        }
        let key = self.key(pod).to_owned();
        let before = self.newest.remove(&key).map(|act| act.created);
        let act = Act {
            at: now,
            created: before.unwrap_or_default().max(pod.created.clone()),
            stamp: humantime::format_rfc3339_seconds(date).to_string(),
            told: false,
        };
        self.newest.insert(key, act);
    }

    fn key<'p>(&self, pod: &'p Stranded) -> &'p str {
        match self.by {
            By::Owner => &pod.owner,
            By::Pod => &pod.uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn pod(owner: &str, created_at: u64) -> Stranded {
        let created = UNIX_EPOCH + Duration::from_secs(created_at);
        Stranded {
            uid: "c".into(),
            owner: owner.into(),
            created: humantime::format_rfc3339_seconds(created).to_string(),
            ..Stranded::default()
        }
    }

    #[test]
    fn what_the_boot_left_behind_goes_at_once_and_what_comes_back_waits() {
        let now = Instant::now();
        let mut limit = Limit::new(By::Owner, HOLD);
        limit.done(&pod("web", 50), now, UNIX_EPOCH + Duration::from_secs(100));
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
    fn a_node_whose_clock_is_behind_still_tells_siblings_from_replacements() {
        let now = Instant::now();
        let mut limit = Limit::new(By::Owner, HOLD);
        let behind = UNIX_EPOCH + Duration::from_secs(10);
        limit.done(&pod("web", 61), now, behind);
        limit.done(&pod("web", 60), now, behind);
        for (name, created, expected) in [
            ("made together with one", 61, true),
            ("made before", 59, true),
            ("the replacement", 62, false),
        ] {
            assert_eq!(limit.allows(&pod("web", created), now), expected, "{name}");
        }
    }

    #[test]
    fn memory_is_bounded_and_old_deletions_are_forgotten() {
        let now = Instant::now();
        let mut limit = Limit::new(By::Owner, HOLD);
        for owner in 0..2 * MOST {
            let later = now + Duration::from_micros(owner as u64);
            limit.done(&pod(&owner.to_string(), 0), later, UNIX_EPOCH);
        }
        assert_eq!(limit.newest.len(), MOST);
        assert!(limit.newest.contains_key(&(2 * MOST - 1).to_string()));
        limit.done(&pod("new", 0), now + 2 * HOLD, UNIX_EPOCH);
        assert_eq!(limit.newest.len(), 1);
    }

    #[test]
    fn a_pod_that_stays_is_left_alone_for_a_while_and_that_is_told_once() {
        let now = Instant::now();
        let mut limit = Limit::new(By::Pod, HOLD);
        let pod = pod("web", 0);
        assert!(!limit.tell(&pod), "nothing was done yet");
        limit.done(&pod, now, UNIX_EPOCH + Duration::from_secs(100));
        assert!(!limit.allows(&pod, now + HOLD / 2));
        assert!(limit.tell(&pod));
        assert!(!limit.tell(&pod));
        assert!(limit.allows(&pod, now + HOLD));
    }
}
