//! Swaps the directory from which the container runtime runs plugins. The agent has to remove the
//! plugin entry, so that pods start again, and to chain the plugin again after the swap.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use rand::RngExt as _;
use testkit::OnDrop;
use testkit::cluster::active::{self, BIN_DIR, State};
use testkit::cluster::families::setting;
use testkit::cluster::{agent, node};

use crate::ledger::{self, Invariant};
use crate::load::unmeshed_starts;
use crate::outages::{self, Cause};
use crate::world::World;

const PLUGIN: &str = "linkerd-cni";
/// Directory in which the runtime looks for plugins during a swap.
const OTHER_DIR: &str = "/opt/linkerd-cni-soak";
/// Link to this directory, which replaces the runtime's link by a rename.
const NEW_LINK: &str = "/opt/linkerd-cni-soak-link";
/// The agent's record that it has removed the plugin entry.
const RECORD: &str = "/run/linkerd-cni/withdrawn";

/// Longest time until kubelet has restarted the agent. Kubelet's pause doubles with each restart.
const RESTARTED_WITHIN: Duration = Duration::from_secs(150);
/// Longest time until the next agent has withdrawn the plugin entry. The agent waits for two
/// failures of a pod, which kubelet starts again after some 10 s.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(60);
/// Longest time from the withdrawal until an unmeshed pod has started.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Longest time from the end of the swap until the plugin is chained.
const CHAINED_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What the runtime finds in the other directory. It finds all other plugins there.
#[derive(Clone, Copy)]
enum Found {
    NoPlugin,
    /// A plugin binary that the kernel does not start.
    BrokenPlugin,
}

/// Swaps the runtime's directory, and kills the agent while the conflist is rewritten. The next
/// agent adds the plugin entry. The runtime has not called the plugin since then, so the agent has
/// to withdraw the entry. A proven entry would stay, and pods would wait until the swap ends.
pub fn swap(world: &mut World) {
    let log_begin = world.node.kubelet_log().len();
    let found = if world.rng.random_bool(0.5) { Found::NoPlugin } else { Found::BrokenPlugin };
    let runtime_outage = outages::open(Cause::Runtime);
    let unchained = outages::open(Cause::Unchained);
    let conflist = active::path("").expect("there is a conflist");
    let agent = agent::agent();
    let restore = swap_link(found);
    let _ = kill(agent.pid, Signal::SIGKILL);
    node::replace(&conflist, "soak", &world.original, 0o644);
    let is_restarted =
        || testkit::pids().any(|pid| pid != agent.pid.as_raw() && agent::is_agent(pid));
    wait_for(Invariant::Recovery, RESTARTED_WITHIN, "the agent is restarted", is_restarted);
    let is_withdrawn = || Path::new(RECORD).exists() && active::state("") == State::Unchained;
    wait_for(Invariant::Recovery, WITHDRAWN_WITHIN, "the plugin entry is withdrawn", is_withdrawn);
    let before = unmeshed_starts();
    let has_started = || unmeshed_starts() > before;
    wait_for(Invariant::UnmeshedStart, STARTED_WITHIN, "an unmeshed pod starts", has_started);

    drop(restore);
    // The agent does not see a change of the runtime alone.
    let _ = fs::remove_file(RECORD);
    let begin = Instant::now();
    let is_chained = || active::state("") == State::Installed;
    wait_for(Invariant::Recovery, CHAINED_WITHIN, "the plugin is chained again", is_chained);
    world.wait_for_recovery(begin);
    drop(unchained);
    drop(runtime_outage);
    ledger::expect_failures(log_begin..world.node.kubelet_log().len());
}

/// Waits until `condition` is true. Records a violation if this takes longer than `limit`.
fn wait_for(
    invariant: Invariant,
    limit: Duration,
    description: &str,
    condition: impl Fn() -> bool,
) {
    let begin = Instant::now();
    while !condition() {
        if begin.elapsed() > limit {
            ledger::record_violation(invariant, format!("not within {limit:?}: {description}"));
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
    println!("         {:>4.1} s until {description}", begin.elapsed().as_secs_f64());
}

/// Lets the runtime's link lead to another directory until the returned value is dropped. Containers
/// do not see that: the agent's directory on the node stays the same.
fn swap_link(found: Found) -> OnDrop<impl FnMut()> {
    let link = PathBuf::from(setting("CLUSTER_BIN_DIR"));
    assert!(link.is_symlink(), "{} is no link: run scripts/maintainers/soak", link.display());
    make_other_dir(found);
    set_link(&link, OTHER_DIR);
    OnDrop(move || {
        set_link(&link, BIN_DIR);
        let _ = fs::remove_dir_all(OTHER_DIR);
    })
}

fn make_other_dir(found: Found) {
    let other_dir = Path::new(OTHER_DIR);
    fs::create_dir(other_dir).expect("the other directory is missing");
    for plugin in fs::read_dir(BIN_DIR).expect("the bin dir can be read").flatten() {
        if plugin.file_name() != PLUGIN {
            symlink(plugin.path(), other_dir.join(plugin.file_name())).expect("a new link");
        }
    }
    match found {
        Found::NoPlugin => println!("         the other directory has no {PLUGIN}"),
        Found::BrokenPlugin => {
            println!("         the other directory has a {PLUGIN} that is no program");
            testkit::write_program(other_dir.join(PLUGIN), "no program");
        }
    }
}

/// Replaces the link at once. An error is printed, because this also runs when a value is dropped.
fn set_link(link: &Path, target: &str) {
    let _ = fs::remove_file(NEW_LINK);
    let result = symlink(target, NEW_LINK).and_then(|()| fs::rename(NEW_LINK, link));
    if let Err(error) = result {
        println!("         {} does not lead to {target}: {error}", link.display());
    }
}
