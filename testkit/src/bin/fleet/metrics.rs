//! The API server's own metrics.

use std::io::Read as _;

use linkerd2_cni::kube::Client;

/// One sample of the metrics that the report uses. Counters start at the API server's start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metrics {
    pub cpu_seconds: f64,
    pub memory_bytes: f64,
    /// Watches of pods that are open now.
    pub pod_watches: usize,
    /// Bytes of responses to lists, GETs and POSTs.
    pub response_bytes: f64,
    /// Bytes of events in watches of pods.
    pub watch_bytes: f64,
    /// Lists of pods that etcd answered.
    pub etcd_pod_lists: f64,
    /// Lists of pods that the cache answered.
    pub cache_pod_lists: f64,
    /// Pods that the cache read for these lists.
    pub cache_pods_read: f64,
}

impl Metrics {
    pub fn read(client: &Client) -> anyhow::Result<Metrics> {
        let mut text = String::new();
        client.read_list("/metrics")?.read_to_string(&mut text)?;
        let sum = |name: &str, labels: &[&str]| sum(&text, name, labels);
        let response_bytes = |verb: &str| sum("apiserver_response_sizes_sum", &[verb]);
        Ok(Metrics {
            cpu_seconds: sum("process_cpu_seconds_total", &[]),
            memory_bytes: sum("process_resident_memory_bytes", &[]),
            pod_watches: sum(
                "apiserver_longrunning_requests",
                &["resource=\"pods\"", "verb=\"WATCH\"", "scope=\"cluster\""],
            ) as usize,
            response_bytes: ["LIST", "GET", "POST"]
                .map(|verb| response_bytes(&format!("verb=\"{verb}\"")))
                .iter()
                .sum(),
            watch_bytes: sum("apiserver_watch_events_sizes_sum", &["resource=\"pods\""]),
            etcd_pod_lists: sum(
                "etcd_request_duration_seconds_count",
                &["operation=\"list\"", "pods\""],
            ),
            cache_pod_lists: sum("apiserver_cache_list_total", &["pods\""]),
            cache_pods_read: sum("apiserver_cache_list_fetched_objects_total", &["pods\""]),
        })
    }
}

/// Sum of all series of the metric `name` whose labels contain all of `labels`.
fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let series = text.lines().filter_map(|line| line.strip_prefix(name));
    let series = series.filter(|rest| rest.starts_with(['{', ' ']));
    let series = series.filter(|rest| labels.iter().all(|label| rest.contains(label)));
    series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
