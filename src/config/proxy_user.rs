//! The user of the proxy, whose own connections the rules exempt.

use super::Config;
use super::section::config_error;
use crate::cni::Error;
use crate::failure::Failure;
use crate::pod::annotation::{self, annotation_error};
use crate::pod::facts::PodFacts;
use crate::pod::mesh::PROXY;

/// Largest UID or GID. The kernel reserves `u32::MAX` for "no ID".
const LARGEST: i64 = u32::MAX as i64 - 1;

impl Config {
    /// Returns UID and GID of the proxy. Fails if neither is above 0.
    ///
    /// The UID is that of the proxy container if it states one. As in upstream, its GID is ignored:
    /// policies set one group on all containers.
    pub(super) fn proxy_user(&self, pod: &PodFacts) -> Result<[Option<u32>; 2], Error> {
        let annotations = &pod.annotations;
        let id = |annotation, key, default| {
            let text = annotations.get(annotation);
            // As upstream's `strconv.Atoi`, rejects an annotation that is no number or has blanks.
            let id = text.map_or(Some(default), |text| text.parse().ok());
            id.filter(|id| *id <= LARGEST).ok_or_else(|| {
                let wanted = format!("expected a whole number up to {LARGEST}, such as 2102");
                match text {
                    Some(text) => annotation_error(annotation, text, &wanted),
                    None => config_error(key, &format!("{default}: {wanted}")),
                }
            })
        };
        let uid = match pod.proxy.uid {
            Some(uid) => uid,
            None => id(annotation::PROXY_UID, "proxy-uid", self.proxy_uid)?,
        };
        let gid = id(annotation::PROXY_GID, "proxy-gid", self.proxy_gid)?;
        // As in upstream, there is no rule for an ID of 0 or below.
        let ids = [uid, gid].map(|id| u32::try_from(id).ok().filter(|id| *id > 0));
        if ids != [None, None] {
            return Ok(ids);
        }
        Err(match (pod.proxy.uid, annotations.get(annotation::PROXY_UID)) {
            // The container wins, so a correction of annotation or plugin entry has no effect.
            (Some(uid), _) => Error::new(
                Failure::InvalidProxyUser,
                format!(
                    "container {PROXY} runs as UID {uid}, so the proxy's own connections would be \
                     redirected to the proxy"
                ),
            ),
            (None, Some(text)) => annotation_error(
                annotation::PROXY_UID,
                text,
                "expected the UID of the proxy, above 0, such as 2102; otherwise the proxy's own \
                 connections are redirected to the proxy",
            ),
            (None, None) => Error::new(
                Failure::InvalidConfig,
                "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would \
                 be redirected to the proxy",
            )
            .with_details(format!(
                "set the chart's proxyUID or the annotation {} to the proxy's UID, usually 2102",
                annotation::PROXY_UID
            )),
        })
    }
}
