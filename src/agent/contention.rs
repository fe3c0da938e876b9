//! Another program that takes our entry out again and again, such as Cilium where it wants
//! the directory for itself.
//!
//! A network's owner may write its file as often as it likes: new content is no fight.
//! The same content without us, over and over, is; each further try waits longer.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::time::{Duration, Instant};

/// More writes over the same content than one and these in a [`MINUTE`] are a fight.
const REPEATS: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
/// How long each further write waits: by a third longer from the first to the last.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(10);
/// An entry that lasts this long is no longer fought over.
const PEACE: Duration = Duration::from_secs(12);

/// What is fought over, by list.
#[derive(Debug, Default)]
pub struct Fights {
    lists: BTreeMap<String, Fight>,
}

#[derive(Debug)]
struct Fight {
    /// What the list was before our last write.
    content: u64,
    writes: VecDeque<Instant>,
    /// Set from when it is a fight.
    wait: Option<Duration>,
    next: Instant,
}

impl Fights {
    /// Until when the list, which now holds `content`, is not to be written.
    pub fn hold(&self, list: &str, content: &str, now: Instant) -> Option<Instant> {
        let fight = self.lists.get(list)?;
        (fight.content == hash(content) && now < fight.next).then_some(fight.next)
    }

    /// The list was written over `content`; whether that began a fight.
    pub fn wrote(&mut self, list: &str, content: &str, now: Instant) -> bool {
        let content = hash(content);
        let fight = self.lists.entry(list.to_owned()).or_insert(Fight {
            content,
            writes: VecDeque::new(),
            wait: None,
            next: now,
        });
        if fight.content != content || fight.is_over(now) {
            fight.wait = None;
        }
        if fight.content != content {
            fight.content = content;
            fight.writes.clear();
        }
        fight
            .writes
            .retain(|write| now.duration_since(*write) < MINUTE);
        fight.writes.push_back(now);
        if fight.writes.len() <= 1 + REPEATS {
            return false;
        }
        let before = fight.wait;
        let wait = before.map_or(FIRST, |wait| (wait * 4 / 3).min(LAST));
        fight.wait = Some(wait);
        fight.next = now + longer(wait);
        before.is_none()
    }

    /// The lists that are fought over, and when that is over if nothing happens.
    pub fn on(&self, now: Instant) -> impl Iterator<Item = (&str, Instant)> {
        let on = move |fight: &Fight| fight.wait.is_some() && !fight.is_over(now);
        let lists = self.lists.iter();
        lists.filter_map(move |(list, fight)| {
            on(fight).then_some((list.as_str(), fight.next + PEACE))
        })
    }
}

impl Fight {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.next + PEACE
    }
}

/// `wait` or up to a third more, so that two who wait alike do not always come in the same
/// order.
fn longer(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1024;
    wait + wait / 3 * (random as u32) / 1024
}

fn hash(content: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_again_and_again_is_a_fight_with_fewer_and_fewer_writes() {
        let (mut fights, begin) = (Fights::default(), Instant::now());
        let (mut now, mut writes, mut begins) = (begin, 0, 0);
        while now < begin + 5 * MINUTE {
            if fights.hold("x", "bare", now).is_none() {
                begins += usize::from(fights.wrote("x", "bare", now));
                writes += 1;
                assert_eq!(fights.on(now).count(), usize::from(writes > 6));
            }
            now += Duration::from_millis(10);
        }
        assert!((40..=60).contains(&writes), "{writes}");
        assert_eq!(begins, 1);
        // The last wait may be a third longer.
        assert_eq!(fights.on(now + LAST * 4 / 3 + PEACE).count(), 0);
    }

    #[test]
    fn an_owner_that_writes_something_new_is_not_kept_waiting() {
        let (mut fights, now) = (Fights::default(), Instant::now());
        for turn in 0..1000 {
            let content = format!("mtu {turn}");
            assert_eq!(fights.hold("x", &content, now), None);
            assert!(!fights.wrote("x", &content, now));
        }
        for _ in 0..7 {
            fights.wrote("x", "bare", now);
        }
        assert!(fights.hold("x", "bare", now).is_some());
        assert_eq!(fights.hold("x", "other", now), None);
        assert_eq!(fights.hold("y", "bare", now), None);
    }
}
