//! The agent's command line: reads flags and environment variables, starts logging, runs the agent.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;

use super::probe::Probe;
use crate::agent;
use crate::agent::settings::Settings;
use crate::log;

/// Installs linkerd-cni on this node and keeps it installed. On SIGTERM, uninstalls it only if the
/// DaemonSet or its ServiceAccounts are deleted, or if the DaemonSet no longer includes this node.
#[derive(Parser)]
#[command(name = "linkerd2-cni-install", version)]
struct Flags {
    /// Log level: trace, debug, info, warn, error or off [env: LINKERD_CNI_LOG_LEVEL]
    /// [default: info]
    #[arg(long)]
    log_level: Option<String>,
    /// Log format: plain or json [env: LINKERD_CNI_LOG_FORMAT] [default: plain]
    #[arg(long)]
    log_format: Option<String>,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

#[derive(Subcommand)]
enum AgentCommand {
    /// Verify connections of a meshed pod, or the agents of all nodes, as `helm test` does
    #[command(subcommand)]
    Probe(Probe),
    /// Remove everything that a dead agent left on this node
    Uninstall,
}

pub fn main() -> ExitCode {
    log::report_panics();
    let flags = Flags::parse_from(std::env::args().map(to_double_dash));
    super::exit_code(run(flags))
}

fn run(flags: Flags) -> anyhow::Result<()> {
    let settings = match Settings::read(|name| flags.setting(name)) {
        Ok(settings) => settings,
        Err(error) => {
            log::start(LevelFilter::ERROR, log::Format::Plain);
            return Err(error.into());
        }
    };
    log::start(settings.log_level, settings.log_format);
    match flags.command {
        Some(AgentCommand::Probe(probe)) => probe.run(&settings),
        Some(AgentCommand::Uninstall) => Ok(agent::uninstall(&settings)?),
        None => Ok(agent::run(settings)?),
    }
}

impl Flags {
    /// Returns the value of a setting: from its flag, else from the environment variable `name`.
    fn setting(&self, name: &str) -> Option<String> {
        let flag = match name {
            "LINKERD_CNI_LOG_LEVEL" => &self.log_level,
            "LINKERD_CNI_LOG_FORMAT" => &self.log_format,
            _ => &None,
        };
        match flag {
            Some(value) => Some(value.clone()),
            None => std::env::var(name).ok(),
        }
    }
}

/// Converts upstream's single-dash flags, such as `-log-level`, to `--log-level`.
fn to_double_dash(argument: String) -> String {
    if argument.starts_with("-log-") { format!("-{argument}") } else { argument }
}
