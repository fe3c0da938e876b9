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

/// The rules that the plugin would install in a pod today.
enum TodaysRules {
    /// The plugin installs no rules in the pod.
    NoRules,
    Known(Box<RuleSpec>),
    /// The rules cannot be determined, for this reason.
    Unknown(Box<dyn Error>),
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
        let Decision::Redirect(facts) = facts else { return Ok(None) };
        let name = pod.found.pod_ref();
        // Check the name first: if it decides, no other object has to be read.
        if self.is_skipped_by_name(&name) {
            return Ok(None);
        }
        let netns = self.netns_lookup.find(pod)?;
        let rules = match self.todays_rules(&name, &facts)? {
            TodaysRules::NoRules => return Ok(None),
            TodaysRules::Known(today) => read_rules(&netns, Some(*today))?,
            TodaysRules::Unknown(problem) => {
                let rules = read_rules(&netns, None)?;
                // Without today's rules, each pod whose netns has no marker is reported as
                // unreadable. The cause is then not the netns but the problem.
                if rules == RulesState::Unreadable {
                    return Err(problem.into());
                }
                rules
            }
        };
        Ok(Some(Inspected { netns, rules }))
    }

    /// Determines which rules the plugin would install in a pod with these facts. Fails for a pod
    /// whose sandbox ignores rules, because no rules redirect its traffic.
    fn todays_rules(
        &mut self,
        pod: &PodRef,
        facts: &ObjectFacts,
    ) -> Result<TodaysRules, InspectError> {
        let verdict = match complete_facts(facts, &pod.namespace, &mut self.objects) {
            Ok(facts) => verdict(&self.config, pod, PodView::Complete(&facts)),
            Err(error) => Verdict::Failed(error),
        };
        match verdict {
            Verdict::NotCalled(_) | Verdict::Skipped(_) => Ok(TodaysRules::NoRules),
            // ADD refuses a pod that shares the proxy's user, but the pod may have started before
            // ADD refused such pods. So its rules are compared as well.
            Verdict::Redirected(today)
            | Verdict::Refused(Refusal::SharedProxyUser { .. }, today) => {
                let spec = firewall::rule_spec(today.redirect, today.ipv6);
                Ok(TodaysRules::Known(Box::new(spec)))
            }
            Verdict::Refused(sandbox @ Refusal::Sandbox { .. }, _) => {
                Err(undetermined(&sandbox.error()).into())
            }
            Verdict::Failed(error) => Ok(TodaysRules::Unknown(undetermined(&error))),
            Verdict::Undecided(why) => Ok(TodaysRules::Unknown(why.into())),
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
