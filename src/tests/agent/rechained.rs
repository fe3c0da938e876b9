//! Tests an uninstall while another program, such as an agent of another release, chains the plugin
//! again. If a network config names the plugin, its files must be on the node.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::node::{CALICO, LIST, Node, PLUGIN};
use crate::repeated::Repeated;
use crate::until::until;

/// Longest time in which the agent must restore the files that a config names again. Usually this
/// takes less than a millisecond, and less than 50 ms on a busy machine.
const RESTORE_LIMIT: Duration = Duration::from_millis(500);

/// Shortest time that an uninstalling agent waits for other programs to chain the plugin again.
const QUIET: Duration = Duration::from_millis(400);

/// Times at which the plugin was chained again.
struct Writes {
    /// Longest time between a removal and the write that followed.
    latest: Duration,
    /// When the entry was last seen.
    last_chained: Instant,
}

/// Chains the plugin again `delay` after each removal, at most `times` times, and counts the
/// writes. Like upstream's agent, it does not write the binary and the kubeconfig again.
fn rechain(
    node: &Arc<Node>,
    delay: Duration,
    times: usize,
) -> (Repeated<Writes>, Arc<AtomicUsize>) {
    let (node, written) = (Arc::clone(node), Arc::<AtomicUsize>::default());
    let (chained, count) = (node.text(LIST), Arc::clone(&written));
    let writes = Writes { latest: Duration::ZERO, last_chained: Instant::now() };
    let writer = Repeated::start(Duration::from_micros(200), writes, move |writes| {
        let checked = Instant::now();
        if count.load(Ordering::Relaxed) < times && node.text(LIST) == CALICO {
            thread::sleep(delay);
            node.replace(&node.net(LIST), chained.as_bytes());
            writes.latest = writes.latest.max(writes.last_chained.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
        }
        writes.last_chained = checked;
    });
    (writer, written)
}

/// The longest time for which the node was stranded, and the time since when it is stranded now.
type Stranded = (Duration, Option<Instant>);

/// Checks every 500 µs whether the node is stranded, and measures the longest time.
fn measure_stranded(node: &Arc<Node>) -> Repeated<Stranded> {
    let (node, stranded) = (Arc::clone(node), (Duration::ZERO, None));
    Repeated::start(Duration::from_micros(500), stranded, move |(longest, since)| {
        if is_stranded(&node) {
            *longest = (*longest).max(since.get_or_insert_with(Instant::now).elapsed());
        } else {
            *since = None;
        }
    })
}

/// Returns whether a config names the plugin while binary or kubeconfig are missing.
fn is_stranded(node: &Node) -> bool {
    let text = node.text(LIST);
    let length = |path| fs::metadata(path).map_or(0, |file| file.len());
    let are_complete = || {
        length(node.bin("linkerd-cni")) == PLUGIN.len() as u64
            && length(node.net("kubeconfig.json")) > 0
    };
    text.contains("linkerd-cni") && !are_complete() && node.text(LIST) == text
}

/// Number of attempts with each delay. On a busy machine, the writer of the test or the agent may
/// get no processor time for too long.
const ATTEMPTS: usize = 5;

#[test]
fn uninstall_leaves_plugin_and_kubeconfig_while_another_program_keeps_chaining() {
    for (number, delay) in [1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50].into_iter().enumerate() {
        let delay = Duration::from_millis(delay);
        let uninstall = || uninstall_beside_a_writer(delay, number % 2 == 0);
        let is_quick =
            (0..ATTEMPTS).any(|_| uninstall().is_some_and(|stranded| stranded < RESTORE_LIMIT));
        assert!(is_quick, "the files are not restored in time, delay {delay:?}");
    }
}

/// Uninstalls while another program chains the plugin again `delay` after each removal. Returns the
/// longest time for which the node was stranded. Returns `None` if the writer was so late that the
/// agent completed the uninstall.
fn uninstall_beside_a_writer(delay: Duration, by_stop: bool) -> Option<Duration> {
    let node = Arc::new(Node::uninstalling_with_calico());
    let mut agent = node.start_ready();
    let reader = measure_stranded(&node);
    let (writer, written) = rechain(&node, delay, usize::MAX);
    let status = if by_stop {
        agent.stop()
    } else {
        agent.kill();
        agent = node.start_args(&["uninstall"], &[]);
        agent.wait()
    };
    let log = agent.log();
    let problem = "keeps being overwritten by another writer, which chains linkerd-cni again";
    assert_eq!(status, Some(log.contains(problem).into()), "{log}");
    if !log.contains(problem) {
        until("the writer chains the plugin again", || node.chained(LIST));
        let latest = writer.finish().latest;
        reader.finish();
        assert!(latest >= QUIET, "the latest write came after {latest:?}: {log}");
        return None;
    }
    assert!(log.contains(LIST), "{log}");
    // The agent may exit after the writer has written and before it has counted the write.
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
    // Delays in ms and numbers of writes. The writes come before the agent renames the files, or
    // while it waits with renamed files.
    let mut cases = vec![(1, 1), (20, 1), (1, 2), (50, 2), (100, 1), (200, 1), (300, 1), (300, 2)];
    while let Some((delay, times)) = cases.pop() {
        let node = Arc::new(Node::uninstalling_with_calico());
        let before = node.tree();
        let mut agent = node.start_ready();
        let reader = measure_stranded(&node);
        let (writer, written) = rechain(&node, Duration::from_millis(delay), times);
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        // Repeat the case if the machine was too busy: the last write came after the agent's last
        // check, or the agent got no processor time.
        let latest = writer.finish().latest;
        let is_late = latest > QUIET || written.load(Ordering::Relaxed) < times;
        if !is_late {
            assert_eq!(node.tree(), before);
        }
        let longest = reader.finish().0;
        if is_late || longest >= RESTORE_LIMIT {
            late += 1;
            assert!(late < 20, "the machine is too busy, or restores are late: {longest:?}");
            cases.push((delay, times));
        }
    }
}

#[test]
fn uninstall_waits_until_multus_drops_its_copy_of_the_plugin_entry() {
    // Multus generates this config from the one of the primary CNI, some time after a change.
    const MULTUS: &str = "00-multus.conf";
    let node = Node::with_calico();
    node.install();
    let multus = |list: &str| format!(r#"{{"type":"multus","delegates":[{list}]}}"#);
    node.write(MULTUS, &multus(&node.text(LIST)));
    let mut uninstall = node.start_args(&["uninstall"], &[]);
    until("the entry is removed", || node.text(LIST) == CALICO);
    thread::sleep(Duration::from_millis(900));
    assert!(node.bin("linkerd-cni").exists());
    node.replace(&node.net(MULTUS), multus(CALICO).as_bytes());
    assert_eq!(uninstall.wait(), Some(0), "{}", uninstall.log());
    assert!(node.is_uninstalled());
}

/// The other writer, such as an agent of another release, still uses the files. So there is no
/// failure to report.
#[test]
fn uninstall_beside_another_writer_leaves_no_report_for_the_next_agent() {
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
