//! Determines UID and GID of the proxy, whose own connections are not redirected.

use super::section::config_error;
use super::{Config, ResolvedRedirect};
use crate::cni::Error;
use crate::failure::Failure;
use crate::pod::annotation::{self, Annotations, annotation_error};
use crate::pod::facts::PodFacts;
use crate::pod::mesh::PROXY;

/// Largest UID or GID. The kernel reserves `u32::MAX` for "no ID".
const LARGEST: i64 = u32::MAX as i64 - 1;

/// Number of containers that an error names.
const NAMED: usize = 10;

/// Annotation and key of the plugin entry with a UID or GID of the proxy.
type Sources = (&'static str, &'static str);

const UID: Sources = (annotation::PROXY_UID, "proxy-uid");
const GID: Sources = (annotation::PROXY_GID, "proxy-gid");

impl Config {
    /// Returns UID and GID of the proxy. Fails if neither is above 0.
    ///
    /// The UID is that of the proxy container if it states one. As in upstream, the GID of a container
    /// does not count: policies set one group on all containers.
    pub(super) fn proxy_user(&self, pod: &PodFacts) -> Result<(Option<u32>, Option<u32>), Error> {
        let annotations = &pod.annotations;
        let uid = match pod.proxy.uid {
            Some(uid) => in_range(uid)
                .map_err(|problem| container_error(&format!(": runAsUser {problem}")))?,
            None => id(annotations, self.defaults.proxy_uid, UID)?,
        };
        let gid = id(annotations, self.defaults.proxy_gid, GID)?;
        // As in upstream, there is no rule for an ID of 0 or below.
        let [uid, gid] = [uid, gid].map(|id| u32::try_from(id).ok().filter(|id| *id > 0));
        if uid.is_some() || gid.is_some() {
            return Ok((uid, gid));
        }
        Err(match (pod.proxy.uid, annotations.get(annotation::PROXY_UID)) {
            (Some(uid), _) => container_error(&format!(
                " runs as UID {uid}, so the proxy's own connections would be redirected to the proxy"
            )),
            (None, Some(text)) => annotation_error(
                annotation::PROXY_UID,
                text,
                "expected the UID of the proxy, above 0, such as 2102; otherwise the proxy's own connections are redirected to the proxy",
            ),
            (None, None) => Error::new(
                Failure::InvalidConfig,
                "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be redirected to the proxy",
            )
            .with_details(format!(
                "set the chart's proxyUID or the annotation {} to the UID of the proxy, usually 2102",
                annotation::PROXY_UID
            )),
        })
    }

    /// Returns the error for a pod with containers that run as the user of the proxy, if
    /// [`Config::strict_proxy_user`] is set.
    pub(super) fn shared_user(&self, resolved: &ResolvedRedirect) -> Option<Error> {
        let names = &resolved.exempt_containers;
        if !self.strict_proxy_user || names.is_empty() {
            return None;
        }
        let named = names[..names.len().min(NAMED)].join(", ");
        let ids = [("UID", resolved.redirect.proxy_uid), ("GID", resolved.redirect.proxy_gid)];
        let ids = ids.iter().filter_map(|(word, id)| Some(format!("{word} {}", (*id)?)));
        Some(Error::new(
            Failure::SharedProxyUser,
            format!(
                "containers run as the proxy's user ({}), so their connections would bypass the proxy: {named}",
                ids.collect::<Vec<_>>().join(", ")
            ),
        ))
    }
}

/// Returns the UID or GID of the proxy: the annotation, else the `default` of the plugin entry. Upstream
/// fails the pod for an annotation that is not a number, also with blanks (`strconv.Atoi`).
fn id(annotations: &Annotations, default: i64, (annotation, key): Sources) -> Result<i64, Error> {
    let Some(text) = annotations.get(annotation) else {
        return in_range(default).map_err(|problem| config_error(key, &problem));
    };
    text.parse().ok().filter(|id| *id <= LARGEST).ok_or_else(|| {
        let wanted = format!("expected a whole number up to {LARGEST}, such as 2102");
        annotation_error(annotation, text, &wanted)
    })
}

fn in_range(id: i64) -> Result<i64, String> {
    if id <= LARGEST { Ok(id) } else { Err(format!("{id} is above the largest ID, {LARGEST}")) }
}

/// Error for the user of the proxy container. The container wins over annotation and plugin entry, so
/// a correction there has no effect.
fn container_error(problem: &str) -> Error {
    Error::new(Failure::InvalidProxyUser, format!("container {PROXY}{problem}"))
}
