//! Settings of the repair controller: its command line, and the environment that the chart sets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};

use crate::files;

/// How the controller repairs a pod without redirect rules. Value of `repairController.mode`
/// in the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RepairMode {
    /// Evict or delete the pod, so that its owner creates another pod. Upstream's behavior.
    Delete,
    /// Install the redirect rules in the pod's netns.
    InPlace,
    /// Only report the pod, in log, metrics and Events.
    Report,
}

#[derive(Debug, Args)]
pub struct Settings {
    /// Name of the node whose pods are repaired
    #[arg(long = "node-name", env = "LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME")]
    pub node: String,

    /// Name of this pod, recorded in Events
    #[arg(long = "controller-pod-name", env = "LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME")]
    pub pod_name: String,

    /// Address on which to serve /live, /ready and /metrics
    #[arg(long, default_value = "[::]:8080")]
    pub admin_addr: SocketAddr,

    /// How to repair stranded pods
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_MODE", value_enum, default_value = "delete")]
    pub mode: RepairMode,

    /// Mode delete: also delete pods without a controller, which nothing replaces
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_DELETE_UNMANAGED")]
    pub delete_unmanaged: bool,

    /// Seconds between audits of the redirect rules of all running meshed pods; 0: only mode
    /// in-place audits, after the start
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS", default_value_t = 0)]
    audit_seconds: u32,

    /// Repair budget: largest number of pods to repair per minute, half of them in one namespace
    #[arg(long = "rate", env = "LINKERD_CNI_REPAIR_CONTROLLER_RATE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub repairs_per_minute: u16,

    /// host:port of this node's agent; pods are repaired only while its /ready returns 200
    /// [default: none, repair without this check]
    #[arg(long, env = "LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR")]
    pub agent_addr: Option<String>,

    /// Path under which the host's directories are mounted
    #[arg(long, env = "CONTAINER_MOUNT_PREFIX", default_value = "/host")]
    pub mount_prefix: PathBuf,

    /// CNI net dir on the host
    #[arg(long, env = "DEST_CNI_NET_DIR", default_value = "/etc/cni/net.d")]
    net_dir: String,

    /// Start of this process, soon after the host's directories were mounted
    #[arg(skip = SystemTime::now())]
    pub started: SystemTime,
}

impl Settings {
    /// Returns the time between two audits. `None`: no periodic audits.
    pub fn audit_period(&self) -> Option<Duration> {
        match self.audit_seconds {
            0 => None,
            seconds => Some(Duration::from_secs(seconds.into())),
        }
    }

    pub fn net_dir(&self) -> PathBuf {
        files::below(&self.mount_prefix, Path::new(&self.net_dir))
    }
}
