//! Withdraws the chain when the container runtime cannot run the plugin: records it on the node, so
//! that the pass then removes the plugin entry, and no later agent with the same chain adds it.

use tracing::{info, warn};

use crate::agent::api_thread::ApiHandle;
use crate::agent::api_thread::event_queue::Event;
use crate::conflist::{Entry, PLUGIN};
use crate::kube::event::{EventContent, EventType};
use crate::node::NodeSettings;
use crate::node::chain_digest::ChainDigest;
use crate::node::withdrawal::{self, Evidence, RunFailure, Withdrawal};

/// What happens to pods on a node whose chain is withdrawn.
const CONSEQUENCE: &str = "pods start again, but meshed pods start without redirect rules: their \
    validator fails, and they are repaired once the plugin is chained again";

#[derive(Debug, Default)]
pub struct Withdrawals {
    digest: ChainDigest,
    /// Digest of the withdrawn chain whose record an earlier pass found, or wrote. If the record is
    /// missing now, somebody has removed it.
    recorded: Option<String>,
    /// Whether there is a record of another chain.
    has_outdated_record: bool,
    /// Digest of the withdrawn chain about which this agent has posted an Event.
    reported: Option<String>,
    /// The last problem with the record, which is logged.
    problem: Option<String>,
}

/// The chain that this agent would put in place, or has put in place.
#[derive(Debug, Default)]
pub struct OwnChain {
    /// `None` if the plugin binary cannot be read.
    pub digest: Option<String>,
    /// Why the chain is withdrawn. `None` if it is not.
    pub withdrawn_for: Option<Evidence>,
}

impl Withdrawals {
    /// Decides whether the chain of this agent is withdrawn. If it is so from now on, records that on
    /// the node, and posts an Event.
    pub fn decide(&mut self, settings: &NodeSettings, entry: &Entry, api: &ApiHandle) -> OwnChain {
        let Some(digest) = self.digest.compute(settings, entry) else {
            return OwnChain::default();
        };
        let recorded = match withdrawal::read(settings) {
            Ok(recorded) => recorded,
            // A record that cannot be read is not a record that was removed.
            Err(error) => {
                self.log_problem(error.to_string());
                let withdrawn_for = api.evidence_against(&digest);
                return OwnChain { digest: Some(digest), withdrawn_for };
            }
        };
        if let Some(recorded) = &recorded
            && recorded.chain == digest
        {
            if api.evidence_against(&digest).is_none() {
                api.adopt_withdrawal(&digest, recorded.evidence.clone());
            }
            self.recorded = Some(digest.clone());
            let withdrawn_for = Some(recorded.evidence.clone());
            return OwnChain { digest: Some(digest), withdrawn_for };
        }
        if self.recorded.as_ref() == Some(&digest) {
            info!("the record of the withdrawal is gone, so the plugin is chained again");
            self.recorded = None;
            api.forget_withdrawal();
        }
        self.has_outdated_record = recorded.is_some();
        let evidence = api.evidence_against(&digest);
        if let Some(evidence) = &evidence {
            self.record(settings, api, &digest, evidence);
        }
        OwnChain { digest: Some(digest), withdrawn_for: evidence }
    }

    /// Removes the record of another chain, once the chain of this agent is in place. Until then the
    /// record keeps an older agent from putting the withdrawn chain in place again.
    pub fn remove_outdated_record(&mut self, settings: &NodeSettings) {
        if !self.has_outdated_record {
            return;
        }
        self.has_outdated_record = false;
        info!(
            "the plugin, its directory or the plugin entry has changed since the plugin entry was \
             withdrawn, so the plugin is chained again"
        );
        if let Err(error) = withdrawal::remove(settings) {
            self.log_problem(error.to_string());
        }
    }

    /// Returns whether this agent has found, or written, the record of its own chain.
    pub fn has_withdrawn(&self) -> bool {
        self.recorded.is_some()
    }

    /// Records a new withdrawal. If that fails, the plugin entry is removed nevertheless, because no
    /// pod starts with it; the next pass tries again.
    fn record(
        &mut self,
        settings: &NodeSettings,
        api: &ApiHandle,
        digest: &str,
        evidence: &Evidence,
    ) {
        let withdrawal = Withdrawal { chain: digest.to_owned(), evidence: evidence.clone() };
        match withdrawal::record(settings, &withdrawal) {
            Ok(()) => self.recorded = Some(digest.to_owned()),
            Err(error) => {
                self.log_problem(format!("cannot record that the plugin is withdrawn: {error}"));
            }
        }
        if self.reported.as_deref() == Some(digest) {
            return;
        }
        self.reported = Some(digest.to_owned());
        api.report_event(Event::on_node(EventContent {
            kind: EventType::Warning,
            reason: "LinkerdCNIWithdrawn",
            action: "Unchaining",
            note: describe(settings, evidence),
        }));
    }

    fn log_problem(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            warn!("{problem}");
            self.problem = Some(problem);
        }
    }
}

/// Describes a withdrawal: what the runtime says, what follows for pods, and what to do.
pub fn describe(settings: &NodeSettings, evidence: &Evidence) -> String {
    let Evidence { pod, failure, message } = evidence;
    let dir = settings.bin_dir_on_node.display();
    let remedy = match failure {
        RunFailure::NotFound => format!(
            "the agent installs {PLUGIN} in {dir}, and the runtime looks elsewhere: set the chart's \
             platform, or destCNIBinDir to the runtime's directory"
        ),
        RunFailure::NotStarted => format!(
            "the kernel does not start {PLUGIN} in {dir}: allow it in the node's security module \
             (SELinux, AppArmor, fapolicyd), mount {dir} without noexec, or install an image for \
             this processor"
        ),
    };
    let mut text = format!(
        "the container runtime cannot run the plugin, so the agent has removed the plugin entry: \
         for pod {pod} the runtime says: {message}; {remedy}; {CONSEQUENCE}"
    );
    if let Some(record) = withdrawal::path(settings) {
        text.push_str(&format!(
            "; after a change of the runtime alone, remove {} on the node",
            record.display()
        ));
    }
    text
}
