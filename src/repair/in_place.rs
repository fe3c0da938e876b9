//! The in-place repair: installs redirect rules in the netns of a running pod.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::Ipv6;
use crate::config::families::families;
use crate::firewall::{self, Survey};
use crate::netns;
use crate::rules::Redirect;

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

/// The rules that a pod should have, and the netns they belong to.
#[derive(Clone, Debug)]
pub struct PodRules {
    netns: PathBuf,
    redirect: Redirect,
    ipv6: Ipv6,
}

impl PodRules {
    pub fn new(netns: PathBuf, redirect: Redirect, ipv6: Ipv6) -> Self {
        PodRules { netns, redirect, ipv6 }
    }

    /// Path of the pod's netns.
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// Installs the rules and reads them back. Always uses the native backend, whatever
    /// `iptablesMode` says, because this container lacks the host's iptables.
    pub fn install(&self) -> Result<(), Error> {
        let PodRules { netns, redirect, ipv6 } = self.clone();
        let restore = move || firewall::install_native(&redirect, families(ipv6, false));
        netns::run(&netns, NETNS_TIMEOUT, restore)??;
        match self.survey()? {
            Survey::Complete => Ok(()),
            Survey::Missing(missing) => Err(Error::StillMissing { missing }),
            Survey::Unreadable => Err(Error::Unverified),
        }
    }

    /// Compares the rules in the netns with the rules that the pod should have.
    pub fn survey(&self) -> Result<Survey, Error> {
        let PodRules { netns, redirect, ipv6 } = self.clone();
        let survey = move || firewall::survey(&redirect, families(ipv6, false));
        Ok(netns::run(&netns, NETNS_TIMEOUT, survey)??)
    }
}
