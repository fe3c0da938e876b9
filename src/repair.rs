//! The repair controller: finds pods of its node without redirection, because they
//! started before the plugin was there or lost their rules, and sees to it that they get
//! it: as [`mode`] says.
//!
//! Threads and a queue: [`watch`] finds by what the validator says, [`audit`] by looking
//! into the pods' namespaces, [`act`] acts. What is stranded is [`verdict`]'s to say,
//! how often to act [`limit`]'s and [`rate`]'s, whether at all the [`gate`]'s.

pub mod agent_ready;
pub mod audit;
pub mod health;
pub mod host;
pub mod inspect;
pub mod limit;
pub mod message;
pub mod metrics;
pub mod missed;
pub mod mode;
pub mod options;
pub mod pace;
pub mod pod_stream;
pub mod process;
pub mod queue;
pub mod rate;
pub mod remove;
pub mod sandbox;
pub mod verdict;
pub mod watch;
pub mod worker;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{SigSet, Signal};

use crate::admin::{self, Handlers};
pub use crate::kube::connection;
use crate::kube::event::Reporter;
use crate::kube::{Deadlines, Impersonate};
use connection::{Connection, Source};
use host::Host;
use mode::Mode;

/// Who reports; also the user agent.
pub const CONTROLLER: &str = "linkerd-cni-repair-controller";

/// The longest silence in a watch. The API server sends a bookmark about once a
/// minute; after this long the connection is dead, and nobody would tell us.
const SILENCE: Duration = Duration::from_secs(150);

/// How long the pod in hand may keep the process from ending.
const FAREWELL: Duration = Duration::from_millis(1500);

/// What the command line says.
#[derive(Debug)]
pub struct Settings {
    pub source: Source,
    pub impersonate: Impersonate,
    pub node: String,
    /// This controller's pod.
    pub controller: String,
    /// How long the API server may take to begin its answer to a list or watch.
    pub response: Duration,
    pub admin: SocketAddr,
    pub mode: Mode,
    /// How often to audit, if at all.
    pub audit: Option<Duration>,
    /// Acts a minute, at most.
    pub rate: u16,
    /// `host:port` of the agent that has to be ready before anything is done.
    pub agent: Option<String>,
    pub host: Host,
}

/// Why the controller cannot begin.
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

/// What the threads have in common.
#[derive(Default)]
pub struct Shared {
    pub queue: queue::Queue,
    pub metrics: metrics::Metrics,
    pub health: health::Health,
    /// Stranded pods that only a new list brings back.
    pub missed: missed::Missed,
}

/// Runs until SIGTERM or SIGINT.
pub fn run(settings: Settings) -> Result<(), Error> {
    // Before the first thread, which all inherit it.
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().map_err(Error::Signal)?;

    let shared = Arc::new(Shared::default());
    serve(settings.admin, Arc::clone(&shared))?;
    let deadlines = Deadlines {
        connect: settings.response,
        response: settings.response,
        body: SILENCE,
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
    let audit = settings.audit.map(|period| audit::Audit {
        connection: connection(deadlines),
        node: settings.node,
        host: settings.host.clone(),
        period,
        shared: Arc::clone(&shared),
    });
    let worker = worker::Worker {
        connection: connection(Deadlines::each(worker::TIMEOUT)),
        reporter: Reporter {
            controller: CONTROLLER,
            instance: settings.controller,
        },
        mode: settings.mode,
        host: settings.host,
        agent: settings.agent,
        rate: rate::Rate::new(settings.rate),
        limit: worker::limit(settings.mode),
        left: worker::told(),
        kept: worker::kept(),
        told: worker::told(),
        shared: Arc::clone(&shared),
    };
    spawn("watch", move || watch.run())?;
    if let Some(audit) = audit {
        spawn("audit", move || audit.run())?;
    }
    let (working, ended) = mpsc::channel::<()>();
    spawn("act", move || {
        worker.run();
        drop(working);
    })?;

    let signal = signals.wait().map_err(Error::Signal)?;
    tracing::info!("{signal}: ending");
    shared.queue.close();
    // Nothing is ever sent: this ends when the worker does, or after the wait.
    let _ = ended.recv_timeout(FAREWELL);
    Ok(())
}

fn serve(address: SocketAddr, shared: Arc<Shared>) -> Result<(), Error> {
    let started = SystemTime::now();
    let listener =
        TcpListener::bind(address).map_err(|source| Error::Listen { address, source })?;
    // With port 0 the kernel has chosen another one.
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!("Answering /live, /ready and /metrics on {address}");
    let ready = Arc::clone(&shared);
    let answers = Handlers {
        ready: Box::new(move || ready.health.ready(Instant::now()).map(|()| None)),
        metrics: Box::new(move || shared.metrics.text(started)),
    };
    admin::serve(listener, answers).map_err(Error::Thread)?;
    Ok(())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}
