//! Time limits for the API requests of one plugin call, including retries.

use std::time::Duration;

use serde_json::Value;

/// Default limit for an ADD that needs the API server. Runtimes allow minutes for an ADD, and retry
/// a failed one.
pub const DEFAULT: Duration = Duration::from_secs(10);

/// Limit for calls that can do without the API server: every CHECK, and an ADD that the pod's
/// annotations can decide. Leaves time for one retry. While the API server is down, a longer limit
/// would delay every such call on the node.
pub const SHORT: Duration = Duration::from_secs(2);

/// Parses a whole number of seconds from 1 to 60. `None`: the value is invalid.
pub fn parse(value: &Value) -> Option<Duration> {
    match value.as_u64() {
        Some(seconds @ 1..=60) => Some(Duration::from_secs(seconds)),
        _ => None,
    }
}
