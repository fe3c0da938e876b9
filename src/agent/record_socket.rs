//! Receives a record of each plugin call on a socket, and turns the records into log lines, metrics
//! and Events. Without the socket, the records are only in the container runtime's log on the node.
//!
//! If several agents run on a node, the agent that started last owns the socket: see
//! [`newer_agent`].
//!
//! The plugin never waits for the agent. A writer that floods the socket fills the kernel's
//! bounded queue, which the agent reads at a limited rate.

mod flood_limit;
mod newer_agent;
mod pod_events;

use std::io;
use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{error, info, warn};

use flood_limit::FloodLimit;
use newer_agent::{OwnedSocket, device_and_inode, is_read, net_dir_path};

use super::api_thread::ApiHandle;
use super::file_watch::Waker;
use super::readiness::Status;
use super::settings::Settings;
use crate::files;
use crate::record::{Record, SIZE_LIMIT};

/// Longest time between two checks that the socket's path still leads to this socket.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Wait after the socket could not be created or read.
const RETRY: Duration = Duration::from_secs(1);

/// The socket for plugin records, and the thread that reads it.
pub struct RecordSocket {
    path: PathBuf,
    /// Path of the socket of an agent without a run dir, if this agent has one.
    net_dir_path: Option<PathBuf>,
    /// Another process read the socket that this agent replaced at its start.
    pub older_agent_ran: bool,
    status: Arc<Status>,
    api: Arc<ApiHandle>,
    state: Mutex<State>,
    /// Wakes the reconciler when a newer agent has ended.
    waker: Waker,
}

#[derive(Default)]
struct State {
    stopped: bool,
    own: Option<OwnedSocket>,
    /// The socket that this agent took over at `net_dir_path`. No plugin sends to it.
    taken_over: Option<OwnedSocket>,
}

impl RecordSocket {
    /// Creates the socket, and starts the reading thread. `api` checks the token when a record
    /// reports that the API server rejected the plugin's token.
    pub fn start(
        settings: &Settings,
        status: &Arc<Status>,
        api: &Arc<ApiHandle>,
        waker: Waker,
    ) -> io::Result<Arc<RecordSocket>> {
        let node = &settings.node;
        let (path, net_dir_path) = (node.record_socket(), net_dir_path(node));
        let receiver = Arc::new(RecordSocket {
            older_agent_ran: is_read(&path) || net_dir_path.as_deref().is_some_and(is_read),
            path,
            net_dir_path,
            status: Arc::clone(status),
            api: Arc::clone(api),
            state: Mutex::default(),
            waker,
        });
        // Binds before the first reconcile pass, so that an older agent sees this agent before it
        // can overwrite this agent's files. The thread retries and reports a failure.
        *receiver.state() = State {
            stopped: false,
            own: OwnedSocket::bind(&receiver.path).ok(),
            taken_over: receiver.take_over(),
        };
        let reader = Arc::clone(&receiver);
        let thread = thread::Builder::new().name("records".into()).stack_size(128 << 10);
        thread.spawn(move || reader.run())?;
        Ok(receiver)
    }

    /// Replaces the socket of an agent without a run dir, if such an agent runs.
    fn take_over(&self) -> Option<OwnedSocket> {
        let path = self.net_dir_path.as_ref()?;
        if !is_read(path) {
            return None;
        }
        OwnedSocket::bind(path).ok()
    }

    /// Stops reading and removes the socket, unless another agent has replaced it.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        for socket in state.own.iter().chain(&state.taken_over) {
            if socket.is_in_place()
                && let Err(error) = files::remove(&socket.path)
            {
                warn!("{error}");
            }
        }
    }

    /// Reads records until the socket is stopped. Waits after an error, and then tries again.
    fn run(&self) {
        let mut flood_limit = FloodLimit::new();
        let mut buffer = vec![0; SIZE_LIMIT + 1];
        let mut last_problem = None;
        loop {
            let received = match self.open_socket() {
                Ok(None) => return,
                Ok(Some(socket)) => socket.recv(&mut buffer),
                Err(error) => Err(io::Error::other(error)),
            };
            let problem = match &received {
                Ok(_) => None,
                // No record has arrived.
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => None,
                Err(error) => Some(error.to_string()),
            };
            log_change(last_problem.as_deref(), problem.as_deref());
            if let Ok(length) = received {
                self.receive(&buffer[..length]);
                flood_limit.wait_after_record();
            } else if problem.is_some() {
                thread::sleep(RETRY);
            }
            last_problem = problem;
        }
    }

    /// Creates the socket at once if its file is missing, as when a newer agent has ended. The
    /// reading thread would do so only when its wait for a record ends.
    pub fn reopen_missing(&self) {
        let mut state = self.state();
        if state.stopped || self.path.symlink_metadata().is_ok() {
            return;
        }
        // The reading thread reports a failure.
        let Ok(socket) = OwnedSocket::bind(&self.path) else { return };
        if let Some(former) = state.own.replace(socket) {
            // Ends the wait of the reading thread.
            let _ = former.socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether an agent of this project that started after this one runs on this node: the
    /// path leads to a socket that another process reads.
    pub fn newer_agent_runs(&self) -> bool {
        let state = self.state();
        if state.own.as_ref().is_some_and(OwnedSocket::is_replaced) {
            return true;
        }
        let Some(path) = &self.net_dir_path else { return false };
        let taken_over = state.taken_over.as_ref().and_then(|socket| socket.file);
        device_and_inode(path) != taken_over && is_read(path)
    }

    /// Returns the socket, and recreates it if its path is missing or leads to a socket that no
    /// process reads. Returns `None` once stopped.
    fn open_socket(&self) -> Result<Option<Arc<UnixDatagram>>, files::Error> {
        let mut state = self.state();
        if state.stopped {
            return Ok(None);
        }
        if !state.own.as_ref().is_some_and(|own| own.is_in_place() || own.is_replaced()) {
            state.own = Some(OwnedSocket::bind(&self.path)?);
            // The reconciler may have yielded to the agent whose socket this one replaces.
            self.waker.wake();
        }
        Ok(state.own.as_ref().map(|own| Arc::clone(&own.socket)))
    }

    /// Counts, logs and reports one record.
    fn receive(&self, bytes: &[u8]) {
        let Some(record) = Record::parse(bytes) else { return };
        self.status.plugin_calls.count(&record);
        self.api.report_failure(&record);
        if record.error.is_some() {
            error!("{record}");
        } else if !record.warnings().is_empty() {
            warn!("{record}");
        } else {
            info!("{record}");
        }
        for event in pod_events::pod_events(&record) {
            self.api.report_event(event);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs a problem that is new, and the end of a problem.
fn log_change(last_problem: Option<&str>, problem: Option<&str>) {
    if problem == last_problem {
        return;
    }
    match problem {
        Some(why) => warn!("cannot receive plugin records: {why}"),
        None => info!("plugin records are received again"),
    }
}
