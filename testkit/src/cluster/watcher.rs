//! Reads the node's files every 2 ms, as a container runtime could at any instant.

use std::time::{Duration, Instant};

use super::active::{State, state};
use crate::repeated::Repeated;

const PERIOD: Duration = Duration::from_millis(2);

#[derive(Debug)]
struct Gap {
    states: Vec<State>,
    begin: Duration,
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
    took: Duration,
    is_installed: bool,
    gaps: Vec<Gap>,
}

impl Watcher {
    pub fn start() -> Watcher {
        Watcher::of_root(String::new())
    }

    pub fn of_root(root: String) -> Watcher {
        let (begin, took) = (Instant::now(), Duration::ZERO);
        let seen = Gaps { root, begin, reads: 0, took, is_installed: true, gaps: Vec::new() };
        Watcher(Repeated::start(PERIOD, seen, Gaps::read))
    }

    pub fn finish(self) -> Gaps {
        self.0.finish()
    }
}

impl Gaps {
    fn read(&mut self) {
        // The state is read twice if the plugin is not installed, because a file that is replaced
        // between two reads may look missing.
        let state = match state(&self.root) {
            State::Installed => State::Installed,
            _ => state(&self.root),
        };
        self.took = self.begin.elapsed();
        self.reads += 1;
        let was_installed = self.is_installed;
        self.is_installed = state == State::Installed;
        if self.is_installed {
            return;
        }
        if was_installed {
            let (states, length) = (Vec::new(), Duration::ZERO);
            self.gaps.push(Gap { states, begin: self.took, length });
        }
        if let Some(gap) = self.gaps.last_mut() {
            gap.length = self.took - gap.begin + PERIOD;
            if gap.states.last() != Some(&state) {
                gap.states.push(state);
            }
        }
    }

    pub fn assert_always_installed(&self, scene: &str) {
        let Gaps { reads, took, gaps, .. } = self;
        println!("{scene}: {reads} reads in {took:.1?}, {} gaps", gaps.len());
        assert!(gaps.is_empty(), "{scene}: {gaps:?}");
    }

    pub fn assert_no_gap_of(&self, longest: Duration, scene: &str) {
        let Gaps { reads, took, gaps, .. } = self;
        let lengths: Vec<Duration> = gaps.iter().map(|gap| gap.length).collect();
        println!("{scene}: {reads} reads in {took:.1?}, gaps of at most {lengths:.1?}: {gaps:?}");
        assert!(lengths.iter().all(|length| *length < longest), "{scene}: {gaps:?}");
    }

    /// Asserts that binary and kubeconfig existed whenever the active conflist had the plugin
    /// entry.
    pub fn assert_never_stranded(&self, scene: &str) {
        let stranded: Vec<&Gap> = self.gaps.iter().filter(|gap| gap.is_stranded()).collect();
        assert!(stranded.is_empty(), "{scene}: {stranded:?}");
    }
}
