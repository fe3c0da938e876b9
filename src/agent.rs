//! The node agent: installs the plugin binary, its kubeconfig and the plugin entry in the network
//! configs, and keeps them correct until SIGTERM or SIGINT. Then [`stop`] decides whether to
//! uninstall all three.
//!
//! [`main_loop`] repeats reconcile passes. A pass ([`reconcile`]) decides from the state of the
//! host, never from past events; [`file_watch`] only triggers the pass. If the node does not have a
//! directory, a token or a network config yet, the agent waits. The agent exits without a signal
//! only if a setting or the plugin entry template is invalid, or if a thread or the signal handling
//! cannot be set up.
//!
//! Read [`settings`] and [`reconcile`] first, then [`yielding`], [`self_test`], [`runtime_proof`],
//! [`api_thread`] and [`stop`].

pub mod agent_metrics;
pub mod api_history;
pub mod api_thread;
pub mod file_watch;
pub mod identity;
mod main_loop;
pub mod own_pod;
pub mod pods;
pub mod readiness;
pub mod reconcile;
pub mod record_socket;
pub mod runtime_proof;
pub mod self_test;
pub mod settings;
pub mod status_body;
pub mod stop;
pub mod subject;
pub mod yielding;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::conflist::PLUGIN;
use crate::kube::event::{EventContent, EventType};
use crate::node::failed_uninstall::FailedUninstall;
use crate::node::{Mounts, NodeSettings, failed_uninstall, uninstall};
use api_thread::ApiHandle;
use api_thread::event_queue::Event;
use file_watch::FileWatch;
use main_loop::MainLoop;
use readiness::Status;
use reconcile::Reconciler;
use record_socket::RecordSocket;
use self_test::SelfTest;
use settings::Settings;
use stop::{UninstallDecision, Verdict};

/// Longest time for posting the Event about a failed uninstall, after which the agent ends.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(4);

/// Why the agent ends without a signal, or cannot uninstall.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot wait for signals: {0}")]
    Wait(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("{0}")]
    PluginEntry(String),
    #[error("cannot uninstall linkerd-cni: {}", .0.join("; "))]
    Uninstall(Vec<String>),
}

/// Runs the agent until SIGTERM or SIGINT. Then uninstalls if [`stop`] decides so.
pub fn run(settings: Settings) -> Result<(), Error> {
    let watch = FileWatch::start().map_err(Error::Wait)?;
    let entry = settings.plugin_entry().map_err(Error::PluginEntry)?;
    let settings = Arc::new(settings);
    let status = Arc::new(Status::new(settings.resync));
    let api = ApiHandle::start(&settings, watch.waker.clone()).map_err(Error::Thread)?;
    // The port is opened before the first access to the node's files, so that the agent serves
    // `/ready` and `/live` even if that access hangs. An error is ignored here, because the first
    // pass tries to open the port again, and reports the error.
    let _ = status.serve(settings.admin_address);
    status.state().running_since = Some(Instant::now());
    report_failed_uninstall(&settings, &api);
    let mut self_test = None;
    if settings.self_test {
        self_test = Some(SelfTest::new(&settings, &status, watch.waker.clone()));
    }
    let record_socket = RecordSocket::start(&settings, &status, &api, watch.waker.clone())
        .map_err(Error::Thread)?;
    let stop_publishing =
        pods::start(&settings, &status, &api, &record_socket, watch.waker.clone())
            .map_err(Error::Thread)?;
    let reconciler = Reconciler::new(settings, entry, status, api, self_test, record_socket);
    let mut main_loop = MainLoop::new(reconciler, watch);
    info!("starting the agent");
    let signal = main_loop.run_until_signal()?;
    info!("received {signal}");
    main_loop.reconciler.status.state().stopped_by = Some(signal);
    end(&mut main_loop, &stop_publishing)
}

/// Reports that the last uninstall on this node failed, if it did. It left files, which this agent
/// adopts.
fn report_failed_uninstall(settings: &Settings, api: &ApiHandle) {
    let Some(FailedUninstall { date, why, record }) = failed_uninstall::read(&settings.node) else {
        return;
    };
    warn!("the last uninstall on this node failed at {date}, and left files behind: {why}");
    let content = EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIUninstallFailed",
        action: "Installing",
        note: format!(
            "The last uninstall on this node failed at {date}. The files that it left are in use \
             again: {why}"
        ),
    };
    api.report_event(Event { record: Some(record), ..Event::on_node(content) });
}

/// Ends the agent: uninstalls, or leaves the plugin in place for the next agent.
fn end(main_loop: &mut MainLoop, stop_publishing: &AtomicBool) -> Result<(), Error> {
    let reconciler = &main_loop.reconciler;
    let mut verdict = None;
    if reconciler.is_installed() || reconciler.record_socket.newer_agent_runs() {
        verdict = decide(main_loop)?;
    }
    let reconciler = &main_loop.reconciler;
    match verdict {
        None => {
            end_on_empty_node(reconciler, stop_publishing);
            Ok(())
        }
        Some(Verdict::LeaveInPlace(why) | Verdict::AskAgain(why)) => {
            leave_in_place(reconciler, &why);
            Ok(())
        }
        Some(Verdict::Uninstall(why)) => end_with_uninstall(reconciler, stop_publishing, &why),
    }
}

/// Ends the agent on a node where nothing is installed.
fn end_on_empty_node(reconciler: &Reconciler, stop_publishing: &AtomicBool) {
    info!("nothing is installed on this node");
    reconciler.record_socket.stop();
    stop_publishing.store(true, Ordering::Relaxed);
    pods::clear_copy(&reconciler.settings);
}

/// Ends the agent, and leaves the plugin in place for the next agent, for the reason `why`.
fn leave_in_place(reconciler: &Reconciler, why: &str) {
    // The socket is closed only now, because runtimes called the plugin while the agent was
    // deciding, and the records of these calls had to be logged.
    reconciler.record_socket.stop();
    reconciler.restore_upstream_kubeconfig();
    info!("{PLUGIN} is left in place for the next agent: {why}");
}

/// Ends the agent with an uninstall, for the reason `why`. Reports a failure in an Event.
fn end_with_uninstall(
    reconciler: &Reconciler,
    stop_publishing: &AtomicBool,
    why: &str,
) -> Result<(), Error> {
    info!("uninstalling: {why}");
    stop_publishing.store(true, Ordering::Relaxed);
    let result = uninstall_and_record(&reconciler.settings, &reconciler.mounts);
    // An older agent may be waiting for this one to end, and uninstalls once this socket is gone.
    // So the socket stays until this uninstall is over.
    reconciler.record_socket.stop();
    if let Err(error) = &result {
        // Perhaps an upstream agent chained its plugin again after each removal. That plugin needs
        // the kubeconfig of the upstream agent.
        reconciler.restore_upstream_kubeconfig();
        let event = failed_uninstall_event(error);
        reconciler.api.report_failed_uninstall(event, LAST_EVENT_TIMEOUT);
    }
    result
}

/// Waits until there is proof for or against an uninstall, or until the time to decide is over.
/// Keeps reconciling meanwhile, because another program may remove the plugin entry. Does not
/// reconcile
/// - if an upstream agent chains the plugin, because the entry and the kubeconfig of that agent
///   must stay, or
/// - once a newer agent was seen, because that agent reconciles. If it has ended, it may be
///   uninstalling, or it may start again.
///
/// Returns `None` if a newer agent has uninstalled meanwhile.
fn decide(main_loop: &mut MainLoop) -> Result<Option<Verdict>, Error> {
    main_loop.reconciler.api.stop_node_updates();
    let is_chained_by_upstream = main_loop.reconciler.restore_upstream_kubeconfig();
    let mut is_left_to_newer_agent = false;
    let Reconciler { settings, api, record_socket, .. } = &main_loop.reconciler;
    let mut decision =
        UninstallDecision::new(settings, api.history(), record_socket.older_agent_ran);
    loop {
        let Reconciler { settings, api, record_socket, .. } = &main_loop.reconciler;
        let newer_agent_runs = record_socket.newer_agent_runs();
        let verdict = decision.verdict(newer_agent_runs, api.own_pod());
        if !matches!(verdict, Verdict::AskAgain(_)) {
            return Ok(Some(verdict));
        }
        let newer_agent_has_ended = is_left_to_newer_agent && !newer_agent_runs;
        if newer_agent_has_ended && !main_loop.reconciler.is_installed() {
            return Ok(None);
        }
        if newer_agent_runs {
            is_left_to_newer_agent = true;
        }
        let waker = main_loop.watch.waker.clone();
        decision.start_requests(settings, api, waker).map_err(Error::Thread)?;
        // Both waits return early if another signal arrives. That signal is ignored, because the
        // agent is already stopping.
        if is_chained_by_upstream || is_left_to_newer_agent {
            main_loop.watch.wait(decision.time_left()).map_err(Error::Wait)?;
        } else {
            main_loop.step(decision.time_left())?;
        }
    }
}

fn failed_uninstall_event(error: &Error) -> Event {
    Event::on_node(EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIUninstallFailed",
        action: "Uninstalling",
        note: format!(
            "Correct the cause, then run `linkerd2-cni-install uninstall` on this node: {error}"
        ),
    })
}

/// Removes everything that a dead agent left on this node. Reads only the node's files, and sends
/// no request to the API server. Fails if a CNI directory is missing, because the plugin may be in
/// another directory, where nothing was looked for.
pub fn uninstall(settings: &Settings) -> Result<(), Error> {
    info!("uninstalling");
    uninstall_and_record(settings, &Mounts::at_start(&settings.node))?;
    let missing = missing_cni_dirs(&settings.node);
    if !missing.is_empty() {
        return Err(Error::Uninstall(missing));
    }
    Ok(())
}

/// Returns an error for each CNI directory of the settings that does not exist.
fn missing_cni_dirs(node: &NodeSettings) -> Vec<String> {
    let mut missing = Vec::new();
    for (dir, dir_on_node, variable) in [
        (&node.net_dir, &node.net_dir_on_node, "DEST_CNI_NET_DIR"),
        (&node.bin_dir, &node.bin_dir_on_node, "DEST_CNI_BIN_DIR"),
    ] {
        if !dir.is_dir() {
            missing.push(format!(
                "the node has no directory {}; set {variable} to the node's CNI directory",
                dir_on_node.display()
            ));
        }
    }
    missing
}

/// Uninstalls, and records on the node why that failed, for the next agent.
fn uninstall_and_record(settings: &Settings, mounts: &Mounts) -> Result<(), Error> {
    let result = uninstall::run(&settings.node, mounts);
    failed_uninstall::record(&settings.node, &result);
    result.map_err(|failure| Error::Uninstall(failure.into_texts()))
}
