//! The repair controller: finds meshed pods of its node that have no redirect rules, and applies
//! the [`RepairMode`](settings::RepairMode) to them. Such pods started before the plugin was
//! chained, or lost their rules.
//!
//! Four threads share the work:
//!
//! - [`watch`] lists and watches the pods, and queues those whose validator failed.
//! - [`audit`] reads the rules of all running pods, queues pods that lost rules, and reports pods
//!   whose rules are unknown.
//! - [`worker`] takes the pods from the [`queue`] and repairs one at a time. [`turn`] decides which
//!   is next, and why the others wait.
//! - [`event_publisher`] posts the Events again that could not be posted.

pub mod act;
pub mod agent_ready;
pub mod audit;
pub mod controller_metrics;
pub mod event_publisher;
pub mod find;
pub mod pod_events;
pub mod queue;
pub mod restart;
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
use crate::kube::pod_watch::{self, DEADLINES};
use act::worker::{self, Worker};
use audit::Auditor;
use controller_metrics::Metrics;
use event_publisher::Outbox;
use find::stranded::StrandedPod;
use find::watch;
use queue::Queue;
use restart::RestartPolicy;
use settings::Settings;
use turn::Turns;

/// Name of the controller: the `reportingController` of its Events, and the user agent of its API
/// requests. The agent's program runs the controller if it is started under this file name (see
/// `cli`).
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

const NOT_LISTED: &str = "the node's pods are not listed yet";

/// Settings and state shared by the threads.
pub struct Shared {
    pub settings: Settings,
    pub queue: Queue,
    pub metrics: Metrics,
    outbox: Outbox,
    restart_policy: RestartPolicy,
    /// Why the controller is not ready. `None` from the first complete list of the node's pods on.
    /// Upstream's controller, likewise, is ready only once its watch has started.
    not_ready: Mutex<Option<String>>,
}

impl Shared {
    fn new(settings: Settings) -> Self {
        let has_agent = settings.agent_addr.is_some();
        let turns = Turns::new(settings.mode, settings.repairs_per_minute, has_agent);
        Shared {
            settings,
            queue: Queue::new(turns),
            metrics: Metrics::default(),
            outbox: Outbox::default(),
            restart_policy: RestartPolicy::at_start(),
            not_ready: Mutex::new(Some(NOT_LISTED.to_owned())),
        }
    }

    /// Queues the pod. A full queue drops the pod, which is only counted: the pod's next event or
    /// the next audit finds the pod again.
    fn enqueue(&self, pod: StrandedPod) {
        if !self.queue.push(pod) {
            self.metrics.queue_overflow.inc();
        }
    }

    /// Records that the node's pods were listed: the controller is ready from now on.
    fn record_list(&self) {
        *self.lock_not_ready() = None;
    }

    /// Counts the failed request. Until the first list, `/ready` also reports the request's error.
    fn record_watch_failure(&self, error: &pod_watch::Error) {
        self.metrics.watch_errors.inc();
        if let Some(why) = &mut *self.lock_not_ready() {
            *why = format!("{NOT_LISTED}: {error}");
        }
    }

    fn lock_not_ready(&self) -> MutexGuard<'_, Option<String>> {
        self.not_ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the response to `/ready`: why the controller is not ready, or success without a
    /// note.
    fn readiness(&self) -> Result<Option<String>, String> {
        match &*self.lock_not_ready() {
            Some(why) => Err(why.clone()),
            None => Ok(None),
        }
    }
}

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(settings: Settings, source: &AccessSource) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Block the signals before the first thread starts: all threads inherit the mask, so only the
    // `wait` below receives a signal.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().map_err(cannot_wait)?;

    let shared = Arc::new(Shared::new(settings));
    serve(Arc::clone(&shared))?;
    start_watch(connection(source, DEADLINES), Arc::clone(&shared))?;
    start_audits(connection(source, DEADLINES), Arc::clone(&shared))?;
    let short = Deadlines::per_phase(worker::REQUEST_TIMEOUT);
    start_retries_of_events(connection(source, short), Arc::clone(&shared))?;
    start_worker(connection(source, short), shared)?;

    let signal = signals.wait().map_err(cannot_wait)?;
    tracing::info!("Received {signal}; stopping");
    Ok(())
}

fn cannot_wait(error: nix::Error) -> String {
    format!("cannot wait for signals: {error}")
}

fn connection(source: &AccessSource, deadlines: Deadlines) -> Connection {
    Connection::new(source.clone(), CONTROLLER, deadlines)
}

fn serve(shared: Arc<Shared>) -> Result<(), admin::Error> {
    let address = shared.settings.admin_addr;
    let net_dir = MountedDir::at_start(&shared.settings.net_dir());
    let shared_by_ready = Arc::clone(&shared);
    let handlers = Handlers {
        live: Box::new(move || liveness(&net_dir)),
        ready: Box::new(move || shared_by_ready.readiness()),
        metrics: Box::new(move || shared.metrics.text()),
        status: None,
    };
    admin::serve(address, handlers)?;
    Ok(())
}

/// Returns the response to `/live`: an error if the mounted CNI net dir is stale. The main thread
/// is not checked, because it only waits for signals.
fn liveness(net_dir: &MountedDir) -> Result<(), String> {
    match net_dir.stale_reason() {
        Some(why) => {
            tracing::warn!("mounts: {why}");
            Err(why)
        }
        None => Ok(()),
    }
}

fn start_watch(connection: Connection, shared: Arc<Shared>) -> Result<(), String> {
    spawn("watch", move || watch::run(connection, &shared))
}

fn start_audits(connection: Connection, shared: Arc<Shared>) -> Result<(), String> {
    let Some(wait) = audit::first_wait(&shared.settings) else { return Ok(()) };
    spawn("audit", move || Auditor::new(connection, shared).run(wait))
}

fn start_retries_of_events(connection: Connection, shared: Arc<Shared>) -> Result<(), String> {
    spawn("events", move || shared.retry_events(connection))
}

fn start_worker(connection: Connection, shared: Arc<Shared>) -> Result<(), String> {
    spawn("worker", move || Worker::new(connection, shared).run())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    match thread::Builder::new().name(name.into()).spawn(run) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot start a thread: {error}")),
    }
}
