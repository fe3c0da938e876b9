//! Reads the node's network config, kubeconfig and plugin binary every 2 ms, as a container
//! runtime could at any instant.

use std::time::{Duration, Instant};

use super::active::{State, state};
use crate::repeated::Repeated;

const PERIOD: Duration = Duration::from_millis(2);

/// A time in which the plugin was not installed.
#[derive(Debug)]
struct Gap {
    state: State,
    begin: Duration,
    length: Duration,
}

/// Watches until [`Watcher::finish`].
pub struct Watcher(Repeated<Gaps>);

/// What a [`Watcher`] saw.
pub struct Gaps {
    /// Path of the node's file system.
    root: String,
    begin: Instant,
    reads: usize,
    took: Duration,
    last: State,
    gaps: Vec<Gap>,
}

impl Watcher {
    pub fn start() -> Watcher {
        Watcher::of(String::new())
    }

    /// Watches the node whose file system is at the path `root`.
    pub fn of(root: String) -> Watcher {
        let (begin, took) = (Instant::now(), Duration::ZERO);
        let seen = Gaps { root, begin, reads: 0, took, last: State::Installed, gaps: Vec::new() };
        Watcher(Repeated::start(PERIOD, seen, Gaps::read))
    }

    pub fn finish(self) -> Gaps {
        self.0.finish()
    }
}

impl Gaps {
    fn read(&mut self) {
        // Twice if the plugin is not installed, as a file that is replaced between two reads may look missing.
        let state = match state(&self.root) {
            State::Installed => State::Installed,
            _ => state(&self.root),
        };
        self.took = self.begin.elapsed();
        match self.gaps.last_mut() {
            _ if state == State::Installed => {}
            Some(gap) if self.last == state => gap.length = self.took - gap.begin,
            _ => {
                let gap = Gap { state: state.clone(), begin: self.took, length: Duration::ZERO };
                self.gaps.push(gap);
            }
        }
        self.last = state;
        self.reads += 1;
    }

    /// Asserts that the plugin was installed at every instant.
    pub fn assert_always_installed(&self, scene: &str) {
        let Gaps { reads, took, gaps, .. } = self;
        println!("{scene}: {reads} reads in {took:.1?}, {} gaps", gaps.len());
        assert!(gaps.is_empty(), "{scene}: {gaps:?}");
    }

    /// At no time was the plugin missing, in whatever way, for `longest`.
    pub fn assert_no_gap_of(&self, longest: Duration, scene: &str) {
        let Gaps { reads, took, gaps, .. } = self;
        // Gaps of different kinds that follow each other are one.
        let mut whole: Vec<(Duration, Duration)> = Vec::new();
        for gap in gaps {
            let end = gap.begin + gap.length + PERIOD;
            match whole.last_mut() {
                Some((_, last)) if gap.begin <= *last + 2 * PERIOD => *last = end,
                _ => whole.push((gap.begin, end)),
            }
        }
        let lengths: Vec<Duration> = whole.iter().map(|(begin, end)| *end - *begin).collect();
        println!("{scene}: {reads} reads in {took:.1?}, gaps of at most {lengths:.1?}: {gaps:?}");
        assert!(lengths.iter().all(|length| *length < longest), "{scene}: {gaps:?}");
    }

    /// Asserts that binary and kubeconfig existed whenever the active conflist had the plugin entry.
    pub fn assert_never_stranded(&self, scene: &str) {
        let stranded: Vec<&Gap> = self.stranded().collect();
        assert!(stranded.is_empty(), "{scene}: {stranded:?}");
    }

    fn stranded(&self) -> impl Iterator<Item = &Gap> {
        let is_stranded = |state: &State| matches!(state, State::NoKubeconfig | State::Damaged(_));
        self.gaps.iter().filter(move |gap| is_stranded(&gap.state))
    }
}
