//! The in-place repair: installs redirect rules in the netns of a running pod.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::firewall::{self, Survey};
use crate::netns;
use crate::redirect::{Ipv6, Origin, Redirect};

/// Longest time for reading, or installing, the rules of one netns.
const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Why rules cannot be read or installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Netns(#[from] netns::Error),
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    #[error(
        "redirect rules are still missing after installing them: {}",
        firewall::describe_missing(missing)
    )]
    StillMissing { missing: Vec<String> },
    #[error(
        "cannot verify the installed redirect rules: the network namespace has a table of \
         iptables-legacy, or too many rules, which the repair controller cannot read"
    )]
    Unverified,
}

/// The rules to install in a pod, and the netns they belong to.
#[derive(Clone, Debug)]
pub struct PodRules {
    pub netns: PathBuf,
    pub origin: Origin,
}

impl PodRules {
    /// Installs the rules and reads them back. Always uses the native backend, whatever
    /// `iptablesMode` says, because this container lacks the host's iptables.
    pub fn install(&self) -> Result<(), Error> {
        let origin = self.origin.clone();
        let install = move || {
            firewall::install_native(&origin).and_then(|()| firewall::survey(Some(&origin)))
        };
        match netns::run(&self.netns, NETNS_TIMEOUT, install)?? {
            Survey::Complete | Survey::Drifted(_) => Ok(()),
            Survey::Missing(_, missing) => Err(Error::StillMissing { missing }),
            Survey::Unreadable => Err(Error::Unverified),
        }
    }
}

/// Compares the rules in the netns with those that the pod started with. `today` is what the plugin would
/// install now, if that is known.
pub fn survey(netns: &Path, today: Option<(Redirect, Ipv6)>) -> Result<Survey, Error> {
    let survey = move || {
        let today = today
            .map(|(redirect, ipv6)| Origin { redirect, families: firewall::families(ipv6, false) });
        firewall::survey(today.as_ref())
    };
    Ok(netns::run(netns, NETNS_TIMEOUT, survey)??)
}
