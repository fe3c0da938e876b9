//! What the plugin reports of each call, taken in at a socket beside the kubeconfig:
//! `kubectl logs` of the agent then shows what else only the node's journal has.
//!
//! The plugin never waits for us, so all that this costs is ours: a writer that floods
//! the socket fills the kernel's queue, which is bounded, and is read at our pace.

mod notice;
mod pace;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use super::api::Api;
use super::record::{self, Record};
use super::settings::Settings;
use super::status::Status;
use crate::files;
use pace::Pace;

/// The socket's name; no runtime takes it for a configuration.
pub const NAME: &str = ".linkerd-cni.sock";
/// Longer ones are none of the plugin's, in bytes.
const LIMIT: usize = 8 << 10;
/// How often to look whether the socket is still under its name.
const TICK: Duration = Duration::from_secs(5);
/// How soon to try again where it cannot be made.
const RETRY: Duration = Duration::from_secs(1);
const STACK: usize = 128 << 10;

/// The socket and its reader.
pub struct Records {
    path: PathBuf,
    status: Arc<Status>,
    api: Arc<Api>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    socket: Option<Arc<UnixDatagram>>,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
    /// Keys of the plugin entry that the agent's pod already has an Event about.
    reported: BTreeSet<&'static str>,
}

impl Records {
    /// Starts reading. `api` learns of records that the API server refused the plugin.
    pub fn start(
        settings: &Settings,
        status: &Arc<Status>,
        api: &Arc<Api>,
    ) -> io::Result<Arc<Records>> {
        let records = Arc::new(Records {
            path: settings.net_dir.join(NAME),
            status: Arc::clone(status),
            api: Arc::clone(api),
            state: Mutex::default(),
        });
        let own = Arc::clone(&records);
        thread::Builder::new()
            .name("records".into())
            .stack_size(STACK)
            .spawn(move || own.run())?;
        Ok(records)
    }

    /// Takes the socket away, unless another agent has put its own there.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        if state.file.is_some()
            && state.file == self.file()
            && let Err(error) = files::remove(&self.path)
        {
            warn!("{error}");
        }
    }

    fn run(&self) {
        let mut pace = Pace::new(Instant::now());
        let mut buffer = vec![0; LIMIT + 1];
        let mut said: Option<String> = None;
        let mut look = Instant::now();
        let mut socket = None;
        loop {
            if Instant::now() >= look {
                match self.keep() {
                    Ok(None) => return,
                    Ok(kept) => {
                        if said.take().is_some() {
                            info!("the plugin's records are taken in again");
                        }
                        socket = kept;
                        look = Instant::now() + TICK;
                    }
                    Err(error) => {
                        let why = error.to_string();
                        if said.as_ref() != Some(&why) {
                            warn!("the plugin's records are not taken in: {why}");
                        }
                        said = Some(why);
                        socket = None;
                        look = Instant::now() + RETRY;
                    }
                }
            }
            let Some(socket) = &socket else {
                thread::sleep(RETRY);
                continue;
            };
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    self.take(&buffer[..length]);
                    thread::sleep(pace.spend(Instant::now()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    debug!("{}: {error}", self.path.display());
                    thread::sleep(RETRY);
                }
            }
        }
    }

    /// The socket, made anew where it is not under its name; none once stopped.
    fn keep(&self) -> Result<Option<Arc<UnixDatagram>>, files::Error> {
        let mut state = self.state();
        if state.stopped {
            return Ok(None);
        }
        if state.socket.is_none() || state.file != self.file() {
            state.socket = None;
            let socket = files::socket(&self.path, TICK)?;
            state.socket = Some(Arc::new(socket));
            state.file = self.file();
        }
        Ok(state.socket.clone())
    }

    fn file(&self) -> Option<(u64, u64)> {
        let file = fs::symlink_metadata(&self.path).ok()?;
        Some((file.dev(), file.ino()))
    }

    fn take(&self, bytes: &[u8]) {
        let tally = &self.status.records;
        let record = match bytes.len() {
            length if length > LIMIT => None,
            _ => Record::read(bytes),
        };
        let Some(record) = record else {
            tally.refuse();
            debug!("{}: a datagram that is no record", self.path.display());
            return;
        };
        tally.count(&record);
        if record.is_refusal() {
            self.api.record_refused();
        }
        match record.level {
            record::Level::Error => error!("{record}"),
            record::Level::Warn => warn!("{record}"),
            record::Level::Info => info!("{record}"),
            record::Level::Debug => debug!("{record}"),
        }
        notice::on_pod(&record).for_each(|event| self.api.report_pod_event(event));
        for (key, event) in notice::on_agent(&record) {
            if self.state().reported.insert(key) {
                self.api.report_event(event);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
