//! Metrics of the controller and their OpenMetrics text. Metrics that upstream's controller
//! has, too, keep its names.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use super::histogram::Histogram;
use super::process;
use crate::metrics::family;

const PREFIX: &str = "linkerd_cni_repair_controller";

/// All counters and histograms of the controller.
#[derive(Default)]
pub struct Metrics {
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
    pub pods_left: Counter,
    pub repair_errors: Counter,
    pub agent_waits: Counter,
    pub rate_waits: Counter,
    pub audits: Counter,
    pub audit_right: Counter,
    pub audit_wrong: Counter,
    pub audit_unreadable: Counter,
    pub audit_errors: Counter,
}

/// A number that only grows.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn increment(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Metrics {
    /// Returns the OpenMetrics text. `started` is the start time of the process.
    pub fn text(&self, started: SystemTime) -> String {
        let mut out = String::new();
        for (name, help, counter) in [
            (
                "queue_overflow",
                "Stranded pods dropped because the queue was full",
                &self.queue_overflow,
            ),
            (
                "pods_held",
                "Stranded pods left alone for now because they, or their owner's last pod, were dealt with in vain",
                &self.pods_held,
            ),
            ("pods_deleted", "Pods deleted", &self.pods_deleted),
            (
                "pods_delete_errors",
                "Pod deletions refused by the API server or not delivered to it",
                &self.pods_delete_errors,
            ),
            (
                "pods_delete_timeout",
                "Pod deletions not answered in time",
                &self.pods_delete_timeout,
            ),
            (
                "events_publish_errors",
                "Events refused by the API server or not delivered to it",
                &self.events_publish_errors,
            ),
            (
                "events_publish_timeouts",
                "Events not answered in time",
                &self.events_publish_timeouts,
            ),
            (
                "watch_errors",
                "Lists and watches of the node's pods that failed",
                &self.watch_errors,
            ),
            ("pods_repaired", "Pods whose rules were put right in place", &self.pods_repaired),
            ("pods_labelled", "Pods labelled", &self.pods_labelled),
            ("pods_reported", "Stranded pods that were only reported", &self.pods_reported),
            (
                "pods_left",
                "Stranded pods left as they are: a disruption budget, or rules that cannot be read",
                &self.pods_left,
            ),
            (
                "repair_errors",
                "Failed attempts to repair, label or report a pod",
                &self.repair_errors,
            ),
            (
                "agent_waits",
                "Times that acting had to wait for the agent to be ready",
                &self.agent_waits,
            ),
            ("rate_waits", "Times that acting had to wait for the rate", &self.rate_waits),
            ("audits", "Audits of all running meshed pods of the node", &self.audits),
            ("audit_right", "Pods that an audit found with all their rules", &self.audit_right),
            (
                "audit_wrong",
                "Pods that an audit found with rules missing or changed",
                &self.audit_wrong,
            ),
            (
                "audit_unreadable",
                "Pods that an audit found with rules which only the host's iptables-legacy can read",
                &self.audit_unreadable,
            ),
            (
                "audit_errors",
                "Pods, or whole audits, that could not be audited",
                &self.audit_errors,
            ),
        ] {
            family(&mut out, &format!("{PREFIX}_{name}"), "counter", help);
            let _ = writeln!(out, "{PREFIX}_{name}_total {}", counter.0.load(Relaxed));
        }
        for (name, help, histogram) in [
            (
                "pods_delete_latency_seconds",
                "How long successful pod deletions took",
                &self.pods_delete_latency,
            ),
            (
                "events_publish_latency_seconds",
                "How long successful publications of events took",
                &self.events_publish_latency,
            ),
        ] {
            let name = format!("{PREFIX}_{name}");
            family(&mut out, &name, "histogram", help);
            histogram.write(&mut out, &name);
        }
        process::write(&mut out, started);
        out.push_str("# EOF\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_text_is_openmetrics_with_upstreams_names_and_buckets() {
        let metrics = Metrics::default();
        metrics.pods_deleted.increment();
        metrics.pods_deleted.increment();
        for millis in [5, 6, 1000, 1001, 60_000] {
            let took = Duration::from_millis(millis);
            metrics.pods_delete_latency.observe(took);
        }
        let started = UNIX_EPOCH + Duration::from_millis(1_767_225_600_250);
        let text = metrics.text(started);
        assert!(text.ends_with("# EOF\n"));
        // The values of the process metrics differ between runs.
        let controller_metrics: String = text
            .lines()
            .filter(|line| line.contains(PREFIX))
            .map(|line| format!("{line}\n"))
            .collect();
        insta::assert_snapshot!(controller_metrics, @r#"
        # HELP linkerd_cni_repair_controller_queue_overflow Stranded pods dropped because the queue was full.
        # TYPE linkerd_cni_repair_controller_queue_overflow counter
        linkerd_cni_repair_controller_queue_overflow_total 0
        # HELP linkerd_cni_repair_controller_pods_held Stranded pods left alone for now because they, or their owner's last pod, were dealt with in vain.
        # TYPE linkerd_cni_repair_controller_pods_held counter
        linkerd_cni_repair_controller_pods_held_total 0
        # HELP linkerd_cni_repair_controller_pods_deleted Pods deleted.
        # TYPE linkerd_cni_repair_controller_pods_deleted counter
        linkerd_cni_repair_controller_pods_deleted_total 2
        # HELP linkerd_cni_repair_controller_pods_delete_errors Pod deletions refused by the API server or not delivered to it.
        # TYPE linkerd_cni_repair_controller_pods_delete_errors counter
        linkerd_cni_repair_controller_pods_delete_errors_total 0
        # HELP linkerd_cni_repair_controller_pods_delete_timeout Pod deletions not answered in time.
        # TYPE linkerd_cni_repair_controller_pods_delete_timeout counter
        linkerd_cni_repair_controller_pods_delete_timeout_total 0
        # HELP linkerd_cni_repair_controller_events_publish_errors Events refused by the API server or not delivered to it.
        # TYPE linkerd_cni_repair_controller_events_publish_errors counter
        linkerd_cni_repair_controller_events_publish_errors_total 0
        # HELP linkerd_cni_repair_controller_events_publish_timeouts Events not answered in time.
        # TYPE linkerd_cni_repair_controller_events_publish_timeouts counter
        linkerd_cni_repair_controller_events_publish_timeouts_total 0
        # HELP linkerd_cni_repair_controller_watch_errors Lists and watches of the node's pods that failed.
        # TYPE linkerd_cni_repair_controller_watch_errors counter
        linkerd_cni_repair_controller_watch_errors_total 0
        # HELP linkerd_cni_repair_controller_pods_repaired Pods whose rules were put right in place.
        # TYPE linkerd_cni_repair_controller_pods_repaired counter
        linkerd_cni_repair_controller_pods_repaired_total 0
        # HELP linkerd_cni_repair_controller_pods_labelled Pods labelled.
        # TYPE linkerd_cni_repair_controller_pods_labelled counter
        linkerd_cni_repair_controller_pods_labelled_total 0
        # HELP linkerd_cni_repair_controller_pods_reported Stranded pods that were only reported.
        # TYPE linkerd_cni_repair_controller_pods_reported counter
        linkerd_cni_repair_controller_pods_reported_total 0
        # HELP linkerd_cni_repair_controller_pods_left Stranded pods left as they are: a disruption budget, or rules that cannot be read.
        # TYPE linkerd_cni_repair_controller_pods_left counter
        linkerd_cni_repair_controller_pods_left_total 0
        # HELP linkerd_cni_repair_controller_repair_errors Failed attempts to repair, label or report a pod.
        # TYPE linkerd_cni_repair_controller_repair_errors counter
        linkerd_cni_repair_controller_repair_errors_total 0
        # HELP linkerd_cni_repair_controller_agent_waits Times that acting had to wait for the agent to be ready.
        # TYPE linkerd_cni_repair_controller_agent_waits counter
        linkerd_cni_repair_controller_agent_waits_total 0
        # HELP linkerd_cni_repair_controller_rate_waits Times that acting had to wait for the rate.
        # TYPE linkerd_cni_repair_controller_rate_waits counter
        linkerd_cni_repair_controller_rate_waits_total 0
        # HELP linkerd_cni_repair_controller_audits Audits of all running meshed pods of the node.
        # TYPE linkerd_cni_repair_controller_audits counter
        linkerd_cni_repair_controller_audits_total 0
        # HELP linkerd_cni_repair_controller_audit_right Pods that an audit found with all their rules.
        # TYPE linkerd_cni_repair_controller_audit_right counter
        linkerd_cni_repair_controller_audit_right_total 0
        # HELP linkerd_cni_repair_controller_audit_wrong Pods that an audit found with rules missing or changed.
        # TYPE linkerd_cni_repair_controller_audit_wrong counter
        linkerd_cni_repair_controller_audit_wrong_total 0
        # HELP linkerd_cni_repair_controller_audit_unreadable Pods that an audit found with rules which only the host's iptables-legacy can read.
        # TYPE linkerd_cni_repair_controller_audit_unreadable counter
        linkerd_cni_repair_controller_audit_unreadable_total 0
        # HELP linkerd_cni_repair_controller_audit_errors Pods, or whole audits, that could not be audited.
        # TYPE linkerd_cni_repair_controller_audit_errors counter
        linkerd_cni_repair_controller_audit_errors_total 0
        # HELP linkerd_cni_repair_controller_pods_delete_latency_seconds How long successful pod deletions took.
        # TYPE linkerd_cni_repair_controller_pods_delete_latency_seconds histogram
        # UNIT linkerd_cni_repair_controller_pods_delete_latency_seconds seconds
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
        linkerd_cni_repair_controller_pods_delete_latency_seconds_count 5
        linkerd_cni_repair_controller_pods_delete_latency_seconds_sum 62.012
        # HELP linkerd_cni_repair_controller_events_publish_latency_seconds How long successful publications of events took.
        # TYPE linkerd_cni_repair_controller_events_publish_latency_seconds histogram
        # UNIT linkerd_cni_repair_controller_events_publish_latency_seconds seconds
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
        linkerd_cni_repair_controller_events_publish_latency_seconds_count 0
        linkerd_cni_repair_controller_events_publish_latency_seconds_sum 0.0
        "#);
    }
}
