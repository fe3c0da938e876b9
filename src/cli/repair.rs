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
use crate::repair::{self, settings::Settings};

/// Name of this program in log filters. Upstream's controller has the same name.
const TARGET: &str = "linkerd_cni_repair_controller";

/// Repairs the meshed pods of one node that have no redirect rules.
#[derive(Parser)]
#[command(name = repair::CONTROLLER, version)]
struct Args {
    /// Log level or tracing filter. In a filter, only the level for linkerd_cni_repair_controller
    /// applies
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL", value_parser = parse_log_filter)]
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

pub fn main() -> ExitCode {
    log::report_panics();
    let mut matches = Args::command().mut_args(unset_if_empty).get_matches();
    let args = Args::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit());
    log::start(args.log_level, args.log_format);
    super::exit_code(run(args.kubeconfig, args.settings))
}

fn run(kubeconfig: Option<PathBuf>, settings: Settings) -> anyhow::Result<()> {
    let source = match kubeconfig {
        Some(path) => AccessSource::Kubeconfig(path),
        None => AccessSource::InCluster {
            host: required_variable("KUBERNETES_SERVICE_HOST")?,
            port: required_variable("KUBERNETES_SERVICE_PORT")?,
            dir: SERVICE_ACCOUNT_DIR.into(),
        },
    };
    repair::run(settings, &source).map_err(anyhow::Error::from_boxed)
}

fn required_variable(name: &str) -> anyhow::Result<String> {
    env::var(name).with_context(|| format!("without --kubeconfig, {name} is required"))
}

/// Lets an empty environment variable count as unset, as in the agent.
fn unset_if_empty(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(env::var_os);
    if value.is_some_and(|value| value.is_empty()) { arg.env(Resettable::Reset) } else { arg }
}

/// Parses a level (`info`) or a filter (`linkerd_cni_repair_controller=info,warn`).
///
/// For a filter, returns the level that applies to [`TARGET`]: the level with the longest prefix of
/// that name, else the level without a name, else `error`. Rejects an unknown word: the word could
/// be a module of upstream's controller, but is more likely a misspelt level.
fn parse_log_filter(filter: &str) -> Result<LevelFilter, String> {
    let mut longest_prefix = "";
    let mut level_of_target = LevelFilter::ERROR;
    for directive in filter.split(',').map(str::trim) {
        if directive.is_empty() {
            continue;
        }
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target, log::parse_level(level)?),
            None if directive == TARGET => (TARGET, LevelFilter::TRACE),
            None => ("", log::parse_level(directive)?),
        };
        // Ignore a span or field, as in `target[span{field}]=level`.
        let prefix = target.split('[').next().unwrap_or(target);
        if TARGET.starts_with(prefix) && prefix.len() >= longest_prefix.len() {
            longest_prefix = prefix;
            level_of_target = level;
        }
    }
    Ok(level_of_target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_matching_log_filter_sets_the_level() {
        for (filter, expected) in [
            ("info", LevelFilter::INFO),
            ("DEBUG", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
            ("linkerd_cni_repair_controller=info,warn", LevelFilter::INFO),
            ("warn,linkerd_cni_repair_controller=debug", LevelFilter::DEBUG),
            ("kube=debug, warn", LevelFilter::WARN),
            ("linkerd=trace,info", LevelFilter::TRACE),
            ("linkerd_cni_repair_controller[repair]=debug", LevelFilter::DEBUG),
            ("linkerd_cni_repair_controller", LevelFilter::TRACE),
            ("kube=debug", LevelFilter::ERROR),
            ("", LevelFilter::ERROR),
            ("info,,kube=warn,", LevelFilter::INFO),
            ("4", LevelFilter::DEBUG),
            ("linkerd_cni_repair_controller=2,5", LevelFilter::WARN),
        ] {
            assert_eq!(parse_log_filter(filter), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn unknown_log_level_is_rejected() {
        for filter in ["inof", "kube=loud,info", "6", "-1", "kube="] {
            assert!(parse_log_filter(filter).is_err(), "{filter:?}");
        }
    }
}
