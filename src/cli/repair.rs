//! The repair controller's command line: reads arguments, starts logging, runs the controller.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tracing::level_filters::LevelFilter;

use crate::kube::Impersonate;
use crate::kube::connection::AccessSource;
use crate::kube::kubeconfig::{Overrides, SERVICE_ACCOUNT_DIR};
use crate::log::{self, Format};
use crate::repair::{self, RepairMode, RepairSettings, host_dirs::HostDirs, log_filter};

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

    /// Name of the node whose pods are repaired
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME")]
    node_name: String,

    /// Name of this pod, recorded in Events
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME")]
    controller_pod_name: String,

    /// Address on which to serve /live, /ready and /metrics
    #[arg(long, default_value = "[::]:8080")]
    admin_addr: SocketAddr,

    /// Kubeconfig for the API server [default: the pod's ServiceAccount]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: the current context]
    #[arg(long)]
    context: Option<String>,

    /// Cluster of the kubeconfig [default: the context's]
    #[arg(long)]
    cluster: Option<String>,

    /// User of the kubeconfig [default: the context's]
    #[arg(long)]
    user: Option<String>,

    /// User to impersonate, as in kubectl
    #[arg(long = "as")]
    impersonate: Option<String>,

    /// Group to impersonate; may be repeated
    #[arg(long = "as-group")]
    impersonate_groups: Vec<String>,

    /// Longest time until the headers of an API response, for lists and watches
    #[arg(long, default_value = "9s", value_parser = humantime::parse_duration)]
    kube_api_response_headers_timeout: Duration,

    /// How to repair stranded pods: delete, in-place, label or report
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_MODE", default_value = "delete")]
    mode: RepairMode,

    /// Mode delete: also delete pods without a controller, which nothing replaces
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_DELETE_UNMANAGED")]
    delete_unmanaged: bool,

    /// Seconds between audits of the redirect rules of all running meshed pods; 0 disables audits
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS", default_value_t = 0)]
    audit_seconds: u32,

    /// Repair budget: largest number of pods to repair per minute, half of them in one namespace
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_RATE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    rate: u16,

    /// host:port of this node's agent; pods are repaired only while its /ready returns 200
    /// [default: none, repair without this check]
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR")]
    agent_addr: Option<String>,

    /// Path under which the host's directories are mounted
    #[arg(long, env = "CONTAINER_MOUNT_PREFIX", default_value = "/host")]
    mount_prefix: PathBuf,

    /// CNI net dir on the host
    #[arg(long, env = "DEST_CNI_NET_DIR", default_value = "/etc/cni/net.d")]
    net_dir: String,

    /// File name of the plugin's kubeconfig in the CNI net dir
    #[arg(long, env = "KUBECONFIG_FILE_NAME", default_value = "ZZZ-linkerd-cni-kubeconfig")]
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
    repair::run(RepairSettings {
        source: source(
            args.kubeconfig,
            Overrides { context: args.context, cluster: args.cluster, user: args.user },
        )?,
        impersonate: Impersonate { user: args.impersonate, groups: args.impersonate_groups },
        node: args.node_name,
        pod_name: args.controller_pod_name,
        response_timeout: args.kube_api_response_headers_timeout,
        admin: args.admin_addr,
        mode: args.mode,
        delete_unmanaged: args.delete_unmanaged,
        audit_period: (args.audit_seconds > 0)
            .then(|| Duration::from_secs(args.audit_seconds.into())),
        repairs_per_minute: args.rate,
        agent_address: args.agent_addr.filter(|address| !address.is_empty()),
        host: HostDirs::below(&args.mount_prefix, &args.net_dir, &args.kubeconfig_name),
    })?;
    Ok(())
}

fn source(kubeconfig: Option<PathBuf>, overrides: Overrides) -> anyhow::Result<AccessSource> {
    if let Some(path) = kubeconfig {
        return Ok(AccessSource::SelectedKubeconfig(path, overrides));
    }
    let var =
        |name| env::var(name).with_context(|| format!("without --kubeconfig, {name} is required"));
    Ok(AccessSource::InCluster {
        host: var("KUBERNETES_SERVICE_HOST")?,
        port: var("KUBERNETES_SERVICE_PORT")?,
        dir: SERVICE_ACCOUNT_DIR.into(),
    })
}
