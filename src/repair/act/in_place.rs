//! The repair mode `in-place`: installs redirect rules in the netns of a running pod.

use crate::firewall::{self, Survey};
use crate::netns;
use crate::repair::inspect::{Error, Inspected, NETNS_TIMEOUT};

/// Installs the missing rules, or those of today, and reads them back. Always uses the native backend,
/// whatever `iptablesMode` says, because this container lacks the host's iptables.
pub fn install(inspected: &Inspected) -> Result<(), Error> {
    let (Survey::Missing(origin, _) | Survey::Drifted(origin)) = &inspected.survey else {
        return Ok(());
    };
    let origin = origin.clone();
    let install =
        move || firewall::install_native(&origin).and_then(|()| firewall::survey(Some(&origin)));
    match netns::run(&inspected.netns, NETNS_TIMEOUT, install)?? {
        Survey::Complete | Survey::Drifted(_) => Ok(()),
        Survey::Missing(_, missing) => Err(Error::StillMissing(missing)),
        Survey::Unreadable => Err(Error::Unverified),
    }
}
