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
//! - [`binaries`], [`credential`]: the programs and the kubeconfig on the host
//! - [`handover`]: restores the kubeconfig of an upstream agent on the same node
//! - [`contention`]: detects and slows down writes against another writer
//! - [`platforms`]: suggests the right directories for the node's platform
//! - [`self_test`]: runs the installed plugin against a scratch netns
//! - [`uninstall`]: removes everything from the host, if [`on_stop`] decides so
//! - [`api`]: requests to the API server: tokens, Events, the startup taint ([`taint`])
//! - [`records`], [`plugin_counters`]: receive and count the plugin's records
//! - [`status`], [`problem_log`]: `/ready`, metrics and the log lines about problems
//! - [`watch`]: waits for changes, signals and timeouts

pub mod api;
pub mod binaries;
pub mod contention;
pub mod credential;
pub mod handover;
pub mod platforms;
pub mod plugin_counters;
pub mod problem_log;
pub mod reconcile;
pub mod records;
pub mod self_test;
pub mod settings;
pub mod status;
pub mod taint;
pub mod uninstall;
pub mod watch;

use crate::conflist;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uninstall::on_stop;

use tracing::{info, warn};

use crate::admin;
use crate::conflist::Entry;
use api::Api;
use problem_log::{Change, ProblemLog};
use reconcile::{Pass, Reconciler};
use records::Records;
use self_test::SelfTest;
use settings::{Settings, Template};
use status::Status;
use uninstall::Outcome;
use uninstall::on_stop::Decision;
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
    #[error("there is no plugin configuration: set CNI_NETWORK_CONFIG or CNI_NETWORK_CONFIG_FILE")]
    NoTemplate,
    #[error("cannot read the plugin configuration {}: {source}", path.display())]
    ReadTemplate {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the plugin configuration in {origin} {source}")]
    Template {
        origin: String,
        #[source]
        source: conflist::Error,
    },
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
    let entry = plugin_entry(&settings)?;
    let mode = settings.mode()?;
    let settings = Arc::new(settings);
    let had_kubeconfig = on_stop::finds_kubeconfig(&settings);
    let status = Arc::new(Status::default());
    let mut admin = AdminListener::Closed;
    let api = Api::start(&settings, watch.waker()).map_err(Error::Thread)?;
    let (own, shared) = (Arc::clone(&settings), Arc::clone(&status));
    let mut reconciler = Reconciler::new(own, mode, entry, shared, Arc::clone(&api));
    if settings.self_test {
        let self_test =
            SelfTest::start(&settings, &status, watch.waker()).map_err(Error::Thread)?;
        reconciler.require_self_test(self_test);
    }
    let records = match settings.plugin_socket {
        true => Some(Records::start(&settings, &status, &api).map_err(Error::Thread)?),
        false => None,
    };
    let mut problem_log = ProblemLog::default();
    let mut retry = FIRST_RETRY;
    let mut timeout = Duration::ZERO;
    info!("running installer");
    while watch.wait(timeout).map_err(Error::Wait)? == Wake::Reconcile {
        let watching = watch.watch_dirs(&watched_dirs(&settings));
        let mut pass = reconciler.pass();
        let opened = admin.open(&settings, &status);
        for (subject, result) in [("watch", watching), ("admin listener", opened)] {
            if let Err(why) = result {
                pass.problems.insert(subject.to_owned(), why);
            }
        }
        let changes = problem_log.update(&pass.logged());
        if !changes.is_empty() {
            retry = FIRST_RETRY;
        }
        changes.into_iter().for_each(log_change);
        timeout = time_to_next_pass(&pass, &mut retry, settings.resync);
        if pass.contention && watch.pause(CONTENTION_PAUSE).map_err(Error::Wait)? == Wake::Stop {
            break;
        }
    }
    info!("told to stop");
    status.set_ready(Err("told to stop".into()));
    let is_alone = !had_kubeconfig && !api.reached();
    reconciler.restore_upstream_kubeconfig();
    let decision = on_stop::decide(&settings, is_alone);
    // The plugin goes on running while the agent asks, so its records are still logged.
    if let Some(records) = records {
        records.stop();
    }
    match decision {
        Decision::Leave(why) => {
            reconciler.restore_upstream_kubeconfig();
            info!("leaving everything in place for the next agent: {why}");
        }
        Decision::Uninstall(why) => {
            info!("reason to uninstall: {why}");
            if remove(&settings, reconciler.chained_lists())? == Outcome::Kept {
                reconciler.restore_upstream_kubeconfig();
            }
        }
    }
    Ok(())
}

/// Removes everything that a dead agent left on this node. Decides from the files on the node
/// alone.
///
/// # Errors
/// Lists everything that could not be removed.
pub fn uninstall(settings: &Settings) -> Result<(), Error> {
    remove(settings, &BTreeSet::new()).map(|_| ())
}

fn remove(settings: &Settings, chained_lists: &BTreeSet<String>) -> Result<Outcome, Error> {
    info!("uninstalling");
    uninstall::run(settings, chained_lists).map_err(Error::Uninstall)
}

/// Reads the plugin entry from the environment variable or the file that the settings name.
fn plugin_entry(settings: &Settings) -> Result<Entry, Error> {
    let (text, origin) = match &settings.template {
        Template::Text(text) => (text.clone(), "CNI_NETWORK_CONFIG".to_owned()),
        Template::File(path) => match fs::read_to_string(path) {
            Ok(text) => (text, path.display().to_string()),
            Err(source) => {
                let path = path.clone();
                return Err(Error::ReadTemplate { path, source });
            }
        },
        Template::None => return Err(Error::NoTemplate),
    };
    let entry = Entry::new(&text, &settings.kubeconfig_on_host)
        .map_err(|source| Error::Template { origin, source })?;
    Ok(with_agent_identity(entry, settings))
}

/// Adds the agent's namespace and DaemonSet to `entry`. The plugin recognizes the agent's own
/// pods by them and never redirects them: the agent must be able to start while the plugin's
/// credential is invalid. The template of upstream's chart has neither.
fn with_agent_identity(entry: Entry, settings: &Settings) -> Entry {
    let entry = match api::namespace(settings) {
        Some(namespace) => entry.with_setting("agent-namespace", &namespace),
        None => entry,
    };
    match &*settings.daemonset {
        settings::DEFAULT_DAEMONSET => entry,
        daemonset => entry.with_setting("agent-daemonset", daemonset),
    }
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
        Change::Resolved { subject } => info!("{subject}: no longer wrong"),
    }
}

/// The admin listener. Opening it is retried in each pass, since the agent that ran before
/// this one may still hold the port.
enum AdminListener {
    Closed,
    Open,
}

impl AdminListener {
    /// Opens the listener if an address is set and it is not open yet.
    fn open(&mut self, settings: &Settings, status: &Arc<Status>) -> Result<(), String> {
        let (Some(address), AdminListener::Closed) = (settings.admin, &self) else {
            return Ok(());
        };
        let (ready, metrics) = (Arc::clone(status), Arc::clone(status));
        let answers = admin::Handlers {
            ready: Box::new(move || ready.ready().map(|()| ready.ready_note())),
            metrics: Box::new(move || metrics.metrics()),
        };
        let opened = TcpListener::bind(address).and_then(|listener| {
            let address = listener.local_addr()?;
            admin::serve(listener, answers)?;
            Ok(address)
        });
        let address = opened.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        info!("answering /live, /ready and /metrics on {address}");
        *self = AdminListener::Open;
        Ok(())
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
        bad.problems.insert("binary".into(), "missing".into());
        let times: Vec<u64> =
            (0..6).map(|_| time_to_next_pass(&bad, &mut retry, resync).as_secs()).collect();
        assert_eq!(times, [1, 2, 4, 8, 10, 10]);
        assert_eq!(time_to_next_pass(&Pass::default(), &mut retry, resync), resync);
        assert_eq!(retry, FIRST_RETRY);
        let resync = Duration::from_millis(100);
        assert_eq!(time_to_next_pass(&bad, &mut retry, resync), resync);
    }
}
