//! What the agent tells about itself: readiness and counters.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Shared between the agent and its admin listener.
#[derive(Debug)]
pub struct Status {
    ready: Mutex<Result<(), String>>,
    pub binary_writes: AtomicU64,
    pub kubeconfig_writes: AtomicU64,
    pub conflist_writes: AtomicU64,
    /// How often somebody began to take our entry out again and again.
    pub fights: AtomicU64,
    pub reconciles: AtomicU64,
    pub reconcile_errors: AtomicU64,
    /// 1 as long as the bin dir has none of the network's plugins.
    pub foreign_bin_dir: AtomicU64,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            ready: Mutex::new(Err("nothing is verified yet".into())),
            binary_writes: AtomicU64::default(),
            kubeconfig_writes: AtomicU64::default(),
            conflist_writes: AtomicU64::default(),
            fights: AtomicU64::default(),
            reconciles: AtomicU64::default(),
            reconcile_errors: AtomicU64::default(),
            foreign_bin_dir: AtomicU64::default(),
        }
    }
}

impl Status {
    /// Counts one event.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets what `/ready` answers.
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }

    /// Whether all was right when it was last looked at, or what was not.
    pub fn ready(&self) -> Result<(), String> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.clone()
    }

    /// The metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let ready = AtomicU64::new(self.ready().is_ok().into());
        for (name, kind, help, value) in [
            (
                "ready",
                "gauge",
                "Whether binary, kubeconfig and network configuration are right.",
                &ready,
            ),
            (
                "binary_writes_total",
                "counter",
                "Programs copied to the host.",
                &self.binary_writes,
            ),
            (
                "kubeconfig_writes_total",
                "counter",
                "Kubeconfigs written to the host.",
                &self.kubeconfig_writes,
            ),
            (
                "conflist_writes_total",
                "counter",
                "Network configurations written to the host.",
                &self.conflist_writes,
            ),
            (
                "fights_total",
                "counter",
                "Times that another program began to remove our entry again and again.",
                &self.fights,
            ),
            (
                "reconcile_total",
                "counter",
                "Looks at the host.",
                &self.reconciles,
            ),
            (
                "reconcile_errors_total",
                "counter",
                "Looks that found something wrong which could not be put right.",
                &self.reconcile_errors,
            ),
            (
                "bin_dir_without_plugins",
                "gauge",
                "Whether the bin dir holds none of the plugins that the network names.",
                &self.foreign_bin_dir,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP linkerd_cni_agent_{name} {help}\n\
                 # TYPE linkerd_cni_agent_{name} {kind}\n\
                 linkerd_cni_agent_{name} {value}\n"
            );
        }
        text
    }
}
