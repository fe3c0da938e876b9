//! The repair controller: finds meshed pods of its node without redirect rules and applies
//! the repair [`mode`] to them. Such pods started before the plugin was chained, or lost
//! their rules.
//!
//! - [`watch`] and [`audit`] find the pods: by the exit code of their validator, and by
//!   reading the rules in their netns. Both put them into the [`queue`].
//! - [`worker`] takes the pods from the queue and repairs one at a time.
//! - [`verdict`] decides which pods are stranded, [`history`] and [`budget`] how often to
//!   repair. [`agent_ready`] delays all repairs until the node is ready.
//!
//! Watch, audit and worker are one thread each.

pub mod agent_ready;
pub mod api_path;
pub mod attempt;
pub mod audit;
pub mod budget;
pub mod health;
pub mod history;
pub mod host;
pub mod inspect;
pub mod log_filter;
pub mod message;
pub mod metrics;
pub mod missed;
pub mod mode;
pub mod pace;
pub mod pod_requests;
pub mod pod_stream;
pub mod process;
pub mod queue;
pub mod sandbox;
pub mod verdict;
pub mod watch;
pub mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::admin::{self, Handlers};
pub use crate::kube::connection;
use crate::kube::event::Reporter;
use crate::kube::{Deadlines, Impersonate};
use connection::{AccessSource, Connection};
use host::Host;
use mode::RepairMode;

/// Name of this program: `reportingController` of Events, and user agent of API requests.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

/// Longest time without data in a watch. The API server sends a bookmark about once a
/// minute, so a connection that is silent for longer is dead, even without a TCP error.
const WATCH_READ_TIMEOUT: Duration = Duration::from_secs(150);

/// How long the process waits at its end for the repair in progress.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// Settings from the command line.
#[derive(Debug)]
pub struct Settings {
    pub source: AccessSource,
    pub impersonate: Impersonate,
    pub node: String,
    /// Name of this controller's pod, recorded in Events.
    pub pod_name: String,
    /// Timeout for connecting to the API server, and for the start of its response, for
    /// lists and watches.
    pub response_timeout: Duration,
    /// Address of `/live`, `/ready` and `/metrics`.
    pub admin: SocketAddr,
    pub mode: RepairMode,
    /// Time between two audits. `None`: no audits.
    pub audit_period: Option<Duration>,
    /// Most repairs in a minute.
    pub repairs_per_minute: u16,
    /// `host:port` of the agent that has to be ready before each repair. `None`: repair
    /// without asking the agent.
    pub agent_address: Option<String>,
    pub host: Host,
}

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
    pub health: health::Health,
    /// Stranded pods that were not repaired and need a new list to be found again.
    pub missed: missed::Missed,
}

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(settings: Settings) -> Result<(), Error> {
    // Block the signals before the first thread starts: all threads inherit the mask.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().map_err(Error::Signal)?;

    let shared = Arc::new(Shared::default());
    serve(settings.admin, Arc::clone(&shared))?;
    let deadlines = Deadlines {
        connect: settings.response_timeout,
        response: settings.response_timeout,
        body: WATCH_READ_TIMEOUT,
    };
    let connection = |deadlines| {
        Connection::new(settings.source.clone(), CONTROLLER, deadlines)
            .impersonating(settings.impersonate.clone())
    };
    let watch = watch::Watch {
        connection: connection(deadlines),
        node: settings.node.clone(),
        shared: Arc::clone(&shared),
    };
    let audit = settings.audit_period.map(|period| audit::Audit {
        connection: connection(deadlines),
        node: settings.node,
        host: settings.host.clone(),
        period,
        shared: Arc::clone(&shared),
    });
    let worker = worker::Worker {
        connection: connection(Deadlines::each(worker::REQUEST_TIMEOUT)),
        reporter: Reporter { controller: CONTROLLER, instance: settings.pod_name },
        mode: settings.mode,
        host: settings.host,
        agent_address: settings.agent_address,
        budget: budget::RepairBudget::new(settings.repairs_per_minute),
        histories: worker::Histories::new(settings.mode),
        shared: Arc::clone(&shared),
    };
    spawn("watch", move || watch.run())?;
    if let Some(audit) = audit {
        spawn("audit", move || audit.run())?;
    }
    let (worker_running, worker_ended) = mpsc::channel::<()>();
    spawn("act", move || {
        worker.run();
        drop(worker_running);
    })?;

    let signal = signals.wait().map_err(Error::Signal)?;
    tracing::info!("{signal}: ending");
    shared.queue.close();
    // Nothing is ever sent: this returns when the worker drops its end, or on timeout.
    let _ = worker_ended.recv_timeout(SHUTDOWN_TIMEOUT);
    Ok(())
}

/// Starts the HTTP server for probes and metrics.
fn serve(address: SocketAddr, shared: Arc<Shared>) -> Result<(), Error> {
    let listener =
        TcpListener::bind(address).map_err(|source| Error::Listen { address, source })?;
    // For port 0 the kernel has chosen a port.
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!("Answering /live, /ready and /metrics on {address}");
    let ready = Arc::clone(&shared);
    let answers = Handlers {
        ready: Box::new(move || ready.health.ready(Instant::now()).map(|()| None)),
        metrics: Box::new(move || shared.metrics.text()),
    };
    admin::serve(listener, answers).map_err(Error::Thread)?;
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}
