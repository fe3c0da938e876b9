//! Another program that chains the plugin again while the agent uninstalls, as an agent of
//! another release does. Whatever a network config names must be on the node.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::Agent;
use crate::node::{CALICO, LIST, Node, PLUGIN};
use crate::repeated::Repeated;
use crate::until::until;

/// Longest time until the agent has put back the files that a config names again. It is below a
/// millisecond where a processor is free, and below 50 on one that is busy.
pub const PUT_BACK: Duration = Duration::from_millis(500);

/// An agent that uninstalls waits for at least this time for others to chain the plugin again.
const QUIET: Duration = Duration::from_millis(400);

/// When the entry was chained again.
struct Writes {
    /// Longest time between a removal and the write that followed.
    latest: Duration,
    /// When the entry was last seen.
    last_chained: Instant,
}

/// Chains the plugin again `delay` after each removal, `times` at most, as upstream's agent
/// does: it writes binary and kubeconfig only when it starts. Counts its writes.
fn rechain(
    node: &Arc<Node>,
    delay: Duration,
    times: usize,
) -> (Repeated<Writes>, Arc<AtomicUsize>) {
    let (node, written) = (Arc::clone(node), Arc::<AtomicUsize>::default());
    let (chained, count) = (node.text(LIST), Arc::clone(&written));
    let writes = Writes { latest: Duration::ZERO, last_chained: Instant::now() };
    let writer = Repeated::start(Duration::from_micros(200), writes, move |writes| {
        let looked = Instant::now();
        if count.load(Ordering::Relaxed) < times && node.text(LIST) == CALICO {
            thread::sleep(delay);
            node.replace(&node.net(LIST), chained.as_bytes());
            writes.latest = writes.latest.max(writes.last_chained.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
        }
        writes.last_chained = looked;
    });
    (writer, written)
}

/// The longest time for which the node was in some state.
pub struct Longest {
    longest: Duration,
    since: Option<Instant>,
}

/// Looks at the node about every millisecond, for how long `is_bad`.
pub fn watch(node: &Arc<Node>, is_bad: fn(&Node) -> bool) -> Watch {
    let (node, longest) = (Arc::clone(node), Longest { longest: Duration::ZERO, since: None });
    Watch(Repeated::start(Duration::from_micros(500), longest, move |seen| match is_bad(&node) {
        true => {
            let since = seen.since.get_or_insert_with(Instant::now);
            seen.longest = seen.longest.max(since.elapsed());
        }
        false => seen.since = None,
    }))
}

pub struct Watch(Repeated<Longest>);

impl Watch {
    pub fn finish(self) -> Duration {
        self.0.finish().longest
    }
}

/// Whether a config names the plugin while binary or kubeconfig are missing.
fn is_stranded(node: &Node) -> bool {
    let text = node.text(LIST);
    let length = |path| fs::metadata(path).map_or(0, |file| file.len());
    let whole = || {
        length(node.bin("linkerd-cni")) == PLUGIN.len() as u64
            && length(node.net("kubeconfig.json")) > 0
    };
    text.contains("linkerd-cni") && !whole() && node.text(LIST) == text
}

fn ready() -> (Arc<Node>, Agent) {
    let node = Arc::new(Node::with_calico());
    let agent = node.start_ready();
    (node, agent)
}

/// Rounds with the same delay in which the test's own writer or the agent may get no processor time for so long.
const TRIES: usize = 5;

#[test]
fn uninstall_leaves_plugin_and_kubeconfig_while_another_program_keeps_chaining() {
    for (number, delay) in [1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50].into_iter().enumerate() {
        let delay = Duration::from_millis(delay);
        let round = || uninstall_beside_a_writer(delay, number % 2 == 0);
        let is_quick = (0..TRIES).any(|_| round().is_some_and(|stranded| stranded < PUT_BACK));
        assert!(is_quick, "no round with {delay:?} in which the files are put back in time");
    }
}

/// Uninstalls while another program chains the plugin again `delay` after each removal. Returns how long a config named
/// the plugin while binary or kubeconfig were missing; `None` if the writer was late, so that the agent took it for stopped.
fn uninstall_beside_a_writer(delay: Duration, by_stop: bool) -> Option<Duration> {
    let (node, mut agent) = ready();
    let reader = watch(&node, is_stranded);
    let (writer, written) = rechain(&node, delay, usize::MAX);
    // Both ways to uninstall.
    let status = if by_stop {
        agent.stop()
    } else {
        agent.kill();
        agent = node.start_args(&["uninstall"], &[]);
        agent.wait()
    };
    let log = agent.log();
    let said = "keeps being overwritten by another writer, which chains linkerd-cni again";
    assert_eq!(status, Some(log.contains(said).into()), "{log}");
    if !log.contains(said) {
        until("the writer chains the plugin again", || node.chained(LIST));
        let latest = writer.finish().latest;
        reader.finish();
        assert!(latest >= QUIET, "the latest write came after {latest:?}: {log}");
        return None;
    }
    assert!(log.contains(LIST), "{log}");
    // The agent may have ended between a write and its count.
    until("the writes are counted", || written.load(Ordering::Relaxed) >= 3);
    assert!(node.chained(LIST));
    assert!(!is_stranded(&node));
    writer.finish();
    let stranded = reader.finish();
    node.uninstall();
    Some(stranded)
}

#[test]
fn uninstall_that_leaves_the_plugin_reports_an_unreadable_saved_state() {
    let node = Arc::new(Node::with_calico());
    node.install();
    let (writer, _) = rechain(&node, Duration::from_millis(1), usize::MAX);
    let state = ".linkerd-cni-state";
    symlink(state, node.net(state)).unwrap();
    let log = node.uninstall_ends_with(1);
    writer.finish();
    assert!(log.contains("keeps being overwritten by another writer"), "{log}");
    assert!(log.contains(&format!("{state} cannot be read")), "{log}");
}

#[test]
fn uninstall_completes_once_another_program_stops_chaining_the_plugin() {
    let mut late = 0;
    let mut cases = vec![(1, 1), (20, 1), (1, 2), (50, 2), (300, 1), (300, 2)];
    while let Some((delay, times)) = cases.pop() {
        let node = Arc::new(Node::with_calico());
        let before = node.tree();
        let mut agent = node.start_ready();
        let reader = watch(&node, is_stranded);
        let (writer, written) = rechain(&node, Duration::from_millis(delay), times);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        // On a busy machine a write may come after the agent's last look, which proves nothing, or the
        // agent may have to wait for a processor.
        let latest = writer.finish().latest;
        let is_late = latest > QUIET || written.load(Ordering::Relaxed) < times;
        if !is_late {
            assert_eq!(node.tree(), before);
        }
        let longest = reader.finish();
        if is_late || longest >= PUT_BACK {
            late += 1;
            assert!(late < 20, "too busy a machine, or put back late: {longest:?}");
            cases.push((delay, times));
        }
    }
}

#[test]
fn uninstall_puts_renamed_files_back_at_once_if_a_conflist_names_the_plugin() {
    let (mut put_back, mut late) = (0, 0);
    for round in 0..12_u64 {
        let (node, mut agent) = ready();
        let chained = node.text(LIST);
        let reader = watch(&node, is_stranded);
        agent.signal(Signal::SIGTERM);
        until("the binary is taken away", || !node.bin("linkerd-cni").exists());
        thread::sleep(Duration::from_millis(round * 10));
        // Too late on a busy machine is as good as after the uninstall.
        if fs::read_dir(node.root().join("bin")).unwrap().count() == 1 {
            node.replace(&node.net(LIST), chained.as_bytes());
            // The agent may remove the binary again before this thread runs.
            until("the binary is back, or the agent has ended", || {
                node.bin("linkerd-cni").exists() || agent.has_ended()
            });
            put_back += 1;
        }
        assert_eq!(agent.wait(), Some(0), "{}", agent.log());
        let is_unseen = node.text(LIST) == chained;
        assert!(is_unseen || node.text(LIST) == CALICO);
        // On a busy machine the write may come after the agent's last look, which proves nothing, or the
        // agent may have to wait for a processor.
        if is_unseen || reader.finish() >= PUT_BACK {
            late += 1;
        }
    }
    assert!(put_back > 2 * late, "{put_back} times put back, {late} times too late");
}

#[test]
fn uninstall_waits_until_multus_drops_its_copy_of_the_plugin_entry() {
    // Multus generates such a config from the primary CNI's, some time after it changed.
    const MULTUS: &str = "00-multus.conf";
    for passes in [true, false] {
        let node = Node::with_calico();
        node.install();
        let chained = node.text(LIST);
        let multus = |list: &str| format!(r#"{{"type":"multus","delegates":[{list}]}}"#);
        node.write(MULTUS, &multus(&chained));
        let mut uninstall = node.start_args(&["uninstall"], &[]);
        if passes {
            until("the entry is gone", || node.text(LIST) == CALICO);
            thread::sleep(Duration::from_millis(900));
            assert!(node.bin("linkerd-cni").exists());
            node.replace(&node.net(MULTUS), multus(CALICO).as_bytes());
        }
        assert_eq!(uninstall.wait(), Some(i32::from(!passes)), "{}", uninstall.log());
        let log = uninstall.log();
        assert_eq!(node.bin("linkerd-cni").exists(), !passes, "{log}");
        assert_eq!(node.net("kubeconfig.json").exists(), !passes, "{log}");
        assert_eq!(log.contains("00-multus.conf names linkerd-cni"), !passes);
    }
}
