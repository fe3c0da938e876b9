//! Compares the rules in a pod's netns with those that the pod started with.
//! Leaves out pods without a proxy, and pods that the plugin skips by namespace or name.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::netns_lookup::NetnsLookup;
use super::settings::Settings;
use super::stranded::StrandedPod;
use crate::cni;
use crate::config::{Config, ResolvedRedirect};
use crate::firewall::{self, RulesState};
use crate::kube::Client;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::netns;
use crate::pod::Decision;
use crate::pod::facts::OwnFacts;
use crate::redirect::RuleSpec;

/// Longest time for reading, or installing, the rules of one netns.
pub const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Rules of a pod in which the plugin installs rules.
#[derive(Debug)]
pub struct Inspected {
    pub netns: PathBuf,
    pub rules: RulesState,
}

/// Inspects pods. Reads the runtime's cache and each API object only once: create a new inspector
/// for each audit or repair.
pub struct Inspector {
    config: Config,
    netns_lookup: NetnsLookup,
    objects: ObjectReader,
}

impl Inspector {
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
    ) -> Result<Option<Inspected>, Box<dyn Error>> {
        let Some(own) = self.redirected(pod, facts) else {
            return Ok(None);
        };
        let netns = self.netns_lookup.find(pod)?;
        let resolved = self.resolve(pod, own);
        let rules = in_netns(&netns, resolved.as_ref().ok(), firewall::rules_state)?;
        if rules == RulesState::Unreadable {
            // Without today's rules, every pod without a marker is unreadable.
            resolved?;
        }
        Ok(Some(Inspected { netns, rules }))
    }

    fn redirected(&self, pod: &StrandedPod, facts: Decision<OwnFacts>) -> Option<OwnFacts> {
        // The containers decide, not the annotations: `kubectl debug --copy-to` removes them.
        let is_skipped = self.config.filter.skip_reason(&pod.pod_ref()).is_some();
        match facts {
            Decision::Redirect(own) if !is_skipped => Some(own),
            _ => None,
        }
    }

    fn resolve(
        &mut self,
        pod: &StrandedPod,
        own: OwnFacts,
    ) -> Result<ResolvedRedirect, Box<dyn Error>> {
        let facts = own.complete(&pod.namespace, &mut self.objects).map_err(undetermined)?;
        self.config.resolve(&facts).map_err(undetermined)
    }
}

fn undetermined(error: cni::Error) -> Box<dyn Error> {
    format!("cannot determine the pod's redirect rules: {error}").into()
}

/// Runs `work` in the netns with the rules that the plugin would install now, if they are known. Fails if
/// the pod's sandbox ignores them.
fn in_netns<T: Send + 'static>(
    netns: &Path,
    today: Option<&ResolvedRedirect>,
    work: fn(Option<&RuleSpec>) -> Result<T, firewall::Error>,
) -> Result<T, Box<dyn Error>> {
    if let Some(error) = today.and_then(ResolvedRedirect::sandbox_error) {
        return Err(undetermined(error));
    }
    let today = today.map(|resolved| firewall::rule_spec(resolved.redirect.clone(), resolved.ipv6));
    Ok(netns::run(netns, NETNS_TIMEOUT, move || work(today.as_ref()))??)
}
