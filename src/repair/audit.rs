//! The audit: compares the rules of all running meshed pods with the rules with which the pods
//! started, after the start of the controller and periodically. `firewall::check` compares the
//! rules, [`Auditor`] decides when, and [`AuditReporter`] reports the result and queues damaged
//! pods.

mod findings;
mod pod_reports;
mod reporter;
mod suspension;

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::find::inspect::Inspector;
use super::find::plugin_config;
use super::find::stranded::{FoundBy, StrandedPod, is_starting};
use super::settings::{RepairMode, Settings};
use super::{Shared, agent_ready};
use crate::backoff::{Backoff, Limits, between, jitter};
use crate::cni::args::PodRef;
use crate::kube::connection::Connection;
use crate::kube::object_reader::ReadFrom;
use crate::kube::pod_list::FromPod;
use crate::kube::pod_watch::{self, Selection};
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::facts::{ObjectFacts, object_facts};
use findings::Findings;
use reporter::AuditReporter;

/// Shortest and longest time between the start of the controller and the first audit in mode
/// `in-place`. After a reboot, the kubelet starts the node's pods in this time, so that the audit
/// finds them running.
const FIRST_AUDIT: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(120)];

/// First and longest wait before the next audit, if an audit failed, found damaged pods or could
/// not judge all pods. Even the longest wait is short enough to renew an Event on a pod before the
/// Event expires (`turn::attempts::REPORT_INTERVAL`).
const REPETITIONS: Limits = [Duration::from_secs(60), Duration::from_secs(1200)];

/// A meshed pod of the node. The whole list is read into memory before the first inspection, so
/// that slow inspections do not delay reading the response.
enum AuditedPod {
    Running(Box<RunningPod>),
    /// The pod does not run yet, so only a later audit can judge it.
    Starting(PodRef),
}

struct RunningPod {
    pod: StrandedPod,
    facts: Decision<ObjectFacts>,
}

impl FromPod for AuditedPod {
    fn from_pod(object: Pod) -> Option<Self> {
        if is_starting(&object) {
            return Some(AuditedPod::Starting(PodRef::from(&object.metadata)));
        }
        let pod = StrandedPod::from_object(&object, FoundBy::Audit)?;
        let facts = object_facts(object).ok()?;
        Some(AuditedPod::Running(Box::new(RunningPod { pod, facts })))
    }
}

/// Returns the time from the start of the controller to its first audit; `None`: no audits.
///
/// After a reboot kubelet skips the init containers, the validator among them, of a pod whose app
/// container was created but not started. Such a pod runs without redirect rules, and only an audit
/// finds it. So mode `in-place` always audits after the start; it changes no pod that has its
/// rules.
pub fn first_wait(settings: &Settings) -> Option<Duration> {
    // The first audit comes at a random time within the period, so that the nodes of a cluster do
    // not audit together.
    let in_period = settings.audit_period().map(jitter);
    if settings.mode != RepairMode::InPlace {
        return in_period;
    }
    let after_start = between(FIRST_AUDIT[0], FIRST_AUDIT[1]);
    Some(shorter(in_period, after_start))
}

/// Returns the time to the next audit; `None`: no more audits. Periods vary by up to a tenth.
fn next_wait(
    period: Option<Duration>,
    is_each_pod_complete: bool,
    backoff: &mut Backoff,
) -> Option<Duration> {
    let in_period = period.map(|period| between(period * 9 / 10, period * 11 / 10));
    if is_each_pod_complete {
        backoff.reset();
        return in_period;
    }
    let repetition = backoff.next_delay();
    Some(shorter(in_period, repetition))
}

/// Returns the shorter of two waits. `in_period` is `None` without periodic audits.
fn shorter(in_period: Option<Duration>, wait: Duration) -> Duration {
    match in_period {
        Some(in_period) => in_period.min(wait),
        None => wait,
    }
}

pub struct Auditor {
    connection: Connection,
    shared: Arc<Shared>,
    reporter: AuditReporter,
    /// Time from which on the plugin installs rules in each new pod. Set only if the settings have
    /// no period: periodic audits do not need the time.
    plugin_works_since: Option<SystemTime>,
}

impl Auditor {
    pub fn new(connection: Connection, shared: Arc<Shared>) -> Self {
        let reporter = AuditReporter::new(Arc::clone(&shared));
        Auditor { connection, shared, reporter, plugin_works_since: None }
    }

    /// Audits after `wait`, and then once in each period of the settings. Without a period, audits
    /// until each pod is known to have its rules: if an audit could not judge a pod, or if the
    /// pod's repair failed, only another audit finds the pod again.
    pub fn run(mut self, mut wait: Duration) {
        let period = self.shared.settings.audit_period();
        let mut backoff = Backoff::spread(REPETITIONS);
        if period.is_none() {
            self.prepare_audit_after_start();
        }
        loop {
            thread::sleep(wait);
            if period.is_none() {
                self.prepare_audit_after_start();
            }
            let is_each_pod_complete = self.audit();
            match next_wait(period, is_each_pod_complete, &mut backoff) {
                Some(next) => wait = next,
                None => return,
            }
        }
    }

    /// Waits until the agent is ready, because before that the node may have no plugin entry. Then
    /// reads since when the plugin works.
    fn prepare_audit_after_start(&mut self) {
        let settings = &self.shared.settings;
        if let Some(address) = &settings.agent_addr {
            agent_ready::wait_until_ready(address);
        }
        let net_dir = settings.net_dir();
        self.plugin_works_since = self.shared.restart_policy.plugin_works_since(&net_dir);
    }

    /// Audits once. Returns whether each pod is known to have its rules.
    fn audit(&mut self) -> bool {
        match self.inspect_pods() {
            Ok(findings) => {
                self.reporter.conclude(&mut self.connection, &findings, Instant::now());
                findings.is_each_pod_complete()
            }
            Err(error) => {
                let error = error.to_string();
                self.reporter.record_failure(&mut self.connection, &error, Instant::now());
                false
            }
        }
    }

    /// Lists the pods of the node, and inspects each of them.
    fn inspect_pods(&mut self) -> Result<Findings, Box<dyn Error>> {
        let settings = &self.shared.settings;
        let config = plugin_config::read(&settings.net_dir())?;
        let pods = Selection::Node(settings.node.clone());
        let list = pod_watch::list_pods::<AuditedPod>(&mut self.connection, &pods)?;
        let client = self.connection.client()?;
        let mut inspector = Inspector::new(client, config, settings, ReadFrom::Cache);
        let mut findings = Findings { not_listed: list.dropped, ..Findings::default() };
        for audited in list.pods {
            match audited {
                AuditedPod::Running(running) => {
                    let RunningPod { pod, facts } = *running;
                    let inspected = inspector.inspect(&pod, facts);
                    findings.add(pod, inspected, self.plugin_works_since);
                }
                AuditedPod::Starting(pod) => {
                    if !inspector.is_skipped_by_name(&pod) {
                        findings.starting += 1;
                    }
                }
            }
        }
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn mode_in_place_audits_within_two_minutes_and_others_within_the_period() {
        for (mode, period, seconds) in [
            ("delete", "0", None),
            ("report", "0", None),
            ("in-place", "0", Some(60..=120)),
            ("in-place", "10", Some(0..=10)),
            ("in-place", "36000", Some(0..=120)),
            ("delete", "10", Some(0..=10)),
        ] {
            let line = ["x", "--node-name=a", "--controller-pod-name=b", "--mode", mode];
            let flags = line.into_iter().chain(["--audit-seconds", period]);
            let Flags { settings } = Flags::try_parse_from(flags).unwrap();
            let first = first_wait(&settings).map(|wait| wait.as_secs());
            assert_eq!(first.is_some(), seconds.is_some(), "{mode} {period}");
            assert!(first.is_none_or(|first| seconds.unwrap().contains(&first)), "{first:?}");
        }
    }

    #[test]
    fn an_audit_without_a_period_ends_only_if_each_pod_is_complete() {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut backoff = Backoff::spread(REPETITIONS);
        for (name, is_each_pod_complete, longest_minutes) in [
            ("the first audit", false, Some(1)),
            ("the second", false, Some(1)),
            ("the third", false, Some(2)),
            ("the fourth", false, Some(4)),
            ("each pod is complete", true, None),
        ] {
            let wait = next_wait(None, is_each_pod_complete, &mut backoff);
            assert_eq!(wait.is_some(), longest_minutes.is_some(), "{name}");
            if let (Some(wait), Some(minutes)) = (wait, longest_minutes) {
                assert!(wait <= minutes * MINUTE, "{name}: {wait:?}");
            }
        }
        for _ in 0..20 {
            assert!(next_wait(None, false, &mut backoff).is_some());
        }
        let longest = next_wait(None, false, &mut backoff).unwrap();
        assert!(longest >= REPETITIONS[1] * 3 / 5 && longest <= REPETITIONS[1], "{longest:?}");
    }

    #[test]
    fn periods_vary_by_a_tenth_and_an_incomplete_audit_is_repeated_earlier() {
        const HOUR: Duration = Duration::from_secs(3600);
        for _ in 0..100 {
            let mut backoff = Backoff::spread(REPETITIONS);
            let wait = next_wait(Some(HOUR), true, &mut backoff).unwrap();
            assert!((HOUR * 9 / 10..=HOUR * 11 / 10).contains(&wait), "{wait:?}");
            let earlier = next_wait(Some(HOUR), false, &mut backoff).unwrap();
            assert!(earlier <= REPETITIONS[0], "{earlier:?}");
            let second = Duration::from_secs(1);
            assert!(next_wait(Some(second), false, &mut backoff).unwrap() <= 2 * second);
        }
    }
}
