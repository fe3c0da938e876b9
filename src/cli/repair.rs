//! The repair controller: arguments, log, run.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tracing::level_filters::LevelFilter;

use crate::kube::Impersonate;
use crate::kube::kubeconfig::{Overrides, SERVICE_ACCOUNT_DIR};
use crate::log::{self, Format};
use crate::repair::{self, Settings, connection::Source, host::Host, mode::Mode, options};

/// Repairs the pods of a node that started before the Linkerd CNI plugin was there.
#[derive(Parser)]
#[command(name = repair::CONTROLLER, version)]
struct Args {
    /// A level, or a filter of which the part for this program counts
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_LEVEL", value_parser = options::level)]
    #[arg(default_value = "linkerd_cni_repair_controller=info,warn")]
    log_level: LevelFilter,

    /// plain or json
    #[arg(
        long,
        env = "LINKERD_CNI_REPAIR_CONTROLLER_LOG_FORMAT",
        default_value = "plain"
    )]
    log_format: Format,

    /// The node whose pods to look after
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME")]
    node_name: String,

    /// The pod that this is, for the events that it reports
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME")]
    controller_pod_name: String,

    /// Where to answer /live, /ready and /metrics
    #[arg(long, default_value = "0.0.0.0:8080")]
    admin_addr: SocketAddr,

    /// How to reach the API server, if not from inside the cluster
    #[arg(long)]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context to use, if not its current one
    #[arg(long)]
    context: Option<String>,

    /// The kubeconfig's cluster to use, if not the context's
    #[arg(long)]
    cluster: Option<String>,

    /// The kubeconfig's user to use, if not the context's
    #[arg(long)]
    user: Option<String>,

    /// Whom to act for, as of kubectl
    #[arg(long = "as")]
    impersonate: Option<String>,

    /// A group to act for; may be given more than once
    #[arg(long = "as-group")]
    impersonate_groups: Vec<String>,

    /// How long the API server may take to begin an answer
    #[arg(long, default_value = "9s", value_parser = humantime::parse_duration)]
    kube_api_response_headers_timeout: Duration,

    /// What to do with a pod without redirection: delete, in-place, label or report
    #[arg(
        long,
        env = "LINKERD_CNI_REPAIR_CONTROLLER_MODE",
        default_value = "delete"
    )]
    mode: Mode,

    /// How often to compare the rules of all running meshed pods; 0 is never
    #[arg(
        long,
        env = "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS",
        default_value_t = 0
    )]
    audit_seconds: u32,

    /// How many pods to deal with in a minute at most
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_RATE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    rate: u16,

    /// host:port of the agent of this node; nothing is done unless its /ready says 200
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR")]
    agent_addr: Option<String>,

    /// Where the host's directories are mounted
    #[arg(long, env = "CONTAINER_MOUNT_PREFIX", default_value = "/host")]
    mount_prefix: PathBuf,

    /// The host's directory of network configurations
    #[arg(long, env = "DEST_CNI_NET_DIR", default_value = "/etc/cni/net.d")]
    net_dir: String,

    /// The name of the plugin's kubeconfig in it
    #[arg(
        long,
        env = "KUBECONFIG_FILE_NAME",
        default_value = "ZZZ-linkerd-cni-kubeconfig"
    )]
    kubeconfig_name: String,
}

/// Runs the repair controller.
pub fn main() -> ExitCode {
    log::report_panics();
    let args = Args::parse();
    log::start(args.log_level, args.log_format);
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    repair::run(Settings {
        source: source(
            args.kubeconfig,
            Overrides {
                context: args.context,
                cluster: args.cluster,
                user: args.user,
            },
        )?,
        impersonate: Impersonate {
            user: args.impersonate,
            groups: args.impersonate_groups,
        },
        node: args.node_name,
        controller: args.controller_pod_name,
        response: args.kube_api_response_headers_timeout,
        admin: args.admin_addr,
        mode: args.mode,
        audit: (args.audit_seconds > 0).then(|| Duration::from_secs(args.audit_seconds.into())),
        rate: args.rate,
        agent: args.agent_addr.filter(|address| !address.is_empty()),
        host: Host::below(&args.mount_prefix, &args.net_dir, &args.kubeconfig_name),
    })?;
    Ok(())
}

fn source(kubeconfig: Option<PathBuf>, overrides: Overrides) -> anyhow::Result<Source> {
    if let Some(path) = kubeconfig {
        return Ok(Source::SelectedKubeconfig(path, overrides));
    }
    let var = |name| env::var(name).with_context(|| format!("no --kubeconfig, and {name}"));
    Ok(Source::InCluster {
        host: var("KUBERNETES_SERVICE_HOST")?,
        port: var("KUBERNETES_SERVICE_PORT")?,
        dir: SERVICE_ACCOUNT_DIR.into(),
    })
}
