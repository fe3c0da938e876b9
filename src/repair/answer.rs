//! Lists and watch events as they arrive: each pod is judged and dropped at once, so
//! that a node full of pods costs no more memory than its largest one.

use std::fmt;
use std::io::BufRead;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};

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

/// One page of a list of pods.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Kept")]
pub struct Page<T> {
    #[serde(default)]
    pub metadata: ListMetadata,
    #[serde(deserialize_with = "only_kept")]
    pub items: Vec<T>,
}

/// Reads a page.
pub fn page<T: Kept>(answer: impl BufRead) -> serde_json::Result<Page<T>> {
    serde_json::from_reader(answer)
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

fn only_kept<'de, D: Deserializer<'de>, T: Kept>(items: D) -> Result<Vec<T>, D::Error> {
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Kept> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of pods")
        }

        /// What Go writes for a list that was never filled.
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pods: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(pod) = pods.next_element::<Pod>()? {
                found.extend(T::of(pod));
            }
            Ok(found)
        }
    }

    items.deserialize_any(Items(PhantomData))
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
    fn a_page_keeps_only_the_stranded_pods() {
        let healthy = r#"{"metadata":{"name":"x"}}"#;
        let text = format!(
            r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9","continue":"t"}},
            "items":[{healthy},{STRANDED},{healthy}]}}"#
        );
        let page = page::<Stranded>(text.as_bytes()).unwrap();
        assert_eq!(page.items.len(), 1);
        assert_eq!(page.items[0].name, "a");
        assert_eq!(page.metadata.resource_version, "9");
        assert_eq!(page.metadata.continue_token, "t");
    }

    #[test]
    fn an_answer_that_is_no_list_is_an_error_and_an_empty_one_is_not() {
        for (text, fine) in [
            (r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#, true),
            (r#"{"metadata":{"resourceVersion":"1"},"items":null}"#, true),
            (r#"{"kind":"Status","status":"Failure"}"#, false),
            ("{}", false),
            ("<html>", false),
            (r#"{"items":[{}]}"#, false),
            (r#"{"items":["#, false),
        ] {
            assert_eq!(page::<Stranded>(text.as_bytes()).is_ok(), fine, "{text}");
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
