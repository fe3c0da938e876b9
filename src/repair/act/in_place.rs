//! The repair mode `in-place`: installs redirect rules in the netns of a running pod.

use crate::firewall::{self, Survey, describe_missing};
use crate::netns;
use crate::repair::inspect::{Inspected, NETNS_TIMEOUT};

/// Why rules cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    #[error("redirect rules are still missing after installing them: {}", describe_missing(.0))]
    StillMissing(Vec<String>),
    #[error(
        "cannot verify the installed redirect rules: the network namespace has a table of \
         iptables-legacy, or too many rules, which the repair controller cannot read"
    )]
    Unverified,
}

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
