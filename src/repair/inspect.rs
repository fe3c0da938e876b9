//! Compares the rules in a pod's netns with those that the pod started with. Leaves out pods without
//! a proxy, and pods that the plugin skips by namespace or name.

use std::path::PathBuf;
use std::time::Duration;

use super::netns_lookup::{self, NetnsLookup};
use super::settings::Settings;
use super::stranded::StrandedPod;
use crate::cni;
use crate::config::{Config, ResolvedRedirect};
use crate::firewall::{self, Survey, describe_missing};
use crate::kube::Client;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::netns;
use crate::pod::Decision;
use crate::pod::facts::OwnFacts;
use crate::pod::mesh::NotAPod;
use crate::redirect::Origin;

/// Longest time for reading, or installing, the rules of one netns.
pub const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a pod's rules cannot be inspected or installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot determine the pod's redirect rules: {0}")]
    Redirect(#[from] cni::Error),
    #[error("cannot determine the pod's redirect rules: {0}")]
    NotAPod(#[from] NotAPod),
    #[error("cannot find the pod's network namespace: {0}")]
    Lookup(#[from] netns_lookup::Error),
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

/// Rules of a pod in which the plugin installs rules.
#[derive(Debug)]
pub struct Inspected {
    pub netns: PathBuf,
    pub survey: Survey,
}

/// Inspects pods. Reads the runtime's cache and each API object only once: create a new inspector
/// for each audit or repair.
pub struct Inspector {
    config: Config,
    netns_lookup: NetnsLookup,
    objects: ObjectReader,
}

impl Inspector {
    /// Takes the plugin's configuration, and reads the runtime's cache of CNI results.
    pub fn new(client: Client, config: Config, settings: &Settings, read_from: ReadFrom) -> Self {
        let objects = ObjectReader::new(client, read_from);
        Inspector { config, netns_lookup: NetnsLookup::read(settings), objects }
    }

    /// Compares the pod's rules with those that it started with. Changes nothing. `None`: the plugin
    /// installs no rules for this pod.
    pub fn inspect(
        &mut self,
        pod: &StrandedPod,
        facts: Decision<OwnFacts>,
    ) -> Result<Option<Inspected>, Error> {
        let Some(own) = self.redirected(pod, facts) else {
            return Ok(None);
        };
        let netns = self.netns_lookup.find(pod)?;
        let resolved = self.resolve(pod, own);
        if let Some(error) = resolved.as_ref().ok().and_then(ResolvedRedirect::sandbox_error) {
            return Err(error.into());
        }
        let today =
            resolved.as_ref().ok().map(|resolved| (resolved.redirect.clone(), resolved.ipv6));
        let survey = move || {
            let today = today.map(|(redirect, ipv6)| Origin {
                redirect,
                families: firewall::families(ipv6, false),
            });
            firewall::survey(today.as_ref())
        };
        let survey = netns::run(&netns, NETNS_TIMEOUT, survey)??;
        if survey == Survey::Unreadable {
            // Without today's rules, every pod without a marker is unreadable.
            resolved?;
        }
        Ok(Some(Inspected { netns, survey }))
    }

    /// Describes the packets of the pod that go elsewhere than with the rules that the plugin would
    /// install.
    pub fn compare(
        &mut self,
        pod: &StrandedPod,
        facts: Decision<OwnFacts>,
    ) -> Result<Vec<String>, Error> {
        let netns = self.netns_lookup.find(pod)?;
        let own = self.redirected(pod, facts);
        let today = own.map(|own| self.resolve(pod, own)).transpose()?;
        if let Some(error) = today.as_ref().and_then(ResolvedRedirect::sandbox_error) {
            return Err(error.into());
        }
        let compare = move || {
            let today = today.map(|ResolvedRedirect { redirect, ipv6, .. }| Origin {
                redirect,
                families: firewall::families(ipv6, false),
            });
            firewall::compare(today.as_ref())
        };
        Ok(netns::run(&netns, NETNS_TIMEOUT, compare)??)
    }

    /// Returns the facts of a pod in which the plugin installs rules.
    fn redirected(&self, pod: &StrandedPod, facts: Decision<OwnFacts>) -> Option<OwnFacts> {
        // The containers decide, not the annotations: `kubectl debug --copy-to` removes them.
        let is_skipped = self.config.filter.skip_reason(&pod.pod_ref()).is_some();
        match facts {
            Decision::Redirect(own) if !self.config.simulate && !is_skipped => Some(own),
            _ => None,
        }
    }

    /// Resolves the redirect of today's values.
    fn resolve(
        &mut self,
        pod: &StrandedPod,
        own: OwnFacts,
    ) -> Result<ResolvedRedirect, cni::Error> {
        let facts = own.complete(&pod.namespace, &mut self.objects)?;
        self.config.resolve(&facts)
    }
}
