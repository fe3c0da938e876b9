//! Parses lists and watches of pods while they arrive. Each pod is reduced or dropped before
//! the next is read, so that memory holds only one complete pod at a time.
//!
//! [`Client::read_list`](crate::kube::Client::read_list) limits a list to 128 MiB. This module
//! limits the number of pods that are kept.

use std::fmt;
use std::io::BufRead;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::stranded_pod::StrandedPod;
use crate::kube::types::{ListMetadata, Metadata, Pod, PodSpec, PodStatus};

/// The part of a pod that is kept of a list.
pub trait FromPod: Sized {
    /// Reduces the pod. `None` drops it.
    fn from_pod(pod: Pod) -> Option<Self>;
}

impl FromPod for StrandedPod {
    fn from_pod(pod: Pod) -> Option<Self> {
        StrandedPod::by_validator(&pod)
    }
}

/// Maximum number of pods kept from one list, to bound memory. Kubernetes plans for 110 pods per
/// node.
pub const MAX_PODS: usize = 1024;

/// The kept pods of a complete list.
#[derive(Debug)]
pub struct PodList<T> {
    /// resourceVersion of the list. A watch continues from there.
    pub resource_version: String,
    pub pods: Vec<T>,
    /// Number of further pods that exceed [`MAX_PODS`].
    pub dropped: usize,
}

/// Reads a list to its end. Fails if the list is incomplete, so that no repair is based on
/// a part of it.
pub fn list<T: FromPod>(response: impl BufRead) -> serde_json::Result<PodList<T>> {
    #[derive(Deserialize)]
    #[serde(bound = "T: FromPod")]
    struct ListBody<T> {
        #[serde(default)]
        metadata: ListMetadata,
        #[serde(deserialize_with = "reduce_items")]
        items: Items<T>,
    }

    let ListBody { metadata, items } = serde_json::from_reader(response)?;
    if metadata.resource_version.is_empty() {
        return Err(serde_json::Error::custom("the list has no resourceVersion"));
    }
    if !metadata.continue_token.is_empty() {
        return Err(serde_json::Error::custom("the list is only one page of a longer list"));
    }
    Ok(PodList {
        resource_version: metadata.resource_version,
        pods: items.kept,
        dropped: items.dropped,
    })
}

/// An event of a watch. The versions are resourceVersions.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// A pod was added or modified.
    Pod { version: String, stranded: Option<StrandedPod> },
    /// A bookmark, or a deleted pod.
    Other { version: String },
    /// The API server ended the watch; status code and message.
    Error { code: u16, message: String },
}

/// Iterates over the events of a watch until the watch ends. Yields an error for an invalid
/// or incomplete event.
pub fn events(response: impl BufRead) -> impl Iterator<Item = serde_json::Result<WatchEvent>> {
    serde_json::Deserializer::from_reader(response)
        .into_iter::<WatchLine>()
        .map(|line| line.map(WatchEvent::from))
}

#[derive(Deserialize)]
struct WatchLine {
    #[serde(rename = "type")]
    kind: String,
    object: WatchObject,
}

/// A pod, or a Status in an event of type `ERROR`.
#[derive(Deserialize)]
struct WatchObject {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default, deserialize_with = "pod_status")]
    status: PodStatus,
    #[serde(default)]
    code: u16,
    #[serde(default)]
    message: String,
}

impl From<WatchLine> for WatchEvent {
    fn from(WatchLine { kind, object }: WatchLine) -> WatchEvent {
        let version = object.metadata.resource_version.clone();
        match kind.as_str() {
            "ADDED" | "MODIFIED" => WatchEvent::Pod {
                version,
                stranded: StrandedPod::by_validator(&Pod {
                    kind: (),
                    metadata: object.metadata,
                    spec: object.spec,
                    status: object.status,
                }),
            },
            "ERROR" => WatchEvent::Error { code: object.code, message: object.message },
            _ => WatchEvent::Other { version },
        }
    }
}

struct Items<T> {
    kept: Vec<T>,
    dropped: usize,
}

/// Reduces each item before the next is read.
fn reduce_items<'de, D: Deserializer<'de>, T: FromPod>(items: D) -> Result<Items<T>, D::Error> {
    struct Pods<T>(PhantomData<T>);

    impl<'de, T: FromPod> Visitor<'de> for Pods<T> {
        type Value = Items<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pods")
        }

        /// Go encodes an empty list as `null`.
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(Items { kept: Vec::new(), dropped: 0 })
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pods: A) -> Result<Self::Value, A::Error> {
            let (mut kept, mut dropped) = (Vec::new(), 0);
            while let Some(pod) = pods.next_element::<Pod>()? {
                match T::from_pod(pod) {
                    Some(_) if kept.len() == MAX_PODS => dropped += 1,
                    found => kept.extend(found),
                }
            }
            Ok(Items { kept, dropped })
        }
    }

    items.deserialize_any(Pods(PhantomData))
}

/// Reads the `status` of a pod, which is an object, or of a Status, which is a string.
fn pod_status<'de, D: Deserializer<'de>>(status: D) -> Result<PodStatus, D::Error> {
    struct ObjectOrString;

    impl<'de> Visitor<'de> for ObjectOrString {
        type Value = PodStatus;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a pod status or a string")
        }

        fn visit_str<E: de::Error>(self, _: &str) -> Result<PodStatus, E> {
            Ok(PodStatus::default())
        }

        fn visit_map<A: MapAccess<'de>>(self, status: A) -> Result<PodStatus, A::Error> {
            PodStatus::deserialize(MapAccessDeserializer::new(status))
        }
    }

    status.deserialize_any(ObjectOrString)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANDED: &str = r#"{"metadata":{"name":"a","namespace":"b","uid":"c",
        "resourceVersion":"7","labels":{"linkerd.io/control-plane-ns":"linkerd"}},"spec":{},"status":{"initContainerStatuses":[
        {"name":"linkerd-network-validator","lastState":{"terminated":{"exitCode":95}}}]}}"#;

    #[test]
    fn a_list_keeps_only_the_stranded_pods() {
        let healthy = r#"{"metadata":{"name":"x"}}"#;
        let text = format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},
            "items":[{healthy},{STRANDED},{healthy}]}}"#
        );
        let list = list::<StrandedPod>(text.as_bytes()).unwrap();
        assert_eq!(list.pods.len(), 1);
        assert_eq!(list.pods[0].name, "a");
        assert_eq!((&*list.resource_version, list.dropped), ("9", 0));
    }

    #[test]
    fn a_list_keeps_a_bounded_number_of_pods() {
        let pods = vec![STRANDED; MAX_PODS + 7].join(",");
        let text = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{pods}]}}"#);
        let list = list::<StrandedPod>(text.as_bytes()).unwrap();
        assert_eq!((list.pods.len(), list.dropped), (MAX_PODS, 7));
    }

    #[test]
    fn only_a_complete_list_of_pods_is_accepted() {
        for (text, is_accepted) in [
            (r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#, true),
            (r#"{"metadata":{"resourceVersion":"1"},"items":null}"#, true),
            (r#"{"kind":"Status","status":"Failure"}"#, false),
            ("{}", false),
            ("<html>", false),
            (r#"{"items":[]}"#, false),
            (r#"{"metadata":{"resourceVersion":"1"},"items":[{}]}"#, false),
            (r#"{"metadata":{"resourceVersion":"1"},"items":["#, false),
            (r#"{"metadata":{"resourceVersion":"1"},"items":[]"#, false),
            (r#"{"metadata":{"resourceVersion":"1","continue":"t"},"items":[]}"#, false),
        ] {
            assert_eq!(list::<StrandedPod>(text.as_bytes()).is_ok(), is_accepted, "{text}");
        }
    }

    #[test]
    fn a_list_cut_off_at_any_byte_is_an_error() {
        let text =
            format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{STRANDED},{STRANDED}]}}"#);
        assert!(list::<StrandedPod>(text.as_bytes()).is_ok());
        for end in 0..text.len() {
            assert!(list::<StrandedPod>(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_bookmark_with_null_fields_is_accepted() {
        let text = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1",
            "metadata":{"resourceVersion":"8","creationTimestamp":null},
            "spec":{"containers":null},"status":{}}}"#;
        let version = "8".into();
        let event = events(text.as_bytes()).next().unwrap();
        assert_eq!(event.ok(), Some(WatchEvent::Other { version }));
    }

    #[test]
    fn watch_events_are_read_in_order_until_the_stream_is_cut_off() {
        let text = format!(
            r#"{{"type":"MODIFIED","object":{STRANDED}}}
            {{"type":"DELETED","object":{STRANDED}}}
            {{"object":{{"metadata":{{"resourceVersion":"8"}}}},"type":"BOOKMARK"}}
            {{"type":"ERROR","object":{{"kind":"Status","status":"Failure","code":410,"message":"old"}}}}
            {{"type":"#
        );
        let mut events = events(text.as_bytes());
        let mut next = || events.next().unwrap().ok();
        let Some(WatchEvent::Pod { version, stranded }) = next() else {
            panic!("not a pod");
        };
        assert_eq!((version.as_str(), stranded.unwrap().uid), ("7", "c".into()));
        let version = |version: &str| WatchEvent::Other { version: version.into() };
        assert_eq!(next(), Some(version("7")));
        assert_eq!(next(), Some(version("8")));
        let message = "old".into();
        assert_eq!(next(), Some(WatchEvent::Error { code: 410, message }));
        assert_eq!(next(), None, "the last event is cut off");
    }
}
