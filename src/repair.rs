//! The repair controller: finds meshed pods of its node that have no redirect rules, and
//! applies the [`RepairMode`] to them. Such pods started before the plugin was chained, or
//! lost their rules.
//!
//! One thread each, from finding a pod to its Event:
//!
//! - [`watch`] lists and watches the pods, and queues those whose validator failed.
//! - [`audit`] reads the rules of all running pods, and queues pods that lost rules.
//! - [`worker`] takes the pods from the [`queue`] and repairs one at a time. [`turn`] decides which
//!   is next, and why the others wait.

pub mod act;
pub mod agent_ready;
pub mod events;
pub mod find;
pub mod metrics;
pub mod queue;
pub mod settings;
pub mod turn;

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use crate::admin::{self, Handlers};
use crate::files::MountedDir;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::pod_watch::DEADLINES;
use act::worker::{self, Worker};
use find::audit::{self, Audit};
use find::stranded::StrandedPod;
use find::watch;
use settings::Settings;
use turn::Turns;

/// Name of this program: `reportingController` of Events, and user agent of API requests.
/// Also the file name by which `cli` starts the controller.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

const NOT_LISTED: &str = "the node's pods are not listed yet";

/// Settings and state shared by the threads.
pub struct Shared {
    pub settings: Settings,
    pub queue: queue::Queue,
    pub metrics: metrics::Metrics,
    /// Why the controller is not ready: before the first complete list. Upstream's controller is ready once
    /// its watch has started, too.
    not_ready: Mutex<Option<String>>,
}

impl Shared {
    /// Queues the pod. If the queue is full, the pod's next event or the next audit finds it again.
    fn enqueue(&self, pod: StrandedPod) {
        if !self.queue.push(pod) {
            self.metrics.queue_overflow.inc();
        }
    }

    fn not_ready(&self) -> MutexGuard<'_, Option<String>> {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(settings: Settings, source: &AccessSource) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Block the signals before the first thread starts: all threads inherit the mask.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    let no_signals = |error| format!("cannot wait for signals: {error}");
    signals.thread_block().map_err(no_signals)?;

    let connection = |deadlines| Connection::new(source.clone(), CONTROLLER, deadlines);
    let not_ready = Mutex::new(Some(NOT_LISTED.to_owned()));
    let queue = queue::Queue::new(Turns::new(&settings));
    let metrics = metrics::Metrics::default();
    let shared = Arc::new(Shared { settings, queue, metrics, not_ready });
    let net_dir = MountedDir::at_start(&shared.settings.net_dir());
    serve(Arc::clone(&shared), net_dir)?;
    let (watching, watched) = (connection(DEADLINES), Arc::clone(&shared));
    spawn("watch", move || watch::run(watching, &watched))?;
    if let Some(wait) = audit::first(&shared.settings) {
        let audit = Audit::new(connection(DEADLINES), Arc::clone(&shared));
        spawn("audit", move || audit.run(wait))?;
    }
    let connection = connection(Deadlines::each(worker::REQUEST_TIMEOUT));
    let worker = Worker::new(connection, shared);
    spawn("worker", move || worker.run())?;
    let signal = signals.wait().map_err(no_signals)?;
    tracing::info!("Received {signal}; stopping");
    Ok(())
}

fn serve(shared: Arc<Shared>, net_dir: MountedDir) -> Result<(), admin::Error> {
    let address = shared.settings.admin_addr;
    let ready = Arc::clone(&shared);
    let handlers = Handlers {
        // The main thread only waits for signals.
        live: Box::new(move || {
            let stale = net_dir.stale().inspect(|why| tracing::warn!("mounts: {why}"));
            stale.map_or(Ok(()), Err)
        }),
        ready: Box::new(move || ready.not_ready().clone().map_or(Ok(None), Err)),
        metrics: Box::new(move || shared.metrics.text()),
        status: None,
    };
    admin::serve(address, handlers).map(drop)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}
