//! Reads the node's network config, kubeconfig and plugin binary every 2 ms, as a container
//! runtime could at any instant.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::active;

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
pub struct Watcher {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Seen>,
}

/// Result of a [`Watcher`].
pub struct Seen {
    reads: usize,
    took: Duration,
    gaps: Vec<Gap>,
}

impl Watcher {
    pub fn start() -> Watcher {
        Watcher::of(String::new())
    }

    /// Watches the node whose file system is at the path `root`.
    pub fn of(root: String) -> Watcher {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reader = thread::spawn(move || watch(&root, &stopped));
        Watcher { stop, reader }
    }

    pub fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}

impl Seen {
    /// Asserts that the plugin was installed at every instant.
    pub fn assert_always_installed(&self, scene: &str) {
        let Seen { reads, took, gaps } = self;
        println!("{scene}: {reads} reads in {took:.1?}, {} gaps", gaps.len());
        assert!(gaps.is_empty(), "{scene}: {gaps:?}");
    }

    /// At no time was the plugin missing, in whatever way, for `longest`.
    pub fn assert_no_gap_of(&self, longest: Duration, scene: &str) {
        let Seen { reads, took, gaps } = self;
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
    #[allow(clippy::print_stdout, reason = "the figure is what a scene is for")]
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

fn watch(root: &str, stop: &AtomicBool) -> Seen {
    let begin = Instant::now();
    let mut gaps: Vec<Gap> = Vec::new();
    let (mut reads, mut last) = (0, State::Installed);
    while !stop.load(Ordering::Relaxed) {
        let (state, now) = (read(root), begin.elapsed());
        match gaps.last_mut() {
            _ if state == State::Installed => {}
            Some(gap) if last == state => gap.length = now - gap.begin,
            _ => gaps.push(Gap { state: state.clone(), begin: now, length: Duration::ZERO }),
        }
        last = state;
        reads += 1;
        thread::sleep(PERIOD);
    }
    Seen { reads, took: begin.elapsed(), gaps }
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
