//! The repair controller's command line: reads arguments, starts logging, runs the controller.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
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
    let args = Args::parse();
    log::start(args.log_level, args.log_format);
    let run = || -> anyhow::Result<()> {
        Ok(repair::run(args.settings, &access_source(args.kubeconfig)?)?)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
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
