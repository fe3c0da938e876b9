//! The node agent: installs the plugin binary, its kubeconfig and the plugin entry in the
//! network configs, and keeps them right until SIGTERM or SIGINT. Then [`on_stop`] decides
//! whether to uninstall all three.
//!
//! [`run`] repeats reconcile passes. A pass ([`reconcile`]) decides from the state of the
//! host, never from past events; [`watch`] only triggers it. The agent waits for what the
//! node does not have yet: a directory, a token, a network config. Only an invalid setting
//! ends the agent, because waiting does not correct a setting.
//!
//! The modules, in reading order:
//! - [`settings`]: environment variables and flags
//! - [`reconcile`]: one pass over binary, kubeconfig, network configs and self-test
//! - [`plugin_entry`]: the plugin entry, from the chart's template
//! - [`binaries`], [`credential`]: the plugin binary and the kubeconfig on the host
//! - [`upstream_kubeconfig`]: restores the kubeconfig of an upstream agent on the same node
//! - [`contention`]: detects other writers of the same files, and slows down against them
//! - `yielding`: lets the plugin entry of another agent on the node stand until that agent ends
//! - [`platforms`]: suggests the right directories for the node's platform
//! - [`self_test`]: runs the installed plugin against a scratch netns
//! - [`uninstall`]: removes everything from the host, if [`on_stop`] decides so on SIGTERM
//! - [`api`]: requests to the API server: tokens, Events, the startup taint
//! - [`record_socket`], [`plugin_counters`]: receive and count plugin records
//! - [`subject`], [`status`], [`problem_log`]: `/ready`, metrics and the log lines about problems
//! - [`admin_listener`]: opens the port for `/live`, `/ready` and `/metrics`
//! - [`watch`]: waits for changes, signals and timeouts

mod admin_listener;
pub mod api;
pub mod binaries;
pub mod contention;
pub mod credential;
pub mod platforms;
pub mod plugin_counters;
pub mod plugin_entry;
pub mod problem_log;
pub mod reconcile;
pub mod record_socket;
pub mod self_test;
pub mod settings;
pub mod status;
pub mod subject;
pub mod uninstall;
pub mod upstream_kubeconfig;
pub mod watch;
mod yielding;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tracing::{info, warn};

use crate::conflist::PLUGIN;
use admin_listener::AdminListener;
use api::Api;
use problem_log::{Change, ProblemLog};
use reconcile::{Pass, Reconciler};
use record_socket::RecordSocket;
use self_test::SelfTest;
use settings::Settings;
use status::Status;
use subject::Subject;
use uninstall::UninstallOutcome;
use uninstall::on_stop::{self, Decision};
use watch::{Wake, Watch};

/// Time between a write and the pass that verifies it.
const VERIFY_DELAY: Duration = Duration::from_millis(2);
/// Time until the next pass after one with a problem. Doubled with each such pass.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest time until the next pass after one with a problem.
const LAST_RETRY: Duration = Duration::from_secs(10);
/// Pause after a pass during contention, as every write of the other program triggers a pass.
const CONTENTION_PAUSE: Duration = Duration::from_millis(100);

/// Why the agent ends without a signal, or cannot uninstall.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot wait for signals: {0}")]
    Wait(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    PluginEntry(#[from] plugin_entry::Error),
    #[error("cannot uninstall cni: {}", .0.join("; "))]
    Uninstall(Vec<String>),
    #[error(transparent)]
    Settings(#[from] settings::Error),
}

/// Runs the agent until SIGTERM or SIGINT. Then uninstalls, if there is proof that the release
/// is uninstalled or that this node has left the DaemonSet's scope.
///
/// # Errors
/// If a setting is invalid, a thread or a signal cannot be set up, or the uninstall fails.
pub fn run(settings: Settings) -> Result<(), Error> {
    let mut watch = Watch::start().map_err(Error::Wait)?;
    let entry = plugin_entry::render(&settings)?;
    let mode = settings.mode()?;
    let settings = Arc::new(settings);
    let had_kubeconfig = on_stop::finds_kubeconfig(&settings);
    let status = Arc::new(Status::default());
    let api = Api::start(&settings, watch.waker()).map_err(Error::Thread)?;
    let (own, shared) = (Arc::clone(&settings), Arc::clone(&status));
    let mut reconciler = Reconciler::new(own, mode, entry, shared, Arc::clone(&api));
    if settings.self_test {
        let self_test =
            SelfTest::start(&settings, &status, watch.waker()).map_err(Error::Thread)?;
        reconciler.require_self_test(self_test);
    }
    let record_socket = match settings.plugin_socket {
        true => {
            let socket = RecordSocket::start(&settings, &status, &api, watch.waker());
            Some(socket.map_err(Error::Thread)?)
        }
        false => None,
    };
    if let Some(record_socket) = &record_socket {
        reconciler.yield_to_newer_agents(Arc::clone(record_socket));
    }
    info!("starting the agent");
    let signal = reconcile_until_signal(&mut watch, &mut reconciler, &settings, &status)?;
    info!("received {signal}");
    status.set_ready(Err(format!("received {signal}")));
    let offline_install = !had_kubeconfig && !api.reached();
    reconciler.restore_upstream_kubeconfig();
    let decision = match reconciler.newer_agent_runs() {
        true => Decision::LeaveInPlace("a newer agent runs on this node".into()),
        false => on_stop::decide(&settings, offline_install),
    };
    // The plugin keeps running while the agent decides, so its records are still logged.
    if let Some(record_socket) = record_socket {
        record_socket.stop();
    }
    match decision {
        Decision::LeaveInPlace(why) => {
            reconciler.restore_upstream_kubeconfig();
            info!("{PLUGIN} is left in place for the next agent: {why}");
        }
        Decision::Uninstall(why) => {
            info!("uninstalling: {why}");
            if remove(&settings, reconciler.chained_conflists())? == UninstallOutcome::LeftInPlace {
                reconciler.restore_upstream_kubeconfig();
            }
        }
    }
    Ok(())
}

/// Runs reconcile passes until SIGTERM or SIGINT, and returns that signal.
fn reconcile_until_signal(
    watch: &mut Watch,
    reconciler: &mut Reconciler,
    settings: &Settings,
    status: &Arc<Status>,
) -> Result<Signal, Error> {
    let mut admin_listener = AdminListener::default();
    let mut problem_log = ProblemLog::default();
    let mut retry = FIRST_RETRY;
    let mut timeout = Duration::ZERO;
    loop {
        if let Wake::Stop(signal) = watch.wait(timeout).map_err(Error::Wait)? {
            return Ok(signal);
        }
        let watching = watch.watch_dirs(&watched_dirs(settings));
        let mut pass = reconciler.pass();
        let opened = admin_listener.open(settings, status);
        for (subject, result) in [(Subject::Inotify, watching), (Subject::AdminListener, opened)] {
            if let Err(why) = result {
                pass.problems.insert(subject, why);
            }
        }
        let changes = problem_log.update(&pass.logged());
        if !changes.is_empty() {
            retry = FIRST_RETRY;
        }
        changes.into_iter().for_each(log_change);
        timeout = time_to_next_pass(&pass, &mut retry, settings.resync);
        if pass.contention
            && let Wake::Stop(signal) = watch.pause(CONTENTION_PAUSE).map_err(Error::Wait)?
        {
            return Ok(signal);
        }
    }
}

/// Removes everything that a dead agent left on this node. Decides from the files on the node
/// alone.
///
/// # Errors
/// Lists everything that could not be removed.
pub fn uninstall(settings: &Settings) -> Result<(), Error> {
    info!("uninstalling");
    remove(settings, &BTreeSet::new()).map(|_| ())
}

fn remove(
    settings: &Settings,
    chained_conflists: &BTreeSet<String>,
) -> Result<UninstallOutcome, Error> {
    uninstall::run(settings, chained_conflists).map_err(Error::Uninstall)
}

/// The directories whose changes trigger a reconcile pass.
fn watched_dirs(settings: &Settings) -> Vec<&Path> {
    let ca = settings.ca_file.as_deref().and_then(Path::parent);
    [&*settings.net_dir, &*settings.bin_dir, &*settings.service_account_dir]
        .into_iter()
        .chain(ca)
        .collect()
}

/// Returns the longest time until the next pass, and sets the `retry` time of the pass after
/// it.
fn time_to_next_pass(pass: &Pass, retry: &mut Duration, resync: Duration) -> Duration {
    if pass.wrote {
        return VERIFY_DELAY;
    }
    let next = pass.next.map(|next| next.saturating_duration_since(Instant::now()));
    let resync = next.map_or(resync, |next| next.min(resync));
    if pass.problems.is_empty() {
        *retry = FIRST_RETRY;
        return resync;
    }
    let now = *retry;
    *retry = (now * 2).min(LAST_RETRY);
    now.min(resync)
}

fn log_change(change: Change) {
    match change {
        Change::Problem { subject, why } => warn!("{subject}: {why}"),
        Change::Resolved { subject } => info!("{subject}: resolved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_time_doubles_from_one_to_ten_seconds_and_never_exceeds_the_resync() {
        let resync = Duration::from_secs(30);
        let mut retry = FIRST_RETRY;
        let mut bad = Pass::default();
        bad.problems.insert(Subject::Binary, "missing".into());
        let times: Vec<u64> =
            (0..6).map(|_| time_to_next_pass(&bad, &mut retry, resync).as_secs()).collect();
        assert_eq!(times, [1, 2, 4, 8, 10, 10]);
        assert_eq!(time_to_next_pass(&Pass::default(), &mut retry, resync), resync);
        assert_eq!(retry, FIRST_RETRY);
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, &mut retry, resync), resync);
    }
}
