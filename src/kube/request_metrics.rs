//! Counts the requests of this process to the API server, by the class of the response.

use std::sync::LazyLock;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Values of the label `status`: the classes of HTTP status, `other` for 1xx and 3xx, and `none`
/// for a request without response.
const STATUSES: [&str; 5] = ["2xx", "4xx", "5xx", "other", "none"];

static REQUESTS: LazyLock<Family<[(&str, &str); 1], Counter>> = LazyLock::new(Family::default);

/// Counts a request by the status code of its response. `None`: there was no response.
pub(super) fn count(status: Option<u16>) {
    let class = match status {
        Some(200..=299) => "2xx",
        Some(400..=499) => "4xx",
        Some(500..=599) => "5xx",
        Some(_) => "other",
        None => "none",
    };
    REQUESTS.get_or_create(&[("status", class)]).inc();
}

pub fn register(group: &mut Registry) {
    for status in STATUSES {
        drop(REQUESTS.get_or_create(&[("status", status)]));
    }
    let help = "Requests of this program to the API server, by class of the HTTP status";
    group.register("api_requests", help, REQUESTS.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::openmetrics;

    #[test]
    fn requests_are_counted_by_status_class() {
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
