//! How long one call of the plugin may spend on API requests, retries included.

use std::time::Duration;

use serde_json::Value;

/// Time for an ADD that needs the API server, unless the plugin entry sets another. Runtimes allow
/// minutes for an ADD and retry a failed one.
pub const DEFAULT: Duration = Duration::from_secs(10);

/// Longest time for an ADD if the annotations can decide without the API server, and for CHECK,
/// which succeeds without the API server. The time allows one retry. It is short, so that the pods
/// of a node start, or are checked, without a long wait while the API server is down.
pub const SHORT: Duration = Duration::from_secs(2);

/// Returns the time of a whole number from 1 to 60, in seconds. `None` for any other value.
pub fn parse(value: &Value) -> Option<Duration> {
    match value.as_u64() {
        Some(seconds @ 1..=60) => Some(Duration::from_secs(seconds)),
        _ => None,
    }
}
