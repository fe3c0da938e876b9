//! Lists and watch events as they arrive: each pod is judged and dropped at once, so
//! that a node full of pods costs no more memory than its largest one.

use std::fmt;
use std::io::BufRead;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::verdict::{Stranded, stranded};
use crate::kube::types::{ListMetadata, Metadata, Pod, PodSpec, PodStatus};

/// What is kept of a pod, if anything.
pub trait Kept: Sized {
    fn of(pod: Pod) -> Option<Self>;
}

impl Kept for Stranded {
    fn of(pod: Pod) -> Option<Self> {
        stranded(&pod)
    }
}

/// Most pods kept of one list, as a bound on memory. No node runs that many.
const MOST: usize = 1024;

/// The kept pods of a list that has arrived whole.
#[derive(Debug)]
pub struct PodList<T> {
    /// The list's resourceVersion, from which a watch goes on.
    pub version: String,
    pub kept: Vec<T>,
    /// Pods beyond [`MOST`] that would have been kept.
    pub dropped: usize,
}

/// Reads a list to its end. A list that breaks off is an error, so that nobody acts on
/// half a list.
pub fn list<T: Kept>(answer: impl BufRead) -> serde_json::Result<PodList<T>> {
    #[derive(Deserialize)]
    #[serde(bound = "T: Kept")]
    struct Wire<T> {
        #[serde(default)]
        metadata: ListMetadata,
        #[serde(deserialize_with = "only_kept")]
        items: Items<T>,
    }

    let Wire { metadata, items } = serde_json::from_reader(answer)?;
    if metadata.resource_version.is_empty() {
        return Err(serde_json::Error::custom("a list without resourceVersion"));
    }
    if !metadata.continue_token.is_empty() {
        return Err(serde_json::Error::custom("a part of a list"));
    }
    Ok(PodList {
        version: metadata.resource_version,
        kept: items.kept,
        dropped: items.dropped,
    })
}

/// One event of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A pod is there or has changed.
    Pod {
        version: String,
        stranded: Option<Stranded>,
    },
    /// A bookmark, or a pod that is gone.
    Other { version: String },
    /// The watch has ended.
    Error { code: u16, message: String },
}

/// Reads events as they come, until the watch ends.
pub fn events(answer: impl BufRead) -> impl Iterator<Item = serde_json::Result<Event>> {
    serde_json::Deserializer::from_reader(answer)
        .into_iter::<Line>()
        .map(|line| line.map(Event::from))
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

/// A pod, or a Status if the event is an error.
#[derive(Deserialize)]
struct Object {
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

impl From<Line> for Event {
    fn from(Line { kind, object }: Line) -> Event {
        let version = object.metadata.resource_version.clone();
        match kind.as_str() {
            "ADDED" | "MODIFIED" => Event::Pod {
                version,
                stranded: stranded(&Pod {
                    kind: (),
                    metadata: object.metadata,
                    spec: object.spec,
                    status: object.status,
                }),
            },
            "ERROR" => Event::Error {
                code: object.code,
                message: object.message,
            },
            _ => Event::Other { version },
        }
    }
}

struct Items<T> {
    kept: Vec<T>,
    dropped: usize,
}

/// Judges each pod when it has arrived and drops it before the next is read.
fn only_kept<'de, D: Deserializer<'de>, T: Kept>(items: D) -> Result<Items<T>, D::Error> {
    struct Pods<T>(PhantomData<T>);

    impl<'de, T: Kept> Visitor<'de> for Pods<T> {
        type Value = Items<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pods")
        }

        /// What Go writes for a list that was never filled.
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(Items {
                kept: Vec::new(),
                dropped: 0,
            })
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pods: A) -> Result<Self::Value, A::Error> {
            let (mut kept, mut dropped) = (Vec::new(), 0);
            while let Some(pod) = pods.next_element::<Pod>()? {
                match T::of(pod) {
                    Some(_) if kept.len() == MOST => dropped += 1,
                    found => kept.extend(found),
                }
            }
            Ok(Items { kept, dropped })
        }
    }

    items.deserialize_any(Pods(PhantomData))
}

/// A pod's `status` is an object, that of a Status is the word `Failure`.
fn pod_status<'de, D: Deserializer<'de>>(status: D) -> Result<PodStatus, D::Error> {
    struct Either;

    impl<'de> Visitor<'de> for Either {
        type Value = PodStatus;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a pod's status or a word")
        }

        fn visit_str<E: de::Error>(self, _: &str) -> Result<PodStatus, E> {
            Ok(PodStatus::default())
        }

        fn visit_map<A: MapAccess<'de>>(self, status: A) -> Result<PodStatus, A::Error> {
            PodStatus::deserialize(MapAccessDeserializer::new(status))
        }
    }

    status.deserialize_any(Either)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANDED: &str = r#"{"metadata":{"name":"a","namespace":"b","uid":"c",
        "resourceVersion":"7"},"spec":{},"status":{"initContainerStatuses":[
        {"name":"linkerd-network-validator","lastState":{"terminated":{"exitCode":95}}}]}}"#;

    #[test]
    fn a_list_keeps_only_the_stranded_pods() {
        let healthy = r#"{"metadata":{"name":"x"}}"#;
        let text = format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},
            "items":[{healthy},{STRANDED},{healthy}]}}"#
        );
        let list = list::<Stranded>(text.as_bytes()).unwrap();
        assert_eq!(list.kept.len(), 1);
        assert_eq!(list.kept[0].name, "a");
        assert_eq!((&*list.version, list.dropped), ("9", 0));
    }

    #[test]
    fn a_list_without_end_keeps_a_bounded_number_of_pods() {
        let pods = vec![STRANDED; MOST + 7].join(",");
        let text = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{pods}]}}"#);
        let list = list::<Stranded>(text.as_bytes()).unwrap();
        assert_eq!((list.kept.len(), list.dropped), (MOST, 7));
    }

    #[test]
    fn only_a_whole_list_of_pods_is_accepted() {
        for (text, fine) in [
            (r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#, true),
            (r#"{"metadata":{"resourceVersion":"1"},"items":null}"#, true),
            (r#"{"kind":"Status","status":"Failure"}"#, false),
            ("{}", false),
            ("<html>", false),
            (r#"{"items":[]}"#, false),
            (
                r#"{"metadata":{"resourceVersion":"1"},"items":[{}]}"#,
                false,
            ),
            (r#"{"metadata":{"resourceVersion":"1"},"items":["#, false),
            (r#"{"metadata":{"resourceVersion":"1"},"items":[]"#, false),
            (
                r#"{"metadata":{"resourceVersion":"1","continue":"t"},"items":[]}"#,
                false,
            ),
        ] {
            assert_eq!(list::<Stranded>(text.as_bytes()).is_ok(), fine, "{text}");
        }
    }

    #[test]
    fn a_list_that_breaks_off_anywhere_yields_no_pod() {
        let text =
            format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{STRANDED},{STRANDED}]}}"#);
        assert!(list::<Stranded>(text.as_bytes()).is_ok());
        for end in 0..text.len() {
            assert!(list::<Stranded>(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn a_bookmark_in_which_go_writes_null_for_the_empty_does_not_end_the_watch() {
        let text = r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1",
            "metadata":{"resourceVersion":"8","creationTimestamp":null},
            "spec":{"containers":null},"status":{}}}"#;
        let version = "8".into();
        let event = events(text.as_bytes()).next().unwrap();
        assert_eq!(event.ok(), Some(Event::Other { version }));
    }

    #[test]
    fn events_are_read_one_after_the_other() {
        let text = format!(
            r#"{{"type":"MODIFIED","object":{STRANDED}}}
            {{"type":"DELETED","object":{STRANDED}}}
            {{"object":{{"metadata":{{"resourceVersion":"8"}}}},"type":"BOOKMARK"}}
            {{"type":"ERROR","object":{{"kind":"Status","status":"Failure","code":410,"message":"old"}}}}
            {{"type":"#
        );
        let mut events = events(text.as_bytes());
        let mut next = || events.next().unwrap().ok();
        let Some(Event::Pod { version, stranded }) = next() else {
            panic!("not a pod");
        };
        assert_eq!((version.as_str(), stranded.unwrap().uid), ("7", "c".into()));
        let version = |version: &str| Event::Other {
            version: version.into(),
        };
        assert_eq!(next(), Some(version("7")));
        assert_eq!(next(), Some(version("8")));
        let message = "old".into();
        assert_eq!(next(), Some(Event::Error { code: 410, message }));
        assert_eq!(next(), None, "the last event is cut off");
    }
}
