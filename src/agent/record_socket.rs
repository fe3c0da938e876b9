//! Receives a record of each plugin call on a socket, and turns the records into log lines, metrics
//! and Events. Without the socket, the records are only in the container runtime's log on the node.
//!
//! If several agents run on a node, the agent that started last owns the socket: see
//! [`newer_agent`].
//!
//! The plugin never waits for the agent: if the kernel's queue of the socket is full, the record is
//! lost. The agent reads this queue at a limited rate, so that a program that floods the socket
//! does not keep the agent busy.

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
use newer_agent::{OwnedSocket, device_and_inode, has_reader, socket_path_in_net_dir};

use super::api_thread::ApiHandle;
use super::file_watch::Waker;
use super::readiness::Status;
use super::settings::Settings;
use crate::files;
use crate::record::{Record, SIZE_LIMIT};

/// Longest time between two checks that the socket's path still leads to this socket.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Wait before the next attempt if the socket could not be created or read.
const RETRY: Duration = Duration::from_secs(1);

/// The socket for plugin records, and the thread that reads it.
pub struct RecordSocket {
    path: PathBuf,
    /// Path of the socket that an agent without a run dir uses. `None` if this agent has no run
    /// dir, because `path` is that path then.
    net_dir_path: Option<PathBuf>,
    /// Whether an older agent was running when this one started: another process read the socket
    /// that this agent replaced.
    pub older_agent_ran: bool,
    status: Arc<Status>,
    api: Arc<ApiHandle>,
    state: Mutex<State>,
    /// Wakes the reconciler when a newer agent has ended.
    waker: Waker,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    own: Option<OwnedSocket>,
    /// The socket with which this agent has replaced that of an agent without a run dir. The plugin
    /// of this agent does not send records to it, so it is not read.
    taken_over: Option<OwnedSocket>,
}

impl RecordSocket {
    /// Creates the socket, and starts the thread that reads records. `api` checks the token if a
    /// record reports that the API server rejected the plugin's token.
    pub fn start(
        settings: &Settings,
        status: &Arc<Status>,
        api: &Arc<ApiHandle>,
        waker: Waker,
    ) -> io::Result<Arc<RecordSocket>> {
        let node = &settings.node;
        let path = node.record_socket();
        let net_dir_path = socket_path_in_net_dir(node);
        let older_agent_ran = has_reader(&path) || net_dir_path.as_deref().is_some_and(has_reader);
        let record_socket = Arc::new(RecordSocket {
            older_agent_ran,
            path,
            net_dir_path,
            status: Arc::clone(status),
            api: Arc::clone(api),
            state: Mutex::default(),
            waker,
        });
        // The socket is created before the first reconcile pass. So an older agent sees that this
        // one runs before it can overwrite the files of this one. An error is ignored here, because
        // the thread tries again and reports the error.
        *record_socket.state() = State {
            is_stopped: false,
            own: OwnedSocket::bind(&record_socket.path).ok(),
            taken_over: record_socket.take_over(),
        };
        let for_thread = Arc::clone(&record_socket);
        let thread = thread::Builder::new().name("records".into()).stack_size(128 << 10);
        thread.spawn(move || for_thread.receive_records())?;
        Ok(record_socket)
    }

    /// Replaces the socket of an agent without a run dir, if such an agent runs.
    fn take_over(&self) -> Option<OwnedSocket> {
        let path = self.net_dir_path.as_ref()?;
        if !has_reader(path) {
            return None;
        }
        OwnedSocket::bind(path).ok()
    }

    /// Stops reading and removes the socket, unless another agent has replaced it.
    pub fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        for socket in state.own.iter().chain(&state.taken_over) {
            if socket.is_in_place()
                && let Err(error) = files::remove(&socket.path)
            {
                warn!("{error}");
            }
        }
    }

    /// Receives records until the socket is stopped. Waits after an error, and then tries again.
    fn receive_records(&self) {
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
                // No record has arrived within the receive time-out, which is normal.
                Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => None,
                Err(error) => Some(error.to_string()),
            };
            log_change(last_problem.as_deref(), problem.as_deref());
            if let Ok(length) = received {
                self.report(&buffer[..length]);
                flood_limit.wait_after_record();
            } else if problem.is_some() {
                thread::sleep(RETRY);
            }
            last_problem = problem;
        }
    }

    /// Creates the socket again if its file is missing, for example because a newer agent has ended
    /// and removed it. The thread would do this too, but only after its wait for a record.
    pub fn reopen_missing(&self) {
        let mut state = self.state();
        if state.is_stopped || self.path.symlink_metadata().is_ok() {
            return;
        }
        // An error is ignored here, because the thread tries again and reports the error.
        let Ok(socket) = OwnedSocket::bind(&self.path) else { return };
        if let Some(replaced) = state.own.replace(socket) {
            // This ends the thread's wait for a record on the old socket.
            let _ = replaced.socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns whether an agent of this project runs on this node that started after this one. If
    /// so, one of the paths leads to a socket that another process reads.
    pub fn newer_agent_runs(&self) -> bool {
        let state = self.state();
        if state.own.as_ref().is_some_and(OwnedSocket::is_replaced) {
            return true;
        }
        let Some(path) = &self.net_dir_path else { return false };
        let taken_over = state.taken_over.as_ref().map(|socket| socket.file);
        let is_own_socket = device_and_inode(path) == taken_over;
        !is_own_socket && has_reader(path)
    }

    /// Returns the socket. Creates the socket again if its path is missing or leads to a socket
    /// that no process reads. Returns `None` once the socket is stopped.
    fn open_socket(&self) -> Result<Option<Arc<UnixDatagram>>, files::Error> {
        let mut state = self.state();
        if state.is_stopped {
            return Ok(None);
        }
        let has_socket = match &state.own {
            Some(own) => own.is_in_place() || own.is_replaced(),
            None => false,
        };
        if !has_socket {
            state.own = Some(OwnedSocket::bind(&self.path)?);
            // A newer agent may have owned the path until it ended. The reconciler then still
            // yields to it, and has to decide anew.
            self.waker.wake();
        }
        Ok(state.own.as_ref().map(|own| Arc::clone(&own.socket)))
    }

    /// Counts and logs the record in `bytes`, and reports it in Events. Ignores bytes that are not
    /// a record.
    fn report(&self, bytes: &[u8]) {
        let Some(record) = Record::parse(bytes) else { return };
        self.status.plugin_calls.count(&record);
        self.api.report_failure(&record);
        self.api.record_plugin_call();
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
