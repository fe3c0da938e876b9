//! Determines UID and GID of the proxy, whose own connections are not redirected.

use super::annotation::annotation_error;
use super::section::config_error;
use super::{Annotations, Config, PodFacts, annotation};
use crate::cni::error::{Error, code};

impl Config {
    /// Returns UID and GID of the proxy, whose connections are not redirected. Fails if neither
    /// is above 0.
    pub(super) fn proxy_user(&self, pod: &PodFacts) -> Result<(Option<u32>, Option<u32>), Error> {
        let uid = id(
            pod.proxy.uid,
            &pod.annotations,
            annotation::PROXY_UID,
            ("proxy-uid", self.defaults.proxy_uid),
        )?;
        let gid = id(
            pod.proxy.gid,
            &pod.annotations,
            annotation::PROXY_GID,
            ("proxy-gid", self.defaults.proxy_gid),
        )?;
        if uid.is_some() || gid.is_some() {
            return Ok((uid, gid));
        }
        if let (None, Some(text)) = (pod.proxy.uid, pod.annotations.get(annotation::PROXY_UID)) {
            let wanted = "expected the UID of the proxy, above 0, such as 2102; otherwise the proxy's own connections are redirected to the proxy";
            return Err(annotation_error(annotation::PROXY_UID, text, wanted));
        }
        Err(Error::new(
            code::INVALID_CONFIG,
            "neither proxy-uid nor proxy-gid is above 0, so the proxy's own connections would be redirected to the proxy",
        )
        .with_details(format!(
            "set the chart's proxyUID or the annotation {} to the UID of the proxy, usually 2102",
            annotation::PROXY_UID
        )))
    }
}

/// Returns the UID or GID of the proxy. As in upstream, there is no rule for a UID or GID of
/// 0 or below.
fn id(
    explicit: Option<i64>,
    annotations: &Annotations,
    annotation: &str,
    (key, default): (&str, i64),
) -> Result<Option<u32>, Error> {
    // The kernel reserves u32::MAX for "no ID".
    let largest = u32::MAX - 1;
    let id = match (explicit, annotations.get(annotation)) {
        (Some(id), _) => id,
        (None, Some(text)) => {
            let id = text.trim().parse().ok();
            id.filter(|id| *id <= i64::from(largest)).ok_or_else(|| {
                let wanted = format!("expected a whole number up to {largest}, such as 2102");
                annotation_error(annotation, text, &wanted)
            })?
        }
        (None, None) => default,
    };
    match u32::try_from(id.max(0)) {
        Ok(0) => Ok(None),
        Ok(id) if id <= largest => Ok(Some(id)),
        _ => {
            let problem = format!("{id} is above the largest ID, {largest}");
            Err(config_error(key, &problem))
        }
    }
}
