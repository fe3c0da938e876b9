//! The node agent: keeps the plugin, its kubeconfig and its place in the node's network
//! configuration right until it is told to stop. Then [`departure`] decides whether to
//! uninstall all three.
//!
//! [`run`] is a loop around one question: what does the host lack? [`reconcile`] answers
//! it from what is there and never from what happened; [`watch`] only says when to ask
//! again. What the node lacks (a directory, a token, a network) is waited for. Only a
//! faulty setting, which waiting does not cure, ends the agent.

pub mod api;
pub mod binaries;
pub mod contention;
pub mod credential;
pub mod handover;
pub mod platforms;
pub mod problem_log;
pub mod reconcile;
pub mod record;
pub mod records;
pub mod self_test;
pub mod settings;
pub mod status;
pub mod taint;
pub mod tally;
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
use problem_log::{Note, Notes};
use reconcile::{Pass, Reconciler};
use records::Records;
use self_test::Proof;
use settings::{Settings, Template};
use status::Status;
use uninstall::Outcome;
use uninstall::on_stop::Decision;
use watch::{Wake, Watch};

/// How soon to look again at what was just written.
const VERIFY: Duration = Duration::from_millis(2);
/// How soon to try again what went wrong: doubled from the first to the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// What somebody writes again and again is not looked at more often than this.
const FIGHT_REST: Duration = Duration::from_millis(100);

/// Why the agent ends, other than by being told to.
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
    Undo(Vec<String>),
    #[error(transparent)]
    Mode(#[from] settings::Error),
}

/// Runs the agent until SIGTERM or SIGINT, and then uninstalls, if there is proof that the
/// release or this node's part of it is uninstalled.
pub fn run(settings: Settings) -> Result<(), Error> {
    let mut watch = Watch::start().map_err(Error::Wait)?;
    let entry = entry(&settings)?;
    let mode = settings.mode()?;
    let settings = Arc::new(settings);
    let finds_kubeconfig = on_stop::finds_kubeconfig(&settings);
    let status = Arc::new(Status::default());
    let mut admin = Admin::Closed;
    let api = Api::start(&settings, watch.waker()).map_err(Error::Thread)?;
    let (own, shared) = (Arc::clone(&settings), Arc::clone(&status));
    let mut reconciler = Reconciler::new(own, mode, entry, shared, Arc::clone(&api));
    if settings.self_test {
        let proof = Proof::start(&settings, &status, watch.waker()).map_err(Error::Thread)?;
        reconciler.takes_proof(proof);
    }
    let records = match settings.plugin_socket {
        true => Some(Records::start(&settings, &status, &api).map_err(Error::Thread)?),
        false => None,
    };
    let mut notes = Notes::default();
    let mut retry = FIRST_RETRY;
    let mut longest = Duration::ZERO;
    info!("running installer");
    while watch.wait(longest).map_err(Error::Wait)? == Wake::Look {
        let announced = watch.renew(&watched(&settings));
        let mut pass = reconciler.pass();
        let opened = admin.open(&settings, &status);
        for (subject, result) in [("watch", announced), ("admin listener", opened)] {
            if let Err(why) = result {
                pass.problems.insert(subject.to_owned(), why);
            }
        }
        let changes = notes.changes(&pass.said());
        if !changes.is_empty() {
            retry = FIRST_RETRY;
        }
        changes.into_iter().for_each(say);
        longest = wait(&pass, &mut retry, settings.resync);
        if pass.fight && watch.rest(FIGHT_REST).map_err(Error::Wait)? == Wake::Stop {
            break;
        }
    }
    info!("told to stop");
    status.set_ready(Err("told to stop".into()));
    let is_alone = !finds_kubeconfig && !api.reached();
    if let Some(records) = records {
        records.stop();
    }
    reconciler.hand_over();
    match on_stop::decide(&settings, is_alone) {
        Decision::Leave(why) => {
            reconciler.hand_over();
            info!("leaving everything in place for the next agent: {why}");
        }
        Decision::Uninstall(why) => {
            info!("reason to uninstall: {why}");
            if remove(&settings, reconciler.lists())? == Outcome::Kept {
                reconciler.hand_over();
            }
        }
    }
    Ok(())
}

/// Takes off the node what an agent left that died for good, by what is found there.
pub fn uninstall(settings: &Settings) -> Result<(), Error> {
    remove(settings, &BTreeSet::new()).map(|_| ())
}

fn remove(settings: &Settings, lists: &BTreeSet<String>) -> Result<Outcome, Error> {
    info!("uninstalling");
    uninstall::undo(settings, lists).map_err(Error::Undo)
}

/// Our entry, from the source that was given.
fn entry(settings: &Settings) -> Result<Entry, Error> {
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
    Ok(naming_own_pods(entry, settings))
}

/// Adds how the plugin tells the agent's own pods, which must start while the credential
/// is dead: upstream's chart does not say it.
fn naming_own_pods(entry: Entry, settings: &Settings) -> Entry {
    let entry = match api::namespace(settings) {
        Some(namespace) => entry.with_setting("agent-namespace", &namespace),
        None => entry,
    };
    match &*settings.daemonset {
        settings::USUAL_DAEMONSET => entry,
        daemonset => entry.with_setting("agent-daemonset", daemonset),
    }
}

/// The directories in which a change matters.
fn watched(settings: &Settings) -> Vec<&Path> {
    let ca = settings.ca_file.as_deref().and_then(Path::parent);
    [
        &*settings.net_dir,
        &*settings.bin_dir,
        &*settings.service_account_dir,
    ]
    .into_iter()
    .chain(ca)
    .collect()
}

/// How long to wait before the next look.
fn wait(pass: &Pass, retry: &mut Duration, resync: Duration) -> Duration {
    if pass.wrote {
        return VERIFY;
    }
    let again = pass
        .again
        .map(|again| again.saturating_duration_since(Instant::now()));
    let resync = again.map_or(resync, |again| again.min(resync));
    if pass.problems.is_empty() {
        *retry = FIRST_RETRY;
        return resync;
    }
    let now = *retry;
    *retry = (now * 2).min(LAST_RETRY);
    now.min(resync)
}

fn say(note: Note) {
    match note {
        Note::Wrong { subject, why } => warn!("{subject}: {why}"),
        Note::RightAgain { subject } => info!("{subject}: no longer wrong"),
    }
}

/// The admin listener. Its port may be taken for a while, by the agent before this one.
enum Admin {
    Closed,
    Open,
}

impl Admin {
    fn open(&mut self, settings: &Settings, status: &Arc<Status>) -> Result<(), String> {
        let (Some(address), Admin::Closed) = (settings.admin, &self) else {
            return Ok(());
        };
        let (ready, metrics) = (Arc::clone(status), Arc::clone(status));
        let answers = admin::Handlers {
            ready: Box::new(move || ready.ready().map(|()| ready.remark())),
            metrics: Box::new(move || metrics.metrics()),
        };
        let opened = TcpListener::bind(address).and_then(|listener| {
            let address = listener.local_addr()?;
            admin::serve(listener, answers)?;
            Ok(address)
        });
        let address = opened.map_err(|error| format!("cannot listen on {address}: {error}"))?;
        info!("answering /live, /ready and /metrics on {address}");
        *self = Admin::Open;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_come_after_one_second_doubling_to_ten_and_never_later_than_the_resync() {
        let resync = Duration::from_secs(30);
        let mut retry = FIRST_RETRY;
        let mut bad = Pass::default();
        bad.problems.insert("binary".into(), "missing".into());
        let waits: Vec<u64> = (0..6)
            .map(|_| wait(&bad, &mut retry, resync).as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        assert_eq!(wait(&Pass::default(), &mut retry, resync), resync);
        assert_eq!(retry, FIRST_RETRY);
        let resync = Duration::from_millis(100);
        assert_eq!(wait(&bad, &mut retry, resync), resync);
    }
}
