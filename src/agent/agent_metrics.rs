//! The agent's metrics.

mod plugin_calls;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::kube::request_metrics;
use crate::log::stderr;
use crate::metrics::{
    Counters, Labels, label, metrics, openmetrics, register, register_build_info, register_each,
};
use crate::verdict::reason::Reason;
pub use plugin_calls::PluginCalls;

metrics! {
    /// All metrics of the agent, except those of the plugin's calls.
    AgentMetrics "linkerd_cni_agent" [request_metrics::register, register_build_info]
    ready: Gauge = register "Whether `/ready` responds with 200"
    binary_writes: Counter = register "Plugin binaries copied to the host"
    kubeconfig_writes: Counter = register "Kubeconfigs written to the host"
    conflist_writes: Counter = register "Network configs written to the host"
    contention_active: Gauge = register
        "Whether another writer keeps overwriting a network config, the kubeconfig or a plugin binary now"
    plugin_entry_restores: Counter = register
        "Times that the plugin entry was restored in a network config from which another program had removed it"
    conflist_without_entry_seconds: Counter<f64, AtomicU64> = register
        "Time in which the active conflist lacked the plugin entry while the agent ran"
    token_expiration_timestamp_seconds: Gauge = register
        "When the token in the kubeconfig on the host expires, as Unix time; 0 if unknown"
    reconcile: Counter = register "Reconcile passes"
    reconcile_errors: Counter = register
        "Reconcile passes with a problem that could not be corrected"
    token_request_failed: Gauge = register
        "Whether the last request for a token of the plugin's ServiceAccount failed"
    published_pods: Gauge = register "Pods of this node that the plugin finds in the node's copy"
    pod_copy_current: Gauge = register
        "Whether the node's copy of its pods is current, so that the plugin waits for new pods there: the pods were listed, and the watch has not failed twice in a row since"
    log_lines_dropped: Counter = register
        "Log lines dropped because stderr was full, closed or not read"
    bypassing_pods: Family<Labels<1>, Gauge> = register_each
        "Meshed pods of this node with a path around the proxy, or of which that is unknown, by the reason in `linkerd cni bypass`"
        (Reason::ALL.iter().map(|reason| [label("reason", reason.label())]))
    self_tests: Counters<1> = register_each "Self-tests of the plugin, by result"
        (["passed", "skipped", "failed"].map(|result| [label("result", result)]))
}

impl AgentMetrics {
    pub fn set_bypassing_pods(&self, counts: &BTreeMap<String, usize>) {
        for reason in Reason::ALL {
            let count = counts.get(reason.label()).copied().unwrap_or_default();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.bypassing_pods.get_or_create(&[label("reason", reason.label())]).set(count);
        }
    }

    pub fn count_self_test(&self, result: &str) {
        self.self_tests.get_or_create(&[label("result", result)]).inc();
    }

    pub fn render(&self, plugin: &PluginCalls) -> String {
        // The logger counts the dropped lines itself, so its count is copied before each rendering.
        self.log_lines_dropped.inner().store(stderr::dropped_line_count(), Ordering::Relaxed);
        openmetrics([&self.registry, &plugin.registry])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_documented;

    #[test]
    fn the_docs_list_every_metric_of_the_agent_by_family() {
        let text = AgentMetrics::default().render(&PluginCalls::default());
        assert_documented(&text, &["linkerd_cni_agent_", "linkerd_cni_plugin_"]);
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
