//! Lists the Events about one pod.

use std::time::SystemTime;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::types::{Metadata, null_as_default, objects};
use super::{Client, Error};

objects! {
    /// An Event of the API group `""`, in the form in which the kubelet writes it.
    pub struct PodEvent {
        pub metadata: Metadata,
        /// Why the Event happened, as one CamelCase word.
        pub reason: String,
        pub message: String,
        pub source: EventSource,
        /// Time of the newest occurrence. RFC 3339, by the clock of the source.
        pub last_timestamp: Option<String>,
        /// Time of the first occurrence of an Event that the newer API wrote.
        pub event_time: Option<String>,
        pub series: EventSeries,
    }

    pub struct EventSource {
        /// Program that wrote the Event.
        pub component: String,
        /// Node on which the program runs.
        pub host: String,
    }

    pub struct EventSeries {
        pub last_observed_time: Option<String>,
    }

    pub struct PodEvents {
        pub items: Option<Vec<PodEvent>>,
    }
}

impl PodEvent {
    /// Returns when the Event happened last. `None` if it has no valid time.
    pub fn happened_last(&self) -> Option<SystemTime> {
        let texts = [&self.last_timestamp, &self.event_time, &self.series.last_observed_time];
        let mut newest = None;
        for text in texts.into_iter().flatten() {
            newest = newest.max(humantime::parse_rfc3339(text).ok());
        }
        newest
    }
}

/// Lists the Events about the pod with this UID. Needs the right to `list` `events` in the group
/// `""`.
///
/// The API server filters by the field, but reads all Events of the namespace from etcd, because its
/// cache has no Events. So callers limit how often they list.
pub fn list(client: &Client, namespace: &str, uid: &str) -> Result<Vec<PodEvent>, Error> {
    let selector = format!("involvedObject.uid={uid}");
    let selector = utf8_percent_encode(&selector, NON_ALPHANUMERIC);
    let namespace = utf8_percent_encode(namespace, NON_ALPHANUMERIC);
    let path = format!("/api/v1/namespaces/{namespace}/events?fieldSelector={selector}");
    let events: PodEvents = client.get(&path)?;
    Ok(events.items.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_event_happened_at_the_newest_of_its_times() {
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        for (name, times, expected) in [
            ("no time", json!({"lastTimestamp": null, "series": null}), None),
            ("an invalid time", json!({"lastTimestamp": "yesterday"}), None),
            ("the older API", json!({"lastTimestamp": "1970-01-01T00:00:07Z"}), at(7)),
            ("the newer API", json!({"eventTime": "1970-01-01T00:00:05.000000Z"}), at(5)),
            (
                "a series of the newer API",
                json!({
                    "eventTime": "1970-01-01T00:00:05.000000Z",
                    "series": {"lastObservedTime": "1970-01-01T00:00:09.000000Z"},
                }),
                at(9),
            ),
        ] {
            let event: PodEvent =
                serde_json::from_value::<Value>(times).and_then(serde_json::from_value).unwrap();
            assert_eq!(event.happened_last(), expected, "{name}");
        }
    }
}
