//! Compares the rules in a pod's netns with the rules with which the pod started.
//! Leaves out pods without a proxy, and pods that the plugin skips by namespace or name.

use std::error::Error;
use std::time::Duration;

use super::netns_lookup::{NetnsLookup, NetnsUnknown};
use super::stranded::StrandedPod;
use crate::cluster_lookup::complete_facts;
use crate::cni;
use crate::cni::args::PodRef;
use crate::config::Config;
use crate::firewall::{self, RulesState};
use crate::kube::Client;
use crate::kube::object_reader::{ObjectReader, ReadFrom};
use crate::netns::Netns;
use crate::pod::Decision;
use crate::pod::facts::ObjectFacts;
use crate::redirect::RuleSpec;
use crate::repair::settings::Settings;
use crate::verdict::refusal::Refusal;
use crate::verdict::{PodView, Verdict, verdict};

/// Longest time for reading, or installing, the rules of one netns.
pub const NETNS_TIMEOUT: Duration = Duration::from_secs(10);

/// What Events and logs say about a pod whose rules are [`RulesState::Unreadable`].
pub const UNREADABLE: &str = "the pod's network namespace has a table of iptables-legacy, or too \
                              many rules, which the repair controller cannot read; delete the pod \
                              to replace it, and set iptablesMode=auto if it is legacy";

/// Why the rules of a pod are not known.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Netns(#[from] NetnsUnknown),
    #[error("{0}")]
    Rules(#[from] Box<dyn Error>),
}

/// A pod's netns and the state of its rules, if the plugin installs rules in the pod.
#[derive(Debug)]
pub struct Inspected {
    pub netns: Netns,
    pub rules: RulesState,
}

/// Inspects pods. Reads the runtime's cache and each API object only once, so a new inspector is
/// needed for each audit or repair.
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

    /// Returns whether the plugin skips the pod by its name, whatever its containers are.
    pub fn is_skipped_by_name(&self, pod: &PodRef) -> bool {
        matches!(verdict(&self.config, pod, PodView::Incomplete), Verdict::Skipped(_))
    }

    /// Compares the pod's rules with the rules with which the pod started. Changes nothing. Returns
    /// `None` if the plugin installs no rules in this pod.
    pub fn inspect(
        &mut self,
        pod: &StrandedPod,
        facts: Decision<ObjectFacts>,
    ) -> Result<Option<Inspected>, InspectError> {
        // The containers decide whether the pod is meshed, not the annotations, which `kubectl
        // debug --copy-to` does not copy.
        let Decision::Redirect(known) = facts else { return Ok(None) };
        let name = pod.found.pod_ref();
        // Check the name first: if it decides, no other object has to be read.
        if self.is_skipped_by_name(&name) {
            return Ok(None);
        }
        let netns = self.netns_lookup.find(pod)?;
        let verdict = match complete_facts(&known, &name.namespace, &mut self.objects) {
            Ok(facts) => verdict(&self.config, &name, PodView::Complete(&facts)),
            Err(error) => Verdict::Failed(error),
        };
        let (today, problem) = match verdict {
            Verdict::NotCalled(_) | Verdict::Skipped(_) => return Ok(None),
            // ADD refuses a pod that shares the proxy's user, but the pod may have started before
            // ADD refused such pods. So its rules are compared as well.
            Verdict::Redirected(today)
            | Verdict::Refused(Refusal::SharedProxyUser { .. }, today) => (Some(today), None),
            Verdict::Refused(sandbox @ Refusal::Sandbox { .. }, _) => {
                return Err(undetermined(&sandbox.error()).into());
            }
            Verdict::Failed(error) => (None, Some(undetermined(&error))),
            Verdict::Undecided(why) => (None, Some(why.into())),
        };
        let today = today.map(|resolved| firewall::rule_spec(resolved.redirect, resolved.ipv6));
        let rules = read_rules(&netns, today)?;
        match problem {
            // Without today's rules, each pod whose netns has no marker is reported as unreadable.
            // The cause is then not the netns but the problem, so the problem is the error.
            Some(problem) if rules == RulesState::Unreadable => Err(problem.into()),
            _ => Ok(Some(Inspected { netns, rules })),
        }
    }
}

fn read_rules(netns: &Netns, today: Option<RuleSpec>) -> Result<RulesState, Box<dyn Error>> {
    let work = move || firewall::rules_state(today.as_ref());
    Ok(netns.run(NETNS_TIMEOUT, work)??)
}

fn undetermined(error: &cni::Error) -> Box<dyn Error> {
    format!("cannot determine the pod's redirect rules: {error}").into()
}
