//! Runs the CNI commands ADD, CHECK, DEL, GC, STATUS and VERSION.

pub mod add;
pub mod check;
pub mod fetch_pod;
mod pod_netns;
pub mod pod_sources;

use std::time::Instant;

use tracing::level_filters::LevelFilter;

use self::pod_netns::refuse_own_netns;
use crate::cni::{Command, Error, Request, version};
use crate::config::Config;
use crate::record::Record;
use crate::{log, pod_copy};

/// How an ADD or a CHECK ended.
pub struct CallOutcome {
    /// The record that the agent receives.
    pub record: Record,
    /// The response that the runtime receives.
    pub output: Result<String, Error>,
}

impl CallOutcome {
    fn succeeded(record: Record, output: String) -> CallOutcome {
        CallOutcome { record, output: Ok(output) }
    }

    fn failed(record: Record, error: Error) -> CallOutcome {
        CallOutcome { record: record.with_error(&error), output: Err(error) }
    }
}

/// Runs the command of the request. Returns the text for stdout.
pub fn run(request: &Request) -> Result<String, Error> {
    match request.command {
        Command::Version => Ok(version::response()),
        Command::Add => run_and_record(request, add::add),
        Command::Check => run_and_record(request, check::check),
        // DEL has nothing to remove, because the kernel removes the redirect rules together with
        // the pod's netns.
        Command::Del => refuse_own_netns(request).map(|()| String::new()),
        // Runtimes send STATUS every few seconds while they hold a lock, so it does no I/O.
        Command::Gc | Command::Status => Ok(String::new()),
    }
}

/// Runs ADD or CHECK, logs the result, and sends the record to the agent.
fn run_and_record(
    request: &Request,
    command: fn(&Request, &Config) -> CallOutcome,
) -> Result<String, Error> {
    let started = Instant::now();
    refuse_own_netns(request)?;
    let config = Config::read_leniently(&request.config);
    // An unknown level means `warn`, as in upstream.
    let level = log::parse_level(&config.log_level).unwrap_or(LevelFilter::WARN);
    log::start(level, log::Format::Plain);
    if let Some(problem) = &config.problem {
        tracing::warn!(
            "linkerd-cni: ADD and CHECK of meshed pods fail until the plugin entry is corrected: \
             {problem}"
        );
    }
    let CallOutcome { record, output } = command(request, &config);
    let record = record.with_duration(started.elapsed());
    for warning in record.warnings() {
        tracing::warn!("linkerd-cni: pod {}/{}: {warning}", record.namespace, record.pod);
    }
    tracing::info!("{record}");
    // The net dir is unknown if the plugin entry is invalid and names no kubeconfig. The record
    // then reaches the agent only through the socket in the run dir.
    record.send(&pod_copy::run_dir(), config.net_dir());
    output
}
