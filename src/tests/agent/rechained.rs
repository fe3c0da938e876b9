//! Another program that chains the plugin again while the agent uninstalls, as an agent of
//! another release does. Whatever a network config names must be on the node.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::node::{CALICO, LIST, Node, PLUGIN};
use crate::repeated::Repeated;
use crate::until::until;

/// Longest time until the agent has put back the files that a config names again. It is below a
/// millisecond where a processor is free, and below 50 on one that is busy.
const PUT_BACK: Duration = Duration::from_millis(500);

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

/// The longest time for which the node was in some state, and since when it is.
type Longest = (Duration, Option<Instant>);

/// Looks at the node about every millisecond, for how long `is_bad`.
fn watch(node: &Arc<Node>, is_bad: fn(&Node) -> bool) -> Repeated<Longest> {
    let (node, longest) = (Arc::clone(node), (Duration::ZERO, None));
    Repeated::start(Duration::from_micros(500), longest, move |(longest, since)| {
        match is_bad(&node) {
            true => *longest = (*longest).max(since.get_or_insert_with(Instant::now).elapsed()),
            false => *since = None,
        }
    })
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

/// Rounds with the same delay in which the test's own writer or the agent may get no processor time
/// for so long.
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

/// Uninstalls while another program chains the plugin again `delay` after each removal. Returns how
/// long a config named the plugin while binary or kubeconfig were missing; `None` if the writer was
/// late, so that the agent took it for stopped.
fn uninstall_beside_a_writer(delay: Duration, by_stop: bool) -> Option<Duration> {
    let node = Arc::new(Node::uninstalling_with_calico());
    let mut agent = node.start_ready();
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
    let stranded = reader.finish().0;
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
    // Before the agent renames the files, and while it waits with renamed files.
    let mut cases = vec![(1, 1), (20, 1), (1, 2), (50, 2), (100, 1), (200, 1), (300, 1), (300, 2)];
    while let Some((delay, times)) = cases.pop() {
        let node = Arc::new(Node::uninstalling_with_calico());
        let before = node.tree();
        let mut agent = node.start_ready();
        let reader = watch(&node, is_stranded);
        let (writer, written) = rechain(&node, Duration::from_millis(delay), times);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        // On a busy machine a write may come after the agent's last look, which proves nothing, or
        // the agent may have to wait for a processor.
        let latest = writer.finish().latest;
        let is_late = latest > QUIET || written.load(Ordering::Relaxed) < times;
        if !is_late {
            assert_eq!(node.tree(), before);
        }
        let longest = reader.finish().0;
        if is_late || longest >= PUT_BACK {
            late += 1;
            assert!(late < 20, "too busy a machine, or put back late: {longest:?}");
            cases.push((delay, times));
        }
    }
}

#[test]
fn uninstall_waits_until_multus_drops_its_copy_of_the_plugin_entry() {
    // Multus generates such a config from the primary CNI's, some time after it changed.
    const MULTUS: &str = "00-multus.conf";
    let node = Node::with_calico();
    node.install();
    let multus = |list: &str| format!(r#"{{"type":"multus","delegates":[{list}]}}"#);
    node.write(MULTUS, &multus(&node.text(LIST)));
    let mut uninstall = node.start_args(&["uninstall"], &[]);
    until("the entry is gone", || node.text(LIST) == CALICO);
    thread::sleep(Duration::from_millis(900));
    assert!(node.bin("linkerd-cni").exists());
    node.replace(&node.net(MULTUS), multus(CALICO).as_bytes());
    assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
    assert!(node.is_uninstalled());
}

/// The files are in use, such as by the agent of another release.
#[test]
fn an_uninstall_beside_another_writer_leaves_no_report_for_the_next_agent() {
    let mut node = Node::with_calico();
    let run_dir = node.root().join("run");
    fs::create_dir(&run_dir).unwrap();
    node.vars.push(("LINKERD_CNI_RUN_DIR", run_dir.display().to_string()));
    let node = Arc::new(node);
    node.install();
    let (writer, _) = rechain(&node, Duration::from_millis(1), usize::MAX);
    let log = node.uninstall_ends_with(1);
    writer.finish();
    assert!(log.contains("keeps being overwritten by another writer"), "{log}");
    assert!(!run_dir.join("uninstall-failed").exists());
}
