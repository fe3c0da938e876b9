//! Reads the node's network config, kubeconfig and plugin binary every 2 ms, as a container
//! runtime could at any instant.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::active;
use crate::repeated::Repeated;

const BINARY: &str = "/opt/cni/bin/linkerd-cni";
const PERIOD: Duration = Duration::from_millis(2);

/// The node at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The active conflist has the plugin entry; kubeconfig and binary are there.
    Installed,
    /// The active conflist has no plugin entry.
    Unchained,
    /// It has one, but this is missing or damaged.
    Stranded(&'static str),
}

/// A time in which the plugin was not installed.
#[derive(Debug)]
struct Gap {
    state: State,
    begin: Duration,
    length: Duration,
}

/// Watches until [`Watcher::finish`].
pub struct Watcher(Repeated<Seen>);

/// What a [`Watcher`] saw.
pub struct Seen {
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
        let seen = Seen { root, begin, reads: 0, took, last: State::Installed, gaps: Vec::new() };
        Watcher(Repeated::start(PERIOD, seen, Seen::read))
    }

    pub fn finish(self) -> Seen {
        self.0.finish()
    }
}

impl Seen {
    fn read(&mut self) {
        let state = read(&self.root);
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
        let Seen { reads, took, gaps, .. } = self;
        println!("{scene}: {reads} reads in {took:.1?}, {} gaps", gaps.len());
        assert!(gaps.is_empty(), "{scene}: {gaps:?}");
    }

    /// At no time was the plugin missing, in whatever way, for `longest`.
    pub fn assert_no_gap_of(&self, longest: Duration, scene: &str) {
        let Seen { reads, took, gaps, .. } = self;
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

    /// Prints and returns the longest time in which the active conflist had the plugin entry, but binary or kubeconfig
    /// were missing or damaged.
    pub fn longest_stranded(&self, scene: &str) -> Duration {
        let stranded = self.gaps.iter().filter(|gap| gap.state != State::Unchained);
        let longest = stranded.map(|gap| gap.length).max().unwrap_or_default();
        println!("{scene}: at most {longest:.1?} without binary or kubeconfig");
        longest
    }

    /// Asserts that binary and kubeconfig existed whenever the active conflist had the plugin entry.
    pub fn assert_never_stranded(&self, scene: &str) {
        let mut gaps = self.gaps.iter();
        let stranded = gaps.find(|gap| gap.state != State::Unchained);
        assert!(stranded.is_none(), "{scene}: {stranded:?}");
    }
}

/// Reads the state, twice if the plugin is not installed, as a file that is replaced between two reads may look missing.
fn read(root: &str) -> State {
    match read_once(root) {
        State::Installed => State::Installed,
        _ => read_once(root),
    }
}

fn read_once(root: &str) -> State {
    let is_entry = |plugin: &Value| plugin["type"] == "linkerd-cni";
    let Some(entry) = active::plugins_of_node(root).into_iter().find(is_entry) else {
        return State::Unchained;
    };
    let kubeconfig = entry["kubernetes"]["kubeconfig"].as_str().unwrap_or_default();
    let kubeconfig = fs::read_to_string(format!("{root}{kubeconfig}")).unwrap_or_default();
    // Upstream's is YAML, with the current context in its last line.
    let is_upstreams = kubeconfig.trim_end().ends_with("current-context: linkerd-cni-context");
    if !is_upstreams && serde_json::from_str::<Value>(&kubeconfig).is_err() {
        return State::Stranded("kubeconfig");
    }
    let binary = fs::metadata(format!("{root}{BINARY}"));
    if !binary.is_ok_and(|file| file.len() > 0 && file.permissions().mode() & 0o111 != 0) {
        return State::Stranded("binary");
    }
    State::Installed
}
