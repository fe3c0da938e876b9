//! Metrics of the controller. Metrics that upstream's controller also has keep its names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::kube::request_metrics;
use crate::metrics::{openmetrics, register, register_build_info, register_durations};

const PREFIX: &str = "linkerd_cni_repair_controller";

/// All counters and histograms of the controller.
pub struct Metrics {
    registry: Registry,
    pub queue_overflow: Counter,
    pub pods_held: Counter,
    pub pods_deleted: Counter,
    pub pods_delete_errors: Counter,
    pub pods_delete_timeout: Counter,
    pub pods_delete_latency: Histogram,
    pub events_publish_errors: Counter,
    pub events_publish_timeouts: Counter,
    pub events_publish_latency: Histogram,
    pub watch_errors: Counter,
    pub pods_repaired: Counter,
    pub pods_labelled: Counter,
    pub pods_reported: Counter,
    pub pods_skipped: Counter,
    pub repair_errors: Counter,
    pub agent_waits: Counter,
    pub budget_waits: Counter,
    pub audits: Counter,
    pub audit_pods_complete: Counter,
    pub audit_pods_incomplete: Counter,
    pub audit_pods_unreadable: Counter,
    pub audit_errors: Counter,
    pub audit_pods_drifted: Gauge,
    pub audit_repairs_suspended: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let group = registry.sub_registry_with_prefix(PREFIX);
        register_build_info(group);
        request_metrics::register(group);
        Metrics {
            queue_overflow: register(
                group,
                "queue_overflow",
                "Stranded pods dropped because the queue was full or the list too long",
            ),
            pods_held: register(
                group,
                "pods_held",
                "Stranded pods left unchanged for now, as an earlier repair of the pod or of its owner's last pod did not help",
            ),
            pods_deleted: register(group, "pods_deleted", "Evicted or deleted pods"),
            pods_delete_errors: register(
                group,
                "pods_delete_errors",
                "Failed attempts to delete a pod, without those that timed out",
            ),
            pods_delete_timeout: register(
                group,
                "pods_delete_timeout",
                "Pod deletions to which the API server did not respond in time",
            ),
            pods_delete_latency: register_durations(
                group,
                "pods_delete_latency",
                "Duration of successful pod deletions",
            ),
            events_publish_errors: register(
                group,
                "events_publish_errors",
                "Failed publications of Events",
            ),
            events_publish_timeouts: register(
                group,
                "events_publish_timeouts",
                "Publications of Events to which the API server did not respond in time",
            ),
            events_publish_latency: register_durations(
                group,
                "events_publish_latency",
                "Duration of successful publications of Events",
            ),
            watch_errors: register(
                group,
                "watch_errors",
                "Failed lists and watches of the node's pods",
            ),
            pods_repaired: register(group, "pods_repaired", "Pods repaired in place"),
            pods_labelled: register(group, "pods_labelled", "Labelled pods"),
            pods_reported: register(
                group,
                "pods_reported",
                "Stranded pods that were only reported",
            ),
            pods_skipped: register(
                group,
                "pods_skipped",
                "Stranded pods left unchanged because the eviction was rejected, nothing would replace the pod, the rules are unreadable, the validator fails in spite of all rules or the plugin installs no rules in the pod",
            ),
            repair_errors: register(
                group,
                "repair_errors",
                "Failed attempts to inspect, repair, label or report a pod",
            ),
            agent_waits: register(
                group,
                "agent_waits",
                "Times that a repair waited for the agent to be ready",
            ),
            budget_waits: register(
                group,
                "budget_waits",
                "Times that a repair waited for the repair budget",
            ),
            audits: register(group, "audits", "Audits of all running meshed pods of the node"),
            audit_pods_complete: register(
                group,
                "audit_pods_complete",
                "Audited pods with all redirect rules",
            ),
            audit_pods_incomplete: register(
                group,
                "audit_pods_incomplete",
                "Audited pods with missing or changed redirect rules",
            ),
            audit_pods_unreadable: register(
                group,
                "audit_pods_unreadable",
                "Audited pods with a table of iptables-legacy, which only the host's iptables can read, or with too many rules",
            ),
            audit_errors: register(
                group,
                "audit_errors",
                "Failed audits, and pods whose rules an audit could not compare",
            ),
            audit_pods_drifted: register(
                group,
                "audit_pods_drifted",
                "Pods of the last audit whose redirect rules, with which they started, are not those of today's values and annotations",
            ),
            audit_repairs_suspended: register(
                group,
                "audit_repairs_suspended",
                "Whether the last audit repaired no pods, as more than half of them had missing or changed redirect rules",
            ),
            registry,
        }
    }
}

impl Metrics {
    /// Returns the OpenMetrics text.
    pub fn text(&self) -> String {
        openmetrics(&self.registry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_documented;

    #[test]
    fn the_docs_list_every_metric_of_the_controller() {
        assert_documented(&Metrics::default().text(), &[PREFIX]);
    }

    #[test]
    fn the_text_is_openmetrics_with_upstreams_names_and_buckets() {
        let metrics = Metrics::default();
        metrics.pods_deleted.inc();
        metrics.pods_deleted.inc();
        for millis in [5, 6, 1000, 1001, 60_000] {
            metrics.pods_delete_latency.observe(f64::from(millis) / 1000.0);
        }
        let text = metrics.text();
        assert!(text.ends_with("# EOF\n"));
        // The values of the API requests differ between runs.
        let controller_metrics: String = text
            .lines()
            .filter(|line| line.contains(PREFIX) && !line.contains("api_requests"))
            .map(|line| line.replace(env!("CARGO_PKG_VERSION"), "VERSION") + "\n")
            .collect();
        insta::assert_snapshot!(controller_metrics, @r#"
        # HELP linkerd_cni_repair_controller_build_info Version of the program.
        # TYPE linkerd_cni_repair_controller_build_info gauge
        linkerd_cni_repair_controller_build_info{version="VERSION"} 1
        # HELP linkerd_cni_repair_controller_queue_overflow Stranded pods dropped because the queue was full or the list too long.
        # TYPE linkerd_cni_repair_controller_queue_overflow counter
        linkerd_cni_repair_controller_queue_overflow_total 0
        # HELP linkerd_cni_repair_controller_pods_held Stranded pods left unchanged for now, as an earlier repair of the pod or of its owner's last pod did not help.
        # TYPE linkerd_cni_repair_controller_pods_held counter
        linkerd_cni_repair_controller_pods_held_total 0
        # HELP linkerd_cni_repair_controller_pods_deleted Evicted or deleted pods.
        # TYPE linkerd_cni_repair_controller_pods_deleted counter
        linkerd_cni_repair_controller_pods_deleted_total 2
        # HELP linkerd_cni_repair_controller_pods_delete_errors Failed attempts to delete a pod, without those that timed out.
        # TYPE linkerd_cni_repair_controller_pods_delete_errors counter
        linkerd_cni_repair_controller_pods_delete_errors_total 0
        # HELP linkerd_cni_repair_controller_pods_delete_timeout Pod deletions to which the API server did not respond in time.
        # TYPE linkerd_cni_repair_controller_pods_delete_timeout counter
        linkerd_cni_repair_controller_pods_delete_timeout_total 0
        # HELP linkerd_cni_repair_controller_pods_delete_latency_seconds Duration of successful pod deletions.
        # TYPE linkerd_cni_repair_controller_pods_delete_latency_seconds histogram
        # UNIT linkerd_cni_repair_controller_pods_delete_latency_seconds seconds
        linkerd_cni_repair_controller_pods_delete_latency_seconds_sum 62.012
        linkerd_cni_repair_controller_pods_delete_latency_seconds_count 5
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.005"} 1
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.01"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.025"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.05"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.1"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.25"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="0.5"} 2
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="1.0"} 3
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="2.5"} 4
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="5.0"} 4
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="10.0"} 4
        linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le="+Inf"} 5
        # HELP linkerd_cni_repair_controller_events_publish_errors Failed publications of Events.
        # TYPE linkerd_cni_repair_controller_events_publish_errors counter
        linkerd_cni_repair_controller_events_publish_errors_total 0
        # HELP linkerd_cni_repair_controller_events_publish_timeouts Publications of Events to which the API server did not respond in time.
        # TYPE linkerd_cni_repair_controller_events_publish_timeouts counter
        linkerd_cni_repair_controller_events_publish_timeouts_total 0
        # HELP linkerd_cni_repair_controller_events_publish_latency_seconds Duration of successful publications of Events.
        # TYPE linkerd_cni_repair_controller_events_publish_latency_seconds histogram
        # UNIT linkerd_cni_repair_controller_events_publish_latency_seconds seconds
        linkerd_cni_repair_controller_events_publish_latency_seconds_sum 0.0
        linkerd_cni_repair_controller_events_publish_latency_seconds_count 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.005"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.01"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.025"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.05"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.1"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.25"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="0.5"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="1.0"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="2.5"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="5.0"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="10.0"} 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_bucket{le="+Inf"} 0
        # HELP linkerd_cni_repair_controller_watch_errors Failed lists and watches of the node's pods.
        # TYPE linkerd_cni_repair_controller_watch_errors counter
        linkerd_cni_repair_controller_watch_errors_total 0
        # HELP linkerd_cni_repair_controller_pods_repaired Pods repaired in place.
        # TYPE linkerd_cni_repair_controller_pods_repaired counter
        linkerd_cni_repair_controller_pods_repaired_total 0
        # HELP linkerd_cni_repair_controller_pods_labelled Labelled pods.
        # TYPE linkerd_cni_repair_controller_pods_labelled counter
        linkerd_cni_repair_controller_pods_labelled_total 0
        # HELP linkerd_cni_repair_controller_pods_reported Stranded pods that were only reported.
        # TYPE linkerd_cni_repair_controller_pods_reported counter
        linkerd_cni_repair_controller_pods_reported_total 0
        # HELP linkerd_cni_repair_controller_pods_skipped Stranded pods left unchanged because the eviction was rejected, nothing would replace the pod, the rules are unreadable, the validator fails in spite of all rules or the plugin installs no rules in the pod.
        # TYPE linkerd_cni_repair_controller_pods_skipped counter
        linkerd_cni_repair_controller_pods_skipped_total 0
        # HELP linkerd_cni_repair_controller_repair_errors Failed attempts to inspect, repair, label or report a pod.
        # TYPE linkerd_cni_repair_controller_repair_errors counter
        linkerd_cni_repair_controller_repair_errors_total 0
        # HELP linkerd_cni_repair_controller_agent_waits Times that a repair waited for the agent to be ready.
        # TYPE linkerd_cni_repair_controller_agent_waits counter
        linkerd_cni_repair_controller_agent_waits_total 0
        # HELP linkerd_cni_repair_controller_budget_waits Times that a repair waited for the repair budget.
        # TYPE linkerd_cni_repair_controller_budget_waits counter
        linkerd_cni_repair_controller_budget_waits_total 0
        # HELP linkerd_cni_repair_controller_audits Audits of all running meshed pods of the node.
        # TYPE linkerd_cni_repair_controller_audits counter
        linkerd_cni_repair_controller_audits_total 0
        # HELP linkerd_cni_repair_controller_audit_pods_complete Audited pods with all redirect rules.
        # TYPE linkerd_cni_repair_controller_audit_pods_complete counter
        linkerd_cni_repair_controller_audit_pods_complete_total 0
        # HELP linkerd_cni_repair_controller_audit_pods_incomplete Audited pods with missing or changed redirect rules.
        # TYPE linkerd_cni_repair_controller_audit_pods_incomplete counter
        linkerd_cni_repair_controller_audit_pods_incomplete_total 0
        # HELP linkerd_cni_repair_controller_audit_pods_unreadable Audited pods with a table of iptables-legacy, which only the host's iptables can read, or with too many rules.
        # TYPE linkerd_cni_repair_controller_audit_pods_unreadable counter
        linkerd_cni_repair_controller_audit_pods_unreadable_total 0
        # HELP linkerd_cni_repair_controller_audit_errors Failed audits, and pods whose rules an audit could not compare.
        # TYPE linkerd_cni_repair_controller_audit_errors counter
        linkerd_cni_repair_controller_audit_errors_total 0
        # HELP linkerd_cni_repair_controller_audit_pods_drifted Pods of the last audit whose redirect rules, with which they started, are not those of today's values and annotations.
        # TYPE linkerd_cni_repair_controller_audit_pods_drifted gauge
        linkerd_cni_repair_controller_audit_pods_drifted 0
        # HELP linkerd_cni_repair_controller_audit_repairs_suspended Whether the last audit repaired no pods, as more than half of them had missing or changed redirect rules.
        # TYPE linkerd_cni_repair_controller_audit_repairs_suspended gauge
        linkerd_cni_repair_controller_audit_repairs_suspended 0
        "#);
    }
}
