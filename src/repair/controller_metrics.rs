//! Metrics of the controller. Metrics that upstream's controller also has keep upstream's names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::kube::request_metrics;
use crate::metrics::{metrics, openmetrics, register, register_build_info, register_durations};

metrics! {
    /// All metrics of the controller.
    Metrics "linkerd_cni_repair_controller" [register_build_info, request_metrics::register]
    queue_overflow: Counter = register
        "Stranded pods dropped because the queue was full or the list too long"
    pods_held: Counter = register
        "Stranded pods left unchanged for now, as an earlier repair of the pod or of its owner's \
         last pod did not help"
    pods_delete_latency_seconds: Histogram = register_durations
        "Duration of successful pod deletions"
    pods_deleted: Counter = register "Evicted or deleted pods"
    pods_delete_errors: Counter = register
        "Failed attempts to delete a pod, without those that timed out"
    pods_delete_timeout: Counter = register
        "Pod deletions to which the API server did not respond in time"
    events_publish_errors: Counter = register "Failed publications of Events"
    events_publish_timeouts: Counter = register
        "Publications of Events to which the API server did not respond in time"
    events_publish_latency_seconds: Histogram = register_durations
        "Duration of successful publications of Events"
    watch_errors: Counter = register "Failed lists and watches of the node's pods"
    pods_repaired: Counter = register "Pods repaired in place"
    pods_reported: Counter = register "Stranded pods that were only reported"
    pods_skipped: Counter = register
        "Stranded pods left unchanged. The Event with action Skipping has the reason"
    repair_errors: Counter = register "Failed attempts to inspect, repair or report a pod"
    audits: Counter = register "Audits of all running meshed pods of the node"
    audit_pods_complete: Counter = register "Audited pods with all redirect rules"
    audit_pods_incomplete: Counter = register "Audited pods with missing or changed redirect rules"
    audit_pods_unreadable: Counter = register
        "Audited pods with a table of iptables-legacy, which only the host's iptables can read, or \
         with too many rules"
    audit_errors: Counter = register
        "Failed audits, and pods whose rules an audit could not compare"
    audit_pods_unknown: Gauge = register
        "Pods whose redirect rules audits could not read or compare for a minute. The Event with \
         reason LinkerdCNIRulesUnknown has the cause"
    audits_failing: Gauge = register
        "Whether audits have judged no pod for a minute. The log has the cause"
    audit_pods_drifted: Gauge = register
        "Pods of the last audit whose redirect rules, with which they started, are not those of \
         today's values, annotations and plugin"
    audit_repairs_suspended: Gauge = register
        "Mode delete: whether the last audit evicted no pods, as more than half of them had missing \
         or changed redirect rules"
}

impl Metrics {
    pub fn text(&self) -> String {
        openmetrics([&self.registry])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::assert_documented;

    #[test]
    fn the_docs_list_every_metric_of_the_controller() {
        assert_documented(&Metrics::default().text(), &["linkerd_cni_repair_controller"]);
    }

    #[test]
    fn the_text_is_openmetrics_with_upstreams_names_and_buckets() {
        let metrics = Metrics::default();
        metrics.pods_deleted.inc();
        metrics.pods_delete_latency_seconds.observe(1.001);
        let text = metrics.text();
        let prefix = "linkerd_cni_repair_controller_pods_delete_latency_seconds_bucket{le=\"";
        let buckets: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix(prefix)).collect();
        assert_eq!(
            buckets.join(" ").replace("\"} ", "="),
            "0.005=0 0.01=0 0.025=0 0.05=0 0.1=0 0.25=0 0.5=0 1.0=0 2.5=1 5.0=1 10.0=1 +Inf=1"
        );
        assert!(text.contains("\nlinkerd_cni_repair_controller_pods_deleted_total 1\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }
}
