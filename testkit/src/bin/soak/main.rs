//! Soak: pods come and go on a real node that is disturbed in random order, and promises are
//! checked all the time. `scripts/maintainers/soak` creates the node and runs this program;
//! docs/maintainers/soak.md shows the results.

mod actions;
mod api;
mod credential;
mod ledger;
mod load;
mod outages;
mod pod;
mod reader;
mod resources;
mod running;
mod runtime_dir;
mod seeded;
mod world;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use testkit::cluster::helm::Helm;
use testkit::cluster::node::{self, Files, Node};
use testkit::cluster::{active, pods};

use actions::{ACTIONS, Action};
use ledger::Invariant;
use outages::Cause;
use seeded::Break;
use world::World;

/// Values of the chart. The repair controller has to repair the pods that start while another
/// writer has removed the plugin entry.
const VALUES: &str = "repairController.enabled=true,repairController.mode=in-place,\
                      repairController.auditIntervalSeconds=10";
/// Longest time until the node has the same files as before the installation.
const UNINSTALL_TIMEOUT: Duration = Duration::from_secs(90);

/// Disturbs the cluster of `KUBECONFIG`, whose only node is this machine, and checks the promises.
#[derive(Parser)]
struct Options {
    /// Seed of the order of the actions.
    #[arg(long)]
    seed: u64,
    /// Time in which actions begin.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// File to write the results to, as JSON.
    #[arg(long)]
    json: PathBuf,
    /// Perform only these actions, by a part of their names.
    #[arg(long = "only")]
    only: Vec<String>,
    /// Seed this bug instead of performing actions: the run has to fail.
    #[arg(long = "break", value_enum)]
    seeded: Option<Break>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let node = Node::exclusive();
    let before = node.files();
    let original = fs::read_to_string(active::path("").expect("there is a conflist")).unwrap();
    pods::create_namespace(load::NAMESPACE);

    let helm = Helm::new();
    ledger::begin_action("helm install");
    helm.run("install", &["--set", VALUES]);
    // A second revision, so that a rollback is possible from the start.
    helm.run("upgrade", &["--reuse-values", "--set", "logLevel=debug"]);

    let mut rng = StdRng::seed_from_u64(options.seed);
    let reader = reader::start();
    let sampler = resources::start();
    let load = load::start(StdRng::from_rng(&mut rng), options.seeded);
    let mut world = World { helm, api: api::Api::new(), rng, original, node };
    let duration = Duration::from_secs_f64(options.minutes * 60.0);
    match options.seeded {
        Some(bug) => seeded::run(bug, duration),
        None => perform_actions(&mut world, &options, duration),
    }
    // Later violations belong to no action.
    ledger::begin_action("nothing");
    thread::sleep(Duration::from_secs(5));
    let mut pods = load.finish().end();
    let resources = resources::growths(&sampler.finish());
    uninstall(&world, &before);
    let reads = reader.finish().reads;
    // Failed ADDs of meshed pods are no violations, because kubelet has retried them.
    pods["failed_tries"] = ledger::check_kubelet_log(&world.node).into();

    let ledger = ledger::lock();
    let report = json!({
        "seed": options.seed, "minutes": options.minutes, "versions": node::versions(),
        "reads": reads, "pods": pods, "actions": ledger.rows, "violations": ledger.violations,
        "resources": resources,
    });
    let text = serde_json::to_string_pretty(&report).unwrap();
    fs::write(&options.json, text).expect("the file for the results can be written");
    if ledger.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Performs the actions in rounds, each action once in a round, until `duration` has passed. In two
/// of three rounds the agent's process survives, so that a growth of its use of resources is seen.
fn perform_actions(world: &mut World, options: &Options, duration: Duration) {
    let begin = Instant::now();
    for round in 0.. {
        let may_end_agent = round % 3 == 0;
        let mut actions = ACTIONS.to_vec();
        actions.retain(|action| {
            is_selected(action, &options.only) && (may_end_agent || action.keeps_agent)
        });
        assert!(round > 0 || !actions.is_empty(), "no action has such a name");
        actions.shuffle(&mut world.rng);
        for action in actions {
            if begin.elapsed() > duration {
                return;
            }
            perform(action, world);
            thread::sleep(Duration::from_millis(world.rng.random_range(1000..5000)));
        }
    }
}

/// Whether the action's name contains one of these parts. Without parts, all actions are selected.
fn is_selected(action: &Action, parts: &[String]) -> bool {
    parts.is_empty() || parts.iter().any(|part| action.name.contains(part))
}

/// Performs an action. A panic is recorded as a violation: helm, kubectl or a restarted component
/// has failed, so the action has not done its work.
fn perform(action: Action, world: &mut World) {
    let result = catch_unwind(AssertUnwindSafe(|| action.perform(world)));
    if let Err(panic) = result {
        ledger::record_violation(Invariant::Recovery, testkit::panic_message(&*panic));
    }
}

/// Uninstalls the release. Checks that the node then has the same files as `before`.
fn uninstall(world: &World, before: &Files) {
    // The missing entry is no violation, because the agent removes the plugin entry first.
    let _unchained = outages::open(Cause::Unchained);
    ledger::begin_action("helm uninstall");
    let begin = Instant::now();
    world.helm.uninstall();
    while world.node.files() != *before {
        if begin.elapsed() > UNINSTALL_TIMEOUT {
            let names: Vec<_> = world.node.files().into_keys().collect();
            let description = format!("the node has other files than before: {names:?}");
            ledger::record_violation(Invariant::Uninstall, description);
            return;
        }
        thread::sleep(Duration::from_millis(200));
    }
    ledger::record_recovery(begin.elapsed());
}
