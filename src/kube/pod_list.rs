//! Parses a list of pods while it arrives, and limits how many of them are kept. Each pod is
//! reduced or dropped before the next pod is read, so that memory holds only one complete pod at a
//! time.
//!
//! [`Client::read_list`](super::Client::read_list) limits a list to 128 MiB.

use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use super::types::{ListMetadata, Pod};

/// A type that holds what its user needs of a pod.
pub trait FromPod: Sized {
    /// Reduces a pod. `None` drops the pod.
    fn from_pod(pod: Pod) -> Option<Self>;
}

/// Maximum number of pods kept from one list, to bound memory. Kubernetes plans for 110 pods per
/// node: <https://kubernetes.io/docs/setup/best-practices/cluster-large/>
pub const MAX_PODS: usize = 1024;

#[derive(Debug)]
pub struct PodList<T> {
    pub resource_version: String,
    pub pods: Vec<T>,
    /// Number of pods that were dropped because the list already had [`MAX_PODS`].
    pub dropped: usize,
}

/// Reads a list to its end. Fails if the list is incomplete, so that no decision is based on a part
/// of it.
pub fn parse_list<T: FromPod>(response: impl BufRead) -> serde_json::Result<PodList<T>> {
    #[derive(Deserialize)]
    #[serde(bound = "T: FromPod")]
    struct ListBody<T> {
        #[serde(default)]
        metadata: ListMetadata,
        #[serde(deserialize_with = "deserialize_pods")]
        items: PodList<T>,
    }

    let ListBody { metadata, items } = serde_json::from_reader(response)?;
    if metadata.resource_version.is_empty() {
        return Err(serde_json::Error::custom("the list has no resourceVersion"));
    }
    if !metadata.continue_token.is_empty() {
        return Err(serde_json::Error::custom("the list is only one page of a longer list"));
    }
    Ok(PodList { resource_version: metadata.resource_version, ..items })
}

fn deserialize_pods<'de, D: Deserializer<'de>, T: FromPod>(
    items: D,
) -> Result<PodList<T>, D::Error> {
    items.deserialize_any(PodList { resource_version: String::new(), pods: Vec::new(), dropped: 0 })
}

impl<'de, T: FromPod> Visitor<'de> for PodList<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of pods")
    }

    /// Accepts `null` as a list without pods, because Go may encode an empty list so.
    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Self, A::Error> {
        while let Some(pod) = items.next_element()? {
            let Some(pod) = T::from_pod(pod) else { continue };
            if self.pods.len() == MAX_PODS {
                self.dropped += 1;
            } else {
                self.pods.push(pod);
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the names of pods that are not healthy.
    #[derive(Debug, PartialEq, Eq)]
    struct Name(String);

    impl FromPod for Name {
        fn from_pod(pod: Pod) -> Option<Self> {
            if pod.metadata.name == "healthy" {
                return None;
            }
            Some(Name(pod.metadata.name))
        }
    }

    const KEPT: &str = r#"{"metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
    const HEALTHY: &str = r#"{"metadata":{"name":"healthy"}}"#;

    fn list_of(items: &str) -> String {
        format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#)
    }

    #[test]
    fn list_keeps_the_selected_pods_up_to_a_limit() {
        let many = vec![KEPT; MAX_PODS + 7].join(",");
        for (items, kept, dropped) in
            [(&*[HEALTHY, KEPT, HEALTHY].join(","), 1, 0), (&many, MAX_PODS, 7)]
        {
            let list = parse_list::<Name>(list_of(items).as_bytes()).unwrap();
            assert_eq!((list.pods.len(), list.dropped), (kept, dropped));
            assert_eq!(list.pods[0], Name("a".into()));
            assert_eq!(list.resource_version, "9");
        }
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
            (r#"{"metadata":{"resourceVersion":"1","continue":"t"},"items":[]}"#, false),
        ] {
            assert_eq!(parse_list::<Name>(text.as_bytes()).is_ok(), is_accepted, "{text}");
        }
        let complete = list_of(&[KEPT, KEPT].join(","));
        assert!(parse_list::<Name>(complete.as_bytes()).is_ok());
        for end in 0..complete.len() {
            assert!(parse_list::<Name>(&complete.as_bytes()[..end]).is_err(), "cut off at {end}");
        }
    }
}
