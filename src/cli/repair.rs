//! The repair controller's command line: reads arguments, starts logging, runs the controller.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::Resettable;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser};
use tracing::level_filters::LevelFilter;

use crate::kube::connection::AccessSource;
use crate::kube::kubeconfig::SERVICE_ACCOUNT_DIR;
use crate::log::{self, Format};
use crate::repair::{self, log_filter, settings::Settings};

/// Repairs the meshed pods of one node that have no redirect rules.
#[derive(Parser)]
#[command(name = repair::CONTROLLER, version)]
struct Args {
    /// Log level or tracing filter. In a filter, only the level for linkerd_cni_repair_controller applies
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL", value_parser = log_filter::level)]
    #[arg(default_value = "linkerd_cni_repair_controller=info,warn")]
    log_level: LevelFilter,

    /// Log format: plain or json
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT", default_value = "plain")]
    log_format: Format,

    /// Kubeconfig whose context linkerd-cni-context is used [default: the pod's ServiceAccount]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

/// Runs the repair controller.
pub fn main() -> ExitCode {
    log::report_panics();
    let mut matches = Args::command().mut_args(unset_if_empty).get_matches();
    let args = Args::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit());
    log::start(args.log_level, args.log_format);
    super::exit_code(
        access_source(args.kubeconfig).and_then(|source| Ok(repair::run(args.settings, &source)?)),
    )
}

/// Lets an empty environment variable count as unset, as in the agent.
fn unset_if_empty(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(env::var_os);
    match value.is_some_and(|value| value.is_empty()) {
        true => arg.env(Resettable::Reset),
        false => arg,
    }
}

fn access_source(kubeconfig: Option<PathBuf>) -> anyhow::Result<AccessSource> {
    if let Some(path) = kubeconfig {
        return Ok(AccessSource::Kubeconfig(path));
    }
    let var =
        |name| env::var(name).with_context(|| format!("without --kubeconfig, {name} is required"));
    Ok(AccessSource::InCluster {
        host: var("KUBERNETES_SERVICE_HOST")?,
        port: var("KUBERNETES_SERVICE_PORT")?,
        dir: SERVICE_ACCOUNT_DIR.into(),
    })
}
