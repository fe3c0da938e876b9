//! Takes stranded pods from the queue, repairs one at a time, and reports each result by log
//! line, metric and Event.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::not_repaired::{self, COMPLETE, NotRepaired};
use super::{delete, in_place};
use crate::config::Config;
use crate::firewall::{RulesState, describe_missing};
use crate::kube::connection::Connection;
use crate::kube::event::{EventContent, Regarding};
use crate::kube::object_reader::ReadFrom;
use crate::kube::types::Pod;
use crate::pod::facts::object_facts;
use crate::repair::events::{self, REPAIRED_RECENTLY};
use crate::repair::find::inspect::{Inspected, Inspector};
use crate::repair::find::plugin_config;
use crate::repair::find::stranded::{FoundBy, FoundPod, StrandedPod};
use crate::repair::queue::Next;
use crate::repair::settings::RepairMode;
use crate::repair::{Shared, agent_ready};

/// Timeout of each API request of the worker, once for connecting and once for the
/// response. Upstream's value.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Worker {
    connection: Connection,
    shared: Arc<Shared>,
}

impl Worker {
    pub fn new(connection: Connection, shared: Arc<Shared>) -> Self {
        Worker { connection, shared }
    }

    /// Repairs pods until the process exits. Each repair may end at any step: the next controller finds the
    /// pod again.
    pub fn run(mut self) {
        loop {
            match self.shared.queue.next() {
                Next::Check(pod) => self.repair(&pod),
                Next::AskAgent => self.ask_agent(),
            }
        }
    }

    fn ask_agent(&self) {
        let Some(address) = &self.shared.settings.agent_addr else { return };
        let response = agent_ready::ask(address);
        let begins_pause = self.shared.queue.record_agent(response.is_ok());
        if let Err(why) = response
            && begins_pause
        {
            tracing::warn!("Repairs are paused: {why}");
        }
    }

    fn repair(&mut self, pod: &StrandedPod) {
        let FoundPod { namespace, name, .. } = &pod.found;
        let began = Instant::now();
        match self.attempt(pod) {
            Ok(missing_rules) => self.record_repair(pod, began, &missing_rules),
            Err(NotRepaired::Unneeded(why)) => tracing::debug!(namespace, name, "{why}"),
            Err(complete @ NotRepaired::Complete) => {
                tracing::debug!(namespace, name, "{complete}");
                if self.shared.queue.record_complete(pod) {
                    self.report_skipped(pod, COMPLETE);
                }
            }
            Err(NotRepaired::Skipped(why, wait)) => {
                if !wait.is_zero() {
                    self.shared.queue.record_failure(pod, wait);
                }
                self.report_skipped(pod, &why);
            }
            Err(failed) => {
                let line = failed.count(self.shared.settings.mode, &self.shared.metrics);
                self.shared.queue.record_failure(pod, Duration::ZERO);
                tracing::warn!(err = %failed, namespace, name, "{line}");
            }
        }
    }

    /// Applies the repair mode to the pod if the pod still needs a repair. Returns the missing rules, if the
    /// rules were read.
    fn attempt(&mut self, found: &StrandedPod) -> Result<Vec<String>, NotRepaired> {
        let (pod, inspected) = self.check(found)?;
        if let Some(wait) = self.shared.queue.hold(&pod) {
            self.shared.metrics.pods_held.inc();
            return Err(NotRepaired::Skipped(REPAIRED_RECENTLY.to_owned(), wait));
        }
        let result = self.apply(&pod, inspected.as_ref());
        let rejection = match &result {
            Err(NotRepaired::Request(error)) => error.code(),
            _ => None,
        };
        // A rejected request changed nothing and costs no budget. A request without a
        // response may have been carried out.
        if rejection.is_none() && !matches!(result, Err(NotRepaired::Skipped(..))) {
            self.shared.queue.spend_budget(&pod);
        }
        match rejection {
            Some(404) => Err(NotRepaired::Unneeded("Pod is gone")),
            // The watch delivers the change as an event.
            Some(409) => Err(NotRepaired::Unneeded(
                "Pod has changed; its next event or the next audit finds it again",
            )),
            _ => result.map(|()| match inspected {
                Some(Inspected { rules: RulesState::Missing(_, missing), .. }) => missing,
                _ => Vec::new(),
            }),
        }
    }

    /// Checks whether the pod needs a repair that helps. Returns the pod, and its rules if they were read.
    fn check(
        &mut self,
        found: &StrandedPod,
    ) -> Result<(StrandedPod, Option<Inspected>), NotRepaired> {
        let (mode, is_audited) =
            (self.shared.settings.mode, found.found.found_by == FoundBy::Audit);
        let config = plugin_config::read(&self.shared.settings.net_dir());
        not_repaired::check_redirected(found, config.as_ref().ok())?;
        if mode == RepairMode::Delete && !is_audited {
            // The preconditions of the deletion name the version that was found.
            return Ok((found.clone(), None));
        }
        let (pod, object) = self.read_again(found)?;
        let inspected = match mode == RepairMode::InPlace || is_audited {
            true => Some(self.inspect(&pod, object, config?)?),
            false => None,
        };
        Ok((pod, inspected))
    }

    /// Reads the pod's rules. Fails unless rules are missing, or are other rules than today's although
    /// the validator failed.
    fn inspect(
        &mut self,
        pod: &StrandedPod,
        object: Pod,
        config: Config,
    ) -> Result<Inspected, NotRepaired> {
        let client = self.connection.client()?;
        let mut inspector = Inspector::new(client, config, &self.shared.settings, ReadFrom::Etcd);
        let facts = object_facts(object).map_err(Box::<dyn Error>::from)?;
        let Some(inspected) = inspector.inspect(pod, facts)? else {
            return Err(not_repaired::no_rules(pod, not_repaired::UNMESHED.to_owned()));
        };
        match (&inspected.rules, pod.found.found_by) {
            // The failed validator proves that the rules are wrong, which today's values may mend.
            (RulesState::Missing(..), _) | (RulesState::Drifted(_), FoundBy::Validator) => {
                Ok(inspected)
            }
            (RulesState::Complete, FoundBy::Validator) => Err(NotRepaired::Complete),
            (RulesState::Complete | RulesState::Drifted(_), FoundBy::Audit) => {
                Err(NotRepaired::Unneeded("Pod has all its redirect rules"))
            }
            (RulesState::Unreadable, _) => Err(NotRepaired::impossible(not_repaired::UNREADABLE)),
        }
    }

    fn apply(
        &mut self,
        pod: &StrandedPod,
        inspected: Option<&Inspected>,
    ) -> Result<(), NotRepaired> {
        match self.shared.settings.mode {
            RepairMode::Delete => {
                not_repaired::check_replacement(&pod.facts, self.shared.settings.delete_unmanaged)?;
                delete::evict_or_delete(&self.connection.client()?, &pod.found)?;
            }
            RepairMode::InPlace => inspected.map_or(Ok(()), in_place::install_rules)?,
            RepairMode::Report => {}
        }
        Ok(())
    }

    /// Reads the pod from the API server, because the list, watch event or audit may be old by now. Fails
    /// if the pod is gone, was replaced by another pod of the same name, or needs no repair any more.
    fn read_again(&mut self, found: &StrandedPod) -> Result<(StrandedPod, Pod), NotRepaired> {
        let gone = NotRepaired::Unneeded("Pod is gone or needs no repair");
        let object: Pod = match self.connection.client()?.get(&found.found.api_path()) {
            Err(error) if error.code() == Some(404) => return Err(gone),
            object => object?,
        };
        match StrandedPod::from_object(&object, found.found.found_by) {
            Some(pod) if pod.found.uid == found.found.uid => Ok((pod, object)),
            _ => Err(gone),
        }
    }

    fn record_repair(&mut self, pod: &StrandedPod, began: Instant, missing_rules: &[String]) {
        let (metrics, mode) = (&self.shared.metrics, self.shared.settings.mode);
        let (counter, line) = match mode {
            RepairMode::Delete => {
                metrics.pods_delete_latency_seconds.observe(began.elapsed().as_secs_f64());
                (&metrics.pods_deleted, "Deleted pod")
            }
            RepairMode::InPlace => (&metrics.pods_repaired, "Repaired pod in place"),
            RepairMode::Report => (&metrics.pods_reported, "Reported stranded pod"),
        };
        counter.inc();
        match mode {
            RepairMode::Delete | RepairMode::InPlace => self.shared.queue.record_repair(pod),
            RepairMode::Report => self.shared.queue.record_report_only(pod),
        }
        let missing = match missing_rules {
            [] => String::new(),
            missing => {
                let missing = describe_missing(missing);
                format!("; missing rules in the format of iptables-save: {missing}")
            }
        };
        let FoundPod { namespace, name, found_by, .. } = &pod.found;
        tracing::info!(namespace, name, "{line}{missing}");
        self.publish(&pod.found, &events::repaired(mode, *found_by, missing_rules.len()));
    }

    /// Logs why the pod is left unchanged for now, and posts an Event with the same text. At most
    /// once an hour for the same reason.
    fn report_skipped(&mut self, pod: &StrandedPod, why: &str) {
        if self.shared.queue.is_report_due(pod, why) {
            self.shared.metrics.pods_skipped.inc();
            let FoundPod { namespace, name, found_by, .. } = &pod.found;
            let event = events::skipped(*found_by, why);
            tracing::warn!(namespace, name, "{}", event.note);
            self.publish(&pod.found, &event);
        }
    }

    fn publish(&mut self, pod: &FoundPod, event: &EventContent) {
        let regarding =
            Regarding { kind: "Pod", namespace: &pod.namespace, name: &pod.name, uid: &pod.uid };
        self.shared.publish(&mut self.connection, regarding, event);
    }
}
