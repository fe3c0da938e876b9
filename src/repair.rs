//! The repair controller: finds meshed pods of its node that have no redirect rules, and
//! applies the [`RepairMode`] to them. Such pods started before the plugin was chained, or
//! lost their rules.
//!
//! One thread each:
//!
//! - [`watch`] lists and watches the pods, and queues those whose validator failed.
//! - [`audit`] reads the rules of all running pods, and queues pods that lost rules.
//! - [`worker`] takes the pods from the [`queue`] and repairs one at a time.
//!
//! Decisions:
//!
//! - [`stranded_pod`]: which pods are stranded, and which pods are audited
//! - [`inspect_rules`]: which rules a pod should have, and which of them are missing
//! - [`rate_limit`]: how many pods are repaired in a minute
//! - [`history`], [`histories`]: how soon the same pod or owner is repaired or reported again
//! - [`unrepaired`]: when to list again because stranded pods were not repaired
//! - [`agent_ready`]: whether the node is ready, before each repair
//!
//! A repair, from check to Event:
//!
//! - [`attempt`]: one repair of one pod: check, repair mode, one retry
//! - [`eviction`], [`in_place`]: the repair modes `delete` and `in-place`
//! - [`event`]: the Events on repaired and skipped pods
//! - [`node_events`]: the Events on the node, about what an audit found
//!
//! Input and output:
//!
//! - [`api_path`], [`pod_stream`]: paths and responses of pod lists and watches
//! - [`host_dirs`], [`pod_netns`]: the plugin entry, and the pods' netns
//! - [`pace`]: waits between requests
//! - [`readiness`], [`metrics`]: `/ready` and `/metrics`
//! - [`settings`], [`log_filter`]: the command line, and its log level

pub mod agent_ready;
pub mod api_path;
pub mod attempt;
pub mod audit;
pub mod event;
pub mod eviction;
pub mod histories;
pub mod history;
pub mod host_dirs;
pub mod in_place;
pub mod inspect_rules;
pub mod log_filter;
pub mod metrics;
pub mod node_events;
pub mod pace;
pub mod pod_netns;
pub mod pod_stream;
pub mod queue;
pub mod rate_limit;
pub mod readiness;
pub mod settings;
pub mod stranded_pod;
pub mod unrepaired;
pub mod watch;
pub mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::admin::{self, Handlers};
use crate::files::MountedDir;
use crate::kube::Deadlines;
use crate::kube::connection::{AccessSource, Connection};
use crate::kube::event::Reporter;
use host_dirs::HostDirs;
pub use settings::RepairMode;
use settings::Settings;
use stranded_pod::{FoundBy, StrandedPod};

/// Name of this program: `reportingController` of Events, and user agent of API requests.
/// Also the file name by which `cli` starts the controller.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

/// Longest time without data in a watch. If etcd reports its progress, the API server sends a
/// bookmark about once a minute, so a connection without data for longer is dead, even without a
/// TCP error. Otherwise a quiet watch also times out here, and the controller lists again
/// (`docs/limits.md`).
const WATCH_READ_TIMEOUT: Duration = Duration::from_secs(150);

/// Timeout for connecting to the API server, and for the start of its response, for lists and watches.
/// Upstream's value.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(9);

/// How long the process waits for the repair in progress after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// Why the controller cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot wait for signals: {0}")]
    Signal(#[source] nix::Error),
}

/// State shared by the threads.
#[derive(Default)]
pub struct Shared {
    pub queue: queue::Queue,
    pub metrics: metrics::Metrics,
    pub readiness: readiness::Readiness,
    /// When to list again, because stranded pods were not repaired.
    pub unrepaired: unrepaired::Unrepaired,
    /// Whether pods found by the audit are left unrepaired, as most pods look damaged.
    pub audit_repairs_suspended: AtomicBool,
}

impl Shared {
    /// Queues the pod. If that drops a pod, also another one, a list or the next audit finds that
    /// pod again.
    fn enqueue(&self, pod: StrandedPod) {
        if let Err(queue::Dropped(found_by)) = self.queue.push(pod) {
            self.record_dropped(found_by);
        }
    }

    /// Records a stranded pod that was dropped: the queue is full, or the list has more than
    /// [`MAX_PODS`](pod_stream::MAX_PODS) pods.
    fn record_dropped(&self, found_by: FoundBy) {
        self.metrics.queue_overflow.inc();
        self.unrepaired.add(found_by, Instant::now());
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

    let shared = Arc::new(Shared::default());
    let host = HostDirs::of(&settings);
    serve(settings.admin_addr, Arc::clone(&shared), MountedDir::at_start(&host.net_dir))?;
    let deadlines = Deadlines {
        connect: RESPONSE_TIMEOUT,
        response: RESPONSE_TIMEOUT,
        body: WATCH_READ_TIMEOUT,
    };
    let connection = |deadlines| Connection::new(source.clone(), CONTROLLER, deadlines);
    let reporter = Reporter { controller: CONTROLLER, instance: settings.pod_name.clone() };
    let watch = watch::PodWatch {
        connection: connection(deadlines),
        node: settings.node.clone(),
        shared: Arc::clone(&shared),
    };
    let audit = settings.audit_period().map(|period| audit::Audit {
        connection: connection(deadlines),
        host: host.clone(),
        period,
        events: node_events::NodeEvents::new(reporter.clone(), settings.node.clone()),
        shared: Arc::clone(&shared),
    });
    let worker = worker::Worker {
        connection: connection(Deadlines::each(worker::REQUEST_TIMEOUT)),
        reporter,
        mode: settings.mode,
        delete_unmanaged: settings.delete_unmanaged,
        host,
        agent_address: settings.agent_address().map(str::to_owned),
        budget: rate_limit::RepairBudget::new(settings.repairs_per_minute),
        histories: histories::Histories::new(settings.mode),
        shared: Arc::clone(&shared),
    };
    spawn("watch", move || watch.run())?;
    if let Some(audit) = audit {
        spawn("audit", move || audit.run())?;
    }
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

/// Starts the HTTP server for probes and metrics.
fn serve(address: SocketAddr, shared: Arc<Shared>, net_dir: MountedDir) -> Result<(), Error> {
    let listener = admin::listener(address).map_err(|source| Error::Listen { address, source })?;
    // For port 0 the kernel has chosen a port.
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!("Serving /live, /ready and /metrics on {address}");
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
        ready: Box::new(move || ready.readiness.ready(Instant::now()).map(|()| None)),
        metrics: Box::new(move || shared.metrics.text()),
        status: None,
    };
    admin::serve(listener, handlers).map_err(Error::Thread)?;
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}
