//! Compares the rules in a pod's netns with those that the pod started with, and installs missing ones.
//! Leaves out pods without a proxy, and pods that the plugin skips by namespace or name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::netns_lookup::NetnsLookup;
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
const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a pod's rules cannot be inspected or installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot determine the pod's redirect rules: {0}")]
    Redirect(#[from] cni::Error),
    #[error("cannot determine the pod's redirect rules: {0}")]
    NotAPod(#[from] NotAPod),
    #[error("cannot find the pod's network namespace: {0}")]
    Lookup(String),
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

impl Inspected {
    /// Installs the missing rules, or after a drift the rules that the plugin would install now, and
    /// reads them back. Always uses the native backend, whatever `iptablesMode` says, because this
    /// container lacks the host's iptables.
    pub fn repair(&self) -> Result<(), Error> {
        let (Survey::Missing(origin, _) | Survey::Drifted(origin)) = &self.survey else {
            return Ok(());
        };
        let origin = origin.clone();
        let install = move || {
            firewall::install_native(&origin).and_then(|()| firewall::survey(Some(&origin)))
        };
        match netns::run(&self.netns, NETNS_TIMEOUT, install)?? {
            Survey::Complete | Survey::Drifted(_) => Ok(()),
            Survey::Missing(_, missing) => Err(Error::StillMissing(missing)),
            Survey::Unreadable => Err(Error::Unverified),
        }
    }
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
        let netns = self.netns_lookup.find(pod).map_err(Error::Lookup)?;
        let resolved = self.resolve(pod, own);
        let survey = in_netns(&netns, resolved.as_ref().ok(), firewall::survey)?;
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
        let netns = self.netns_lookup.find(pod).map_err(Error::Lookup)?;
        let own = self.redirected(pod, facts);
        let today = own.map(|own| self.resolve(pod, own)).transpose()?;
        in_netns(&netns, today.as_ref(), firewall::compare)
    }

    fn redirected(&self, pod: &StrandedPod, facts: Decision<OwnFacts>) -> Option<OwnFacts> {
        // The containers decide, not the annotations: `kubectl debug --copy-to` removes them.
        let is_skipped = self.config.filter.skip_reason(&pod.pod_ref()).is_some();
        match facts {
            Decision::Redirect(own) if !self.config.simulate && !is_skipped => Some(own),
            _ => None,
        }
    }

    fn resolve(
        &mut self,
        pod: &StrandedPod,
        own: OwnFacts,
    ) -> Result<ResolvedRedirect, cni::Error> {
        let facts = own.complete(&pod.namespace, &mut self.objects)?;
        self.config.resolve(&facts)
    }
}

/// Runs `work` in the netns with the rules that the plugin would install now, if they are known. Fails if
/// the pod's sandbox ignores them.
fn in_netns<T: Send + 'static>(
    netns: &Path,
    today: Option<&ResolvedRedirect>,
    work: fn(Option<&Origin>) -> Result<T, firewall::Error>,
) -> Result<T, Error> {
    if let Some(error) = today.and_then(ResolvedRedirect::sandbox_error) {
        return Err(error.into());
    }
    let today = today.map(|resolved| firewall::origin(resolved.redirect.clone(), resolved.ipv6));
    Ok(netns::run(netns, NETNS_TIMEOUT, move || work(today.as_ref()))??)
}
