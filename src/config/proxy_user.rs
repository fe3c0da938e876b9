//! Determines UID and GID of the proxy, whose own connections are not redirected.

use super::annotation::annotation_error;
use super::mesh::PROXY;
use super::section::config_error;
use super::{Annotations, Config, PodFacts, annotation};
use crate::cni::error::{Error, code};

/// Largest UID or GID. The kernel reserves `u32::MAX` for "no ID".
const LARGEST: i64 = u32::MAX as i64 - 1;

/// Where a UID or GID of the proxy may be configured.
struct Sources {
    /// Field of a container's securityContext.
    field: &'static str,
    annotation: &'static str,
    /// Key of the plugin entry.
    key: &'static str,
}

const UID: Sources =
    Sources { field: "runAsUser", annotation: annotation::PROXY_UID, key: "proxy-uid" };
const GID: Sources =
    Sources { field: "runAsGroup", annotation: annotation::PROXY_GID, key: "proxy-gid" };

impl Config {
    /// Returns UID and GID of the proxy, whose connections are not redirected. Fails if neither
    /// is above 0.
    pub(super) fn proxy_user(&self, pod: &PodFacts) -> Result<(Option<u32>, Option<u32>), Error> {
        let annotations = &pod.annotations;
        let uid = id(pod.proxy.uid, annotations, self.defaults.proxy_uid, &UID)?;
        let gid = id(pod.proxy.gid, annotations, self.defaults.proxy_gid, &GID)?;
        if uid.is_some() || gid.is_some() {
            return Ok((uid, gid));
        }
        Err(match (pod.proxy.uid, annotations.get(UID.annotation)) {
            (Some(uid), _) => container_error(
                &UID,
                &format!(
                    " runs as UID {uid}, so the proxy's own connections would be redirected to the proxy"
                ),
            ),
            (None, Some(text)) => annotation_error(
                UID.annotation,
                text,
                "expected the UID of the proxy, above 0, such as 2102; otherwise the proxy's own connections are redirected to the proxy",
            ),
            (None, None) => Error::new(
                code::INVALID_CONFIG,
                "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be redirected to the proxy",
            )
            .with_details(format!(
                "set the chart's proxyUID or the annotation {} to the UID of the proxy, usually 2102",
                UID.annotation
            )),
        })
    }
}

/// Returns the UID or GID of the proxy: `explicit` from its container, else the annotation, else
/// the `default` of the plugin entry. As in upstream, there is no rule for a UID or GID of 0 or
/// below.
fn id(
    explicit: Option<i64>,
    annotations: &Annotations,
    default: i64,
    sources: &Sources,
) -> Result<Option<u32>, Error> {
    let id = match (explicit, annotations.get(sources.annotation)) {
        (Some(id), _) => in_range(id).map_err(|problem| {
            container_error(sources, &format!(": {} {problem}", sources.field))
        })?,
        (None, Some(text)) => {
            let id = text.trim().parse().ok().filter(|id| *id <= LARGEST);
            id.ok_or_else(|| {
                let wanted = format!("expected a whole number up to {LARGEST}, such as 2102");
                annotation_error(sources.annotation, text, &wanted)
            })?
        }
        (None, None) => in_range(default).map_err(|problem| config_error(sources.key, &problem))?,
    };
    Ok(u32::try_from(id).ok().filter(|id| *id > 0))
}

fn in_range(id: i64) -> Result<i64, String> {
    match id <= LARGEST {
        true => Ok(id),
        false => Err(format!("{id} is above the largest ID, {LARGEST}")),
    }
}

/// Error for a user of the proxy container. The container wins over annotation and plugin entry, so
/// a correction there has no effect.
fn container_error(sources: &Sources, problem: &str) -> Error {
    Error::new(code::INVALID_CONFIG, format!("container {PROXY}{problem}")).with_details(format!(
        "set {} of the container {PROXY} to the ID of the proxy, usually 2102",
        sources.field
    ))
}
