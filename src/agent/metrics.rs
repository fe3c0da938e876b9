//! The agent's metrics.

mod plugin_calls;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::config::bypass::Reason;
use crate::kube::request_metrics;
use crate::log::stderr;
use crate::metrics::{Counters, Labels, openmetrics, register, register_build_info, register_each};
use plugin_calls::PluginCalls;

/// Values of the label `result` of `self_tests`.
const SELF_TEST_RESULTS: [&str; 4] = ["passed", "passed_with_auto", "skipped", "failed"];

/// All metrics of the agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub ready: Gauge,
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
    pub token_request_failed: Gauge,
    pub published_pods: Gauge,
    pub pod_copy_kept: Gauge,
    bypassing_pods: Family<Labels<1>, Gauge>,
    pub plugin: PluginCalls,
    self_tests: Counters<1>,
    log_lines_dropped: Counter,
}

fn bypass_labels(reason: &Reason) -> Labels<1> {
    [("reason", reason.label().to_owned())]
}

impl Metrics {
    pub fn register() -> Metrics {
        let mut registry = Registry::default();
        let plugin = PluginCalls::register(registry.sub_registry_with_prefix("linkerd_cni_plugin"));
        let agent = registry.sub_registry_with_prefix("linkerd_cni_agent");
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
        Metrics {
            ready: register(agent, "ready", "Whether `/ready` responds with 200"),
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
            token_request_failed: register(
                agent,
                "token_request_failed",
                "Whether the last request for a token of the plugin's ServiceAccount failed",
            ),
            published_pods: register(
                agent,
                "published_pods",
                "Pods of this node that the plugin finds in the node's copy",
            ),
            pod_copy_kept: register(
                agent,
                "pod_copy_kept",
                "Whether the plugin may wait for pods in the node's copy: they were listed, and the watch \
                 has not failed twice in a row since",
            ),
            log_lines_dropped: register(
                agent,
                "log_lines_dropped",
                "Log lines dropped because stderr was full, closed or not read",
            ),
            bypassing_pods: register_each(
                agent,
                "bypassing_pods",
                "Meshed pods of this node with a path around the proxy, by the reason in `linkerd cni bypass`",
                Reason::ALL.iter().map(bypass_labels),
            ),
            plugin,
            self_tests: register_each(
                agent,
                "self_tests",
                "Self-tests of the plugin, by result",
                SELF_TEST_RESULTS.map(|result| [("result", result.to_owned())]),
            ),
            registry,
        }
    }

    /// Sets the number of pods by reason.
    pub fn set_bypassing_pods(&self, counts: &BTreeMap<String, usize>) {
        for reason in Reason::ALL {
            let count = counts.get(reason.label()).copied().unwrap_or_default();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.bypassing_pods.get_or_create(&bypass_labels(reason)).set(count);
        }
    }

    /// Counts a self-test with this result, one of [`SELF_TEST_RESULTS`].
    pub fn count_self_test(&self, result: &str) {
        self.self_tests.get_or_create(&[("result", result.to_owned())]).inc();
    }

    /// Renders the metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        // The logger, which is not part of the agent, counts them.
        self.log_lines_dropped.inner().store(stderr::dropped(), Ordering::Relaxed);
        openmetrics(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_documented;

    #[test]
    fn the_docs_list_every_metric_of_the_agent() {
        assert_documented(
            &Metrics::register().render(),
            &["linkerd_cni_agent_", "linkerd_cni_plugin_"],
        );
    }

    #[test]
    fn metrics_list_each_sample_under_its_family_and_end_with_eof() {
        let text = Metrics::register().render();
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
