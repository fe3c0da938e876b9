//! Determines the proxy's UID and GID, whose connections the rules exempt. Pure.

use super::Config;
use super::section::config_error;
use crate::cni::Error;
use crate::failure::Failure;
use crate::pod::annotation::{self, annotation_error};
use crate::pod::facts::PodFacts;
use crate::pod::mesh::PROXY;

/// Largest UID or GID. The kernel reserves `u32::MAX` for "no ID".
const LARGEST_ID: i64 = u32::MAX as i64 - 1;

impl Config {
    /// Returns the proxy's UID and GID. Fails if neither is above 0.
    ///
    /// The UID of the proxy container takes precedence. The container's GID is ignored, as in
    /// upstream, because policies set one group on all containers.
    pub(super) fn proxy_user(&self, pod: &PodFacts) -> Result<[Option<u32>; 2], Error> {
        let uid = match pod.proxy.uid {
            Some(uid) => uid,
            None => annotated_id(pod, annotation::PROXY_UID, "proxy-uid", self.proxy_uid)?,
        };
        let gid = annotated_id(pod, annotation::PROXY_GID, "proxy-gid", self.proxy_gid)?;
        match [usable_id(uid), usable_id(gid)] {
            [None, None] => Err(no_user_error(pod)),
            ids => Ok(ids),
        }
    }
}

/// Returns the ID in the annotation, or else `default`, the value of `key` in the plugin entry.
/// Rejects an annotation that is not a number or contains blanks, like `strconv.Atoi`, which
/// upstream uses.
fn annotated_id(pod: &PodFacts, annotation: &str, key: &str, default: i64) -> Result<i64, Error> {
    match pod.annotations.get(annotation) {
        Some(text) => match text.parse() {
            Ok(id) if id <= LARGEST_ID => Ok(id),
            _ => Err(annotation_error(annotation, text, &expected_id())),
        },
        None if default <= LARGEST_ID => Ok(default),
        None => Err(config_error(key, &format!("{default}: {}", expected_id()))),
    }
}

fn expected_id() -> String {
    format!("expected a whole number up to {LARGEST_ID}, such as 2102")
}

/// Returns the ID if a rule can exempt it. As in upstream, IDs of 0 and below have no rule.
fn usable_id(id: i64) -> Option<u32> {
    u32::try_from(id).ok().filter(|id| *id > 0)
}

/// Returns the error for a proxy whose own connections would be redirected. Names the value that
/// takes precedence: that of the container, the annotation or the plugin entry.
fn no_user_error(pod: &PodFacts) -> Error {
    if let Some(uid) = pod.proxy.uid {
        return Error::new(
            Failure::InvalidProxyUser,
            format!(
                "container {PROXY} runs as UID {uid}, so the proxy's own connections would be \
                 redirected to the proxy"
            ),
        );
    }
    if let Some(text) = pod.annotations.get(annotation::PROXY_UID) {
        return annotation_error(
            annotation::PROXY_UID,
            text,
            "expected the UID of the proxy, above 0, such as 2102; otherwise the proxy's own \
             connections are redirected to the proxy",
        );
    }
    Error::new(
        Failure::InvalidConfig,
        "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be \
         redirected to the proxy",
    )
    .with_details(format!(
        "set the chart's proxyUID or the annotation {} to the proxy's UID, usually 2102",
        annotation::PROXY_UID
    ))
}
