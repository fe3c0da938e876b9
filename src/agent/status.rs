//! What the agent tells about itself: readiness and counters.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::tally::Tally;
use crate::log::stderr;

/// Shared between the agent and its admin listener.
#[derive(Debug)]
pub struct Status {
    ready: Mutex<Result<(), String>>,
    /// What `/ready` adds to its 200.
    remark: Mutex<Option<String>>,
    pub binary_writes: AtomicU64,
    pub kubeconfig_writes: AtomicU64,
    pub conflist_writes: AtomicU64,
    /// How often somebody began to take our entry out again and again.
    pub fights: AtomicU64,
    pub reconciles: AtomicU64,
    pub reconcile_errors: AtomicU64,
    /// 1 as long as the bin dir has none of the network's plugins.
    pub foreign_bin_dir: AtomicU64,
    /// 1 as long as the kubeconfig carries the agent's own token.
    pub agents_token: AtomicU64,
    /// What the plugin reports.
    pub records: Tally,
    pub self_tests_passed: AtomicU64,
    pub self_tests_skipped: AtomicU64,
    pub self_tests_failed: AtomicU64,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            ready: Mutex::new(Err("nothing is verified yet".into())),
            remark: Mutex::default(),
            binary_writes: AtomicU64::default(),
            kubeconfig_writes: AtomicU64::default(),
            conflist_writes: AtomicU64::default(),
            fights: AtomicU64::default(),
            reconciles: AtomicU64::default(),
            reconcile_errors: AtomicU64::default(),
            foreign_bin_dir: AtomicU64::default(),
            agents_token: AtomicU64::default(),
            records: Tally::default(),
            self_tests_passed: AtomicU64::default(),
            self_tests_skipped: AtomicU64::default(),
            self_tests_failed: AtomicU64::default(),
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

    /// Sets what `/ready` adds to its 200.
    pub fn set_remark(&self, remark: Option<String>) {
        *self.remark.lock().unwrap_or_else(PoisonError::into_inner) = remark;
    }

    /// What `/ready` adds to its 200, if anything.
    pub fn remark(&self) -> Option<String> {
        let remark = self.remark.lock().unwrap_or_else(PoisonError::into_inner);
        remark.clone()
    }

    /// The metrics in the text format of OpenMetrics.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let ready = AtomicU64::new(self.ready().is_ok().into());
        let dropped = AtomicU64::new(stderr::dropped());
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
            (
                "log_lines_dropped_total",
                "counter",
                "Log lines dropped because stderr was full, closed or not read.",
                &dropped,
            ),
            (
                "kubeconfig_has_agents_token",
                "gauge",
                "Whether the kubeconfig on the host carries the agent's own token.",
                &self.agents_token,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            // OpenMetrics names the family without the suffix of its samples.
            let family = name.strip_suffix("_total").unwrap_or(name);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP linkerd_cni_agent_{family} {help}\n\
                 # TYPE linkerd_cni_agent_{family} {kind}\n\
                 linkerd_cni_agent_{name} {value}\n"
            );
        }
        text.push_str(
            "# HELP linkerd_cni_agent_self_tests Trials of the installed plugin.\n\
             # TYPE linkerd_cni_agent_self_tests counter\n",
        );
        for (result, value) in [
            ("passed", &self.self_tests_passed),
            ("skipped", &self.self_tests_skipped),
            ("failed", &self.self_tests_failed),
        ] {
            let value = value.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "linkerd_cni_agent_self_tests_total{{result=\"{result}\"}} {value}"
            );
        }
        self.records.write(&mut text);
        text.push_str("# EOF\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_belongs_to_the_family_above_it_and_the_text_has_an_end() {
        let text = Status::default().metrics();
        let mut family = "";
        for line in text.strip_suffix("# EOF\n").unwrap().lines() {
            match line.strip_prefix("# ").map(|rest| rest.split(' ')) {
                Some(mut words) => family = words.nth(1).unwrap(),
                None => assert!(line.starts_with(family), "{line} under {family}"),
            }
            assert!(!family.ends_with("_total"), "{family}");
        }
    }
}
