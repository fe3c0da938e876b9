//! The agent's state for `/ready` and `/metrics`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::tally::Tally;
use crate::log::stderr;

/// Readiness and counters, shared between the agent's threads and the admin listener.
#[derive(Debug)]
pub struct Status {
    ready: Mutex<Result<(), String>>,
    /// Text that `/ready` adds to a response of 200.
    ready_note: Mutex<Option<String>>,
    pub binary_writes: AtomicU64,
    pub kubeconfig_writes: AtomicU64,
    pub conflist_writes: AtomicU64,
    /// Number of times that contention over the plugin entry began.
    pub contentions: AtomicU64,
    pub reconciles: AtomicU64,
    pub reconcile_errors: AtomicU64,
    /// 1 while the bin dir holds none of the plugins that the active conflist names.
    pub bin_dir_without_plugins: AtomicU64,
    /// 1 while the kubeconfig contains the agent's own token.
    pub uses_agent_token: AtomicU64,
    /// Counters over the plugin's records.
    pub records: Tally,
    pub self_tests_passed: AtomicU64,
    pub self_tests_skipped: AtomicU64,
    pub self_tests_failed: AtomicU64,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            ready: Mutex::new(Err("nothing is verified yet".into())),
            ready_note: Mutex::default(),
            binary_writes: AtomicU64::default(),
            kubeconfig_writes: AtomicU64::default(),
            conflist_writes: AtomicU64::default(),
            contentions: AtomicU64::default(),
            reconciles: AtomicU64::default(),
            reconcile_errors: AtomicU64::default(),
            bin_dir_without_plugins: AtomicU64::default(),
            uses_agent_token: AtomicU64::default(),
            records: Tally::default(),
            self_tests_passed: AtomicU64::default(),
            self_tests_skipped: AtomicU64::default(),
            self_tests_failed: AtomicU64::default(),
        }
    }
}

impl Status {
    /// Increments `counter`.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the state that `/ready` reports; `Err` says what is wrong.
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }

    /// Returns whether everything was right in the last pass, or what was wrong.
    pub fn ready(&self) -> Result<(), String> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.clone()
    }

    /// Sets the text that `/ready` adds to a response of 200.
    pub fn set_ready_note(&self, note: Option<String>) {
        *self.ready_note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Returns the text that `/ready` adds to a response of 200, if any.
    pub fn ready_note(&self) -> Option<String> {
        let note = self.ready_note.lock().unwrap_or_else(PoisonError::into_inner);
        note.clone()
    }

    /// Renders the metrics in the OpenMetrics text format.
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
            ("binary_writes_total", "counter", "Programs copied to the host.", &self.binary_writes),
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
                &self.contentions,
            ),
            ("reconcile_total", "counter", "Looks at the host.", &self.reconciles),
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
                &self.bin_dir_without_plugins,
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
                &self.uses_agent_token,
            ),
        ] {
            let value = value.load(Ordering::Relaxed);
            // In OpenMetrics the family of a counter has no `_total`; its samples have.
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
            let _ =
                writeln!(text, "linkerd_cni_agent_self_tests_total{{result=\"{result}\"}} {value}");
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
    fn metrics_list_each_sample_under_its_family_and_end_with_eof() {
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
