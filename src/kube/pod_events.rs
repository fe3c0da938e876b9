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
        /// Time of the first occurrence. RFC 3339, by the clock of the source.
        pub first_timestamp: Option<String>,
        /// Time of the newest occurrence.
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
        /// `EventList`. Empty or another name if the object is no list of Events.
        pub kind: String,
        pub items: Option<Vec<PodEvent>>,
    }
}

impl PodEvent {
    /// Returns the times at which the Event is known to have happened. Invalid times are left out.
    pub fn dates(&self) -> Vec<SystemTime> {
        let texts = [
            &self.first_timestamp,
            &self.last_timestamp,
            &self.event_time,
            &self.series.last_observed_time,
        ];
        let mut dates = Vec::new();
        for text in texts.into_iter().flatten() {
            dates.extend(humantime::parse_rfc3339(text));
        }
        dates
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
    if events.kind != "EventList" {
        // Otherwise, such an object would say that the pod has no Events.
        let (request, problem) = (format!("GET {path}"), "no list of Events".to_owned());
        return Err(Error::Decode { request, problem, is_truncated: false });
    }
    Ok(events.items.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::{Value, json};
    use testkit::api::Api;

    use super::*;
    use crate::kube::{Deadlines, SystemResolver, kubeconfig};

    #[test]
    fn only_a_list_of_events_says_that_a_pod_has_none() {
        let path = "/api/v1/namespaces/shop/events?fieldSelector=involvedObject%2Euid%3Du";
        for (response, expected) in [
            (json!({"kind": "EventList", "items": [{"reason": "Failed"}]}), Some(1)),
            (json!({"kind": "EventList", "items": null}), Some(0)),
            (json!({"kind": "PodList", "items": []}), None),
            (json!({"message": "no route"}), None),
        ] {
            let server = Api::start();
            server.answer(path, 200, &response.to_string());
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("kubeconfig");
            fs::write(&file, server.kubeconfig()).unwrap();
            let access = kubeconfig::read(&file).unwrap();
            let deadlines = Deadlines::per_phase(Duration::from_secs(30));
            let client = Client::new::<SystemResolver>(&access, "test", deadlines).unwrap();
            let count = list(&client, "shop", "u").ok().map(|events| events.len());
            assert_eq!(count, expected, "{response}");
        }
    }

    #[test]
    fn the_dates_of_an_event_are_its_valid_times() {
        for (name, times, expected) in [
            ("no time", json!({"lastTimestamp": null, "series": null}), vec![]),
            ("an invalid time", json!({"lastTimestamp": "yesterday"}), vec![]),
            (
                "the older API",
                json!({
                    "firstTimestamp": "1970-01-01T00:00:01Z",
                    "lastTimestamp": "1970-01-01T00:00:07Z",
                }),
                vec![1, 7],
            ),
            ("the newer API", json!({"eventTime": "1970-01-01T00:00:05.000000Z"}), vec![5]),
            (
                "a series of the newer API",
                json!({
                    "eventTime": "1970-01-01T00:00:05.000000Z",
                    "series": {"lastObservedTime": "1970-01-01T00:00:09.000000Z"},
                }),
                vec![5, 9],
            ),
        ] {
            let event: PodEvent =
                serde_json::from_value::<Value>(times).and_then(serde_json::from_value).unwrap();
            let expected: Vec<SystemTime> = expected
                .into_iter()
                .map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds))
                .collect();
            assert_eq!(event.dates(), expected, "{name}");
        }
    }
}
