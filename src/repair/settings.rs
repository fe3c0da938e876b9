//! Settings of the repair controller: its command line, and the environment that the chart sets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
    #[arg(skip = Instant::now())]
    pub started: Instant,
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
        files::path_in_container(&self.mount_prefix, Path::new(&self.net_dir))
    }

    /// Returns the start of this process by the node's present clock, to compare it with the dates
    /// of files. A node often boots with a wrong clock, which is set later.
    pub fn started_at(&self) -> SystemTime {
        date_of(self.started, Instant::now(), SystemTime::now())
    }
}

/// Returns the date of the time `at`, by the clock that shows `date` at the time `now`.
pub fn date_of(at: Instant, now: Instant, date: SystemTime) -> SystemTime {
    let age = now.saturating_duration_since(at);
    date.checked_sub(age).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_dated_by_the_present_clock_even_if_that_was_set_back() {
        const HOUR: Duration = Duration::from_secs(3600);
        let started = Instant::now();
        let now = started + HOUR;
        let today = SystemTime::now();
        for (name, date, expected) in [
            ("unchanged", today, today - HOUR),
            ("set back by a day since the start", today - 24 * HOUR, today - 25 * HOUR),
            ("not set yet", UNIX_EPOCH + HOUR / 2, UNIX_EPOCH),
        ] {
            assert_eq!(date_of(started, now, date), expected, "{name}");
        }
    }
}
