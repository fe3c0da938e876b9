//! Reads the node's files every 2 ms, as a container runtime could at any instant.

use std::time::{Duration, Instant};

use super::active::{self, State};
use crate::repeated::Repeated;

const PERIOD: Duration = Duration::from_millis(2);

/// A time in which the plugin was not installed.
#[derive(Debug)]
struct Gap {
    /// The states that were read, without repetitions.
    states: Vec<State>,
    /// Time from the start of the watcher to the first read of the gap.
    begin: Duration,
    /// Longest time that the gap may have lasted.
    length: Duration,
}

impl Gap {
    /// Whether the active conflist had the plugin entry, without kubeconfig or binary.
    fn is_stranded(&self) -> bool {
        self.states.iter().any(|state| matches!(state, State::NoKubeconfig | State::Damaged(_)))
    }
}

pub struct Watcher(Repeated<Gaps>);

pub struct Gaps {
    root: String,
    begin: Instant,
    reads: usize,
    /// Time from the start of the watcher to the last read.
    watched: Duration,
    is_installed: bool,
    gaps: Vec<Gap>,
}

impl Watcher {
    pub fn start() -> Watcher {
        Watcher::of_root(String::new())
    }

    pub fn of_root(root: String) -> Watcher {
        let gaps = Gaps {
            root,
            begin: Instant::now(),
            reads: 0,
            watched: Duration::ZERO,
            is_installed: true,
            gaps: Vec::new(),
        };
        Watcher(Repeated::start(PERIOD, gaps, Gaps::read))
    }

    pub fn finish(self) -> Gaps {
        self.0.finish()
    }
}

impl Gaps {
    fn read(&mut self) {
        let mut state = active::state(&self.root);
        if state != State::Installed {
            // A file that is replaced between two reads may look missing, so the state is read
            // again.
            state = active::state(&self.root);
        }
        self.watched = self.begin.elapsed();
        self.reads += 1;
        let was_installed = self.is_installed;
        self.is_installed = state == State::Installed;
        if self.is_installed {
            return;
        }
        if was_installed {
            let begin = self.watched;
            self.gaps.push(Gap { states: Vec::new(), begin, length: Duration::ZERO });
        }
        if let Some(gap) = self.gaps.last_mut() {
            gap.length = self.watched - gap.begin + PERIOD;
            if gap.states.last() != Some(&state) {
                gap.states.push(state);
            }
        }
    }

    pub fn assert_always_installed(&self, scene: &str) {
        let gaps = &self.gaps;
        println!("{scene}: {} reads in {:.1?}, {} gaps", self.reads, self.watched, gaps.len());
        assert!(gaps.is_empty(), "{scene}: {gaps:?}");
    }

    pub fn assert_gaps_are_shorter_than(&self, limit: Duration, scene: &str) {
        let gaps = &self.gaps;
        let lengths: Vec<Duration> = gaps.iter().map(|gap| gap.length).collect();
        println!(
            "{scene}: {} reads in {:.1?}, gaps of at most {lengths:.1?}: {gaps:?}",
            self.reads, self.watched
        );
        assert!(lengths.iter().all(|length| *length < limit), "{scene}: {gaps:?}");
    }

    /// Asserts that binary and kubeconfig existed whenever the active conflist had the plugin
    /// entry.
    pub fn assert_never_stranded(&self, scene: &str) {
        let stranded: Vec<&Gap> = self.gaps.iter().filter(|gap| gap.is_stranded()).collect();
        assert!(stranded.is_empty(), "{scene}: {stranded:?}");
    }
}
