//! The repair controller: finds meshed pods of its node that have no redirect rules, and
//! applies the [`RepairMode`] to them. Such pods started before the plugin was chained, or
//! lost their rules.
//!
//! One thread each, from finding a pod to its Event:
//!
//! - [`find::watch`] lists and watches the pods, and queues those whose validator failed.
//! - [`find::audit`] reads the rules of all running pods, and queues pods that lost rules.
//! - [`act::worker`] takes the pods from the [`queue`] and repairs one at a time.
//!
//! With `--compare`, [`compare`] runs instead, and nothing is repaired.

pub mod act;
pub mod budget;
pub mod compare;
pub mod comparison;
pub mod events;
pub mod find;
pub mod holds;
pub mod inspect;
pub mod metrics;
pub mod netns_lookup;
pub mod plugin_config;
pub mod queue;
pub mod settings;
pub mod stranded;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::admin::{self, Handlers};
use crate::files::MountedDir;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::pod_watch::DEADLINES;
use act::worker::{self, Worker};
use find::audit::{self, Audit};
use find::readiness::Readiness;
use find::watch;
use settings::Settings;
use stranded::StrandedPod;

/// Name of this program: `reportingController` of Events, and user agent of API requests.
/// Also the file name by which `cli` starts the controller.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

/// How long the process waits for the repair in progress after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// Why the controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listen(#[from] admin::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot wait for signals: {0}")]
    Signal(#[source] nix::Error),
}

/// Settings and state shared by the threads.
pub struct Shared {
    pub settings: Settings,
    pub queue: queue::Queue,
    pub metrics: metrics::Metrics,
    readiness: Mutex<Readiness>,
}

impl Shared {
    fn new(settings: Settings) -> Self {
        Shared {
            settings,
            queue: queue::Queue::default(),
            metrics: metrics::Metrics::default(),
            readiness: Mutex::default(),
        }
    }

    /// Queues the pod. If the queue is full, the pod's next event or the next audit finds it again.
    fn enqueue(&self, pod: StrandedPod) {
        if !self.queue.push(pod) {
            self.metrics.queue_overflow.inc();
        }
    }

    fn readiness(&self) -> MutexGuard<'_, Readiness> {
        self.readiness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// Fails if signals cannot be blocked or awaited, the admin address cannot be bound, or a thread
/// cannot start.
pub fn run(settings: Settings, source: &AccessSource) -> Result<(), Error> {
    // Block the signals before the first thread starts: all threads inherit the mask.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().map_err(Error::Signal)?;

    if let Some(root) = settings.compare.clone() {
        let connection = Connection::new(source.clone(), CONTROLLER, DEADLINES);
        compare::start(settings, root, connection)?;
        signals.wait().map_err(Error::Signal)?;
        return Ok(());
    }
    let shared = Arc::new(Shared::new(settings));
    let net_dir = MountedDir::at_start(&shared.settings.net_dir());
    serve(Arc::clone(&shared), net_dir)?;
    let connection = |deadlines| Connection::new(source.clone(), CONTROLLER, deadlines);
    let (watching, watched) = (connection(DEADLINES), Arc::clone(&shared));
    spawn("watch", move || watch::run(watching, &watched))?;
    if let Some(wait) = audit::first(&shared.settings) {
        let audit = Audit::new(connection(DEADLINES), Arc::clone(&shared));
        spawn("audit", move || audit.run(wait))?;
    }
    let connection = connection(Deadlines::each(worker::REQUEST_TIMEOUT));
    let worker = Worker::new(connection, Arc::clone(&shared));
    let (worker_running, worker_ended) = mpsc::channel::<()>();
    spawn("worker", move || {
        worker.run();
        drop(worker_running);
    })?;

    let signal = signals.wait().map_err(Error::Signal)?;
    tracing::info!("Received {signal}; stopping");
    shared.queue.close();
    // Nothing is ever sent: this returns when the worker drops its end, or on timeout.
    let _ = worker_ended.recv_timeout(SHUTDOWN_TIMEOUT);
    Ok(())
}

fn serve(shared: Arc<Shared>, net_dir: MountedDir) -> Result<(), Error> {
    let address = shared.settings.admin_addr;
    let ready = Arc::clone(&shared);
    let handlers = Handlers {
        // The main thread only waits for signals.
        live: Box::new(move || match net_dir.stale() {
            Some(why) => {
                tracing::warn!("mounts: {why}");
                Err(why)
            }
            None => Ok(()),
        }),
        ready: Box::new(move || ready.readiness().ready(Instant::now()).map(|()| None)),
        metrics: Box::new(move || shared.metrics.text()),
        status: None,
    };
    admin::serve(address, handlers)?;
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}
