//! Counts the requests of this process to the API server, by the class of the response.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;

/// Values of the label `status`: the classes of HTTP status, `other` for 1xx and 3xx, and `none`
/// for a request without response.
const STATUSES: [&str; 5] = ["2xx", "4xx", "5xx", "other", "none"];

static REQUESTS: [AtomicU64; STATUSES.len()] = [const { AtomicU64::new(0) }; STATUSES.len()];

/// Counts a request. `status` is the HTTP status of the response, if there was one.
pub(super) fn count(status: Option<u16>) {
    let class = match status {
        Some(200..=299) => 0,
        Some(400..=499) => 1,
        Some(500..=599) => 2,
        Some(_) => 3,
        None => 4,
    };
    REQUESTS[class].fetch_add(1, Ordering::Relaxed);
}

/// Adds the counter `api_requests` to the group.
pub fn register(group: &mut Registry) {
    group.register_collector(Box::new(Requests));
}

#[derive(Debug)]
struct Requests;

impl Collector for Requests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "api_requests",
            "Requests of this program to the API server, by class of the HTTP status.",
            None,
            MetricType::Counter,
        )?;
        for (status, requests) in STATUSES.into_iter().zip(&REQUESTS) {
            let counter = ConstCounter::new(requests.load(Ordering::Relaxed));
            counter.encode(family.encode_family(&[("status", status)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::openmetrics;

    #[test]
    fn requests_are_counted_by_the_class_of_the_status() {
        for status in [Some(201), Some(404), Some(503), Some(302), None] {
            count(status);
        }
        let mut registry = Registry::default();
        register(registry.sub_registry_with_prefix("x"));
        let text = openmetrics([&registry]);
        for status in STATUSES {
            let sample = format!("x_api_requests_total{{status=\"{status}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&sample)).unwrap();
            assert_ne!(value, "0", "{text}");
        }
    }
}
