//! Parses the events of a watch of pods while they arrive, so that memory holds one pod at a time.

use std::io::BufRead;

use serde::Deserialize;

use super::types::{AnyObject, ApiStatus, Pod};

/// An event of a watch:
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/watch-event-v1-meta/>
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub enum WatchEvent {
    Added(Pod),
    Modified(Pod),
    Deleted(AnyObject),
    Bookmark(AnyObject),
    Error(ApiStatus),
}

/// Returns an iterator over the events of a watch, which ends with the watch. It yields an error
/// for an invalid or incomplete event.
pub fn parse_events(
    response: impl BufRead,
) -> impl Iterator<Item = serde_json::Result<WatchEvent>> {
    serde_json::Deserializer::from_reader(response).into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_events_are_read_in_order_until_the_stream_is_cut_off() {
        let read: Vec<String> = parse_events(include_bytes!("watch_events.jsonl").as_slice())
            .map(|event| match event {
                Ok(WatchEvent::Added(pod)) => format!("added {}", pod.metadata.name),
                Ok(WatchEvent::Modified(pod)) => format!("modified {}", pod.metadata.name),
                Ok(WatchEvent::Deleted(at)) => format!("deleted {}", at.metadata.resource_version),
                Ok(WatchEvent::Bookmark(at)) => at.metadata.resource_version,
                Ok(WatchEvent::Error(status)) => format!("{} {:?}", status.code, status.message),
                Err(error) => format!("cut off: {}", error.is_eof()),
            })
            .collect();
        assert_eq!(
            read,
            ["added a", "modified a", "deleted 7", "8", "9", "410 Some(\"old\")", "cut off: true"]
        );
    }
}
