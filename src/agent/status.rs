//! The agent's state for `/ready` and `/metrics`.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::node_status::NodeStatus;
use super::passes::Passes;
use super::plugin_counters::PluginCounters;
use crate::kube::request_metrics;
use crate::log::stderr;
use crate::metrics::{Counters, openmetrics, register, register_build_info};

/// Readiness and metrics, shared between the agent's threads and the admin listener.
#[derive(Debug)]
pub struct Status {
    registry: Registry,
    ready: Mutex<Result<(), String>>,
    ready_gauge: Gauge,
    /// Text that `/ready` adds to a response of 200.
    ready_note: Mutex<Option<String>>,
    node: Mutex<NodeStatus>,
    /// The signal that stops the agent, if there was one.
    stopped_by: Mutex<Option<String>>,
    passes: Mutex<Passes>,
    /// Why only a restart of the container corrects the mounts, if they are stale.
    stale_mount: Mutex<Option<String>>,
    pub binary_writes: Counter,
    pub kubeconfig_writes: Counter,
    pub conflist_writes: Counter,
    pub contentions: Counter,
    pub contention_active: Gauge,
    pub rechains: Counter,
    /// Seconds in which the active conflist lacked the plugin entry.
    pub without_entry: Counter<f64, AtomicU64>,
    /// When the token in the kubeconfig expires, as Unix time in seconds; 0 if unknown.
    pub token_expiration: Gauge,
    pub reconciles: Counter,
    pub reconcile_errors: Counter,
    pub bin_dir_without_plugins: Gauge,
    pub token_request_failed: Gauge,
    pub plugin: PluginCounters,
    pub self_tests_passed: Counter,
    pub self_tests_passed_with_auto: Counter,
    pub self_tests_skipped: Counter,
    pub self_tests_failed: Counter,
}

impl Status {
    /// `resync` is the longest time between two reconcile passes.
    pub fn new(resync: Duration) -> Status {
        let mut registry = Registry::default();
        let plugin =
            PluginCounters::register(registry.sub_registry_with_prefix("linkerd_cni_plugin"));
        let agent = registry.sub_registry_with_prefix("linkerd_cni_agent");
        agent.register_collector(Box::new(DroppedLogLines));
        request_metrics::register(agent);
        register_build_info(agent);
        let without_entry = Counter::default();
        agent.register_with_unit(
            "conflist_without_entry",
            "Time in which the active conflist lacked the plugin entry while the agent ran",
            Unit::Seconds,
            without_entry.clone(),
        );
        let token_expiration = Gauge::default();
        agent.register_with_unit(
            "token_expiration_timestamp",
            "When the token in the kubeconfig on the host expires, as Unix time; 0 if unknown",
            Unit::Seconds,
            token_expiration.clone(),
        );
        let self_tests: Counters<1> =
            register(agent, "self_tests", "Self-tests of the plugin, by result");
        let self_tests =
            |result: &str| self_tests.get_or_create_owned(&[("result", result.into())]);
        Status {
            ready: Mutex::new(Err("the first reconcile pass has not finished".into())),
            ready_gauge: register(agent, "ready", "Whether `/ready` responds with 200"),
            ready_note: Mutex::default(),
            node: Mutex::default(),
            stopped_by: Mutex::default(),
            passes: Mutex::new(Passes::new(resync, Instant::now())),
            stale_mount: Mutex::default(),
            binary_writes: register(agent, "binary_writes", "Plugin binaries copied to the host"),
            kubeconfig_writes: register(
                agent,
                "kubeconfig_writes",
                "Kubeconfigs written to the host",
            ),
            conflist_writes: register(
                agent,
                "conflist_writes",
                "Network configs written to the host",
            ),
            contentions: register(
                agent,
                "contentions",
                "Times that contention began: another writer keeps overwriting a network config, the \
                 kubeconfig or a plugin binary",
            ),
            contention_active: register(
                agent,
                "contention_active",
                "Whether another writer keeps overwriting a file now",
            ),
            rechains: register(
                agent,
                "rechains",
                "Times that the plugin was chained again to a network config from which another program had removed the plugin entry",
            ),
            without_entry,
            token_expiration,
            reconciles: register(agent, "reconcile", "Reconcile passes"),
            reconcile_errors: register(
                agent,
                "reconcile_errors",
                "Reconcile passes with a problem that could not be corrected",
            ),
            bin_dir_without_plugins: register(
                agent,
                "bin_dir_without_plugins",
                "Whether the bin dir has none of the plugins that the active conflist names",
            ),
            token_request_failed: register(
                agent,
                "token_request_failed",
                "Whether the last request for a token of the plugin's ServiceAccount failed",
            ),
            plugin,
            self_tests_passed: self_tests("passed"),
            self_tests_passed_with_auto: self_tests("passed_with_auto"),
            self_tests_skipped: self_tests("skipped"),
            self_tests_failed: self_tests("failed"),
            registry,
        }
    }

    /// Sets the state that `/ready` reports; `Err` says why the node is not ready.
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }

    /// Makes `/ready` name `signal` from now on, whatever later passes find.
    pub fn stop(&self, signal: &str) {
        let mut stopped_by = self.stopped_by.lock().unwrap_or_else(PoisonError::into_inner);
        *stopped_by = Some(signal.to_owned());
    }

    /// Returns `Ok` if the last pass found the node ready and is recent.
    ///
    /// # Errors
    /// Why the node is not ready: a stop signal, no recent pass, or the problems of the last pass.
    pub fn ready(&self) -> Result<(), String> {
        let stopped_by = self.stopped_by.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(signal) = &*stopped_by {
            return Err(format!("received {signal}"));
        }
        self.passes().recent(Instant::now())?;
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.clone()
    }

    /// Returns whether the agent's main thread makes progress, on directories that are the node's.
    ///
    /// # Errors
    /// Says for how long it has not, or which directory is stale.
    pub fn live(&self) -> Result<(), String> {
        self.passes().progressing(Instant::now())?;
        let stale = self.stale_mount.lock().unwrap_or_else(PoisonError::into_inner);
        stale.clone().map_or(Ok(()), Err)
    }

    /// Makes `/live` fail with `why` from now on, so that the kubelet restarts the container.
    pub fn set_stale_mount(&self, why: &str) {
        let mut stale = self.stale_mount.lock().unwrap_or_else(PoisonError::into_inner);
        *stale = Some(why.to_owned());
    }

    /// Locks and returns the times of the reconcile passes.
    pub fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the texts that `/ready` adds to a response of 200.
    pub fn set_ready_notes(&self, notes: &[String]) {
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        *self.ready_note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Returns the text that `/ready` adds to a response of 200, if any.
    pub fn ready_note(&self) -> Option<String> {
        let note = self.ready_note.lock().unwrap_or_else(PoisonError::into_inner);
        note.clone()
    }

    /// Sets what the last pass found, for `/status`.
    pub fn set_node(&self, node: NodeStatus) {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// Renders the body of `/status`: the last pass, with the present readiness.
    pub fn node_status(&self) -> String {
        let last_pass = self.node.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let not_ready = self.ready().err();
        last_pass.render(not_ready, self.ready_note())
    }

    /// Renders the metrics in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        self.ready_gauge.set(self.ready().is_ok().into());
        openmetrics(&self.registry)
    }
}

/// Counts the log lines that the logger, which is not part of the agent, has dropped.
#[derive(Debug)]
struct DroppedLogLines;

impl Collector for DroppedLogLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counter = ConstCounter::new(stderr::dropped());
        counter.encode(encoder.encode_descriptor(
            "log_lines_dropped",
            "Log lines dropped because stderr was full, closed or not read.",
            None,
            counter.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_documented;

    #[test]
    fn the_docs_list_every_metric_of_the_agent() {
        assert_documented(
            &Status::new(std::time::Duration::from_secs(30)).metrics(),
            &["linkerd_cni_agent_", "linkerd_cni_plugin_"],
        );
    }

    #[test]
    fn metrics_list_each_sample_under_its_family_and_end_with_eof() {
        let text = Status::new(Duration::from_secs(30)).metrics();
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
