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

impl OwnChain {
    /// Describes the withdrawal of the chain. `None` if the chain is not withdrawn.
    pub fn describe_withdrawal(&self, settings: &NodeSettings) -> Option<String> {
        let evidence = self.withdrawn_for.as_ref()?;
        Some(describe(settings, evidence))
    }
}

impl Withdrawals {
    /// Decides whether the chain of this agent is withdrawn. If it is so from now on, records that on
    /// the node, and posts an Event.
    pub fn decide(&mut self, settings: &NodeSettings, entry: &Entry, api: &ApiHandle) -> OwnChain {
        let Some(digest) = self.digest.compute(settings, entry) else {
            return OwnChain::default();
        };
        let withdrawn_for = self.withdrawn_for(settings, api, &digest);
        OwnChain { digest: Some(digest), withdrawn_for }
    }

    /// Returns why the chain with this digest is withdrawn, by the record on the node or by what the
    /// runtime has shown. `None` if it is not.
    fn withdrawn_for(
        &mut self,
        settings: &NodeSettings,
        api: &ApiHandle,
        digest: &str,
    ) -> Option<Evidence> {
        let recorded = match withdrawal::read(settings) {
            Ok(recorded) => recorded,
            // A record that cannot be read is not a record that was removed.
            Err(error) => {
                self.log_problem(error.to_string());
                return api.evidence_against(digest);
            }
        };
        if let Some(Withdrawal { chain, evidence }) = &recorded
            && chain == digest
        {
            self.adopt(api, digest, evidence);
            return Some(evidence.clone());
        }
        if self.recorded.as_deref() == Some(digest) {
            info!("the record of the withdrawal is gone, so the plugin is chained again");
            self.recorded = None;
            api.forget_withdrawal();
        }
        self.has_outdated_record = recorded.is_some();
        let evidence = api.evidence_against(digest)?;
        self.record(settings, api, digest, &evidence);
        Some(evidence)
    }

    /// Adopts a withdrawal of this agent's chain, which the record on the node shows.
    fn adopt(&mut self, api: &ApiHandle, digest: &str, evidence: &Evidence) {
        if api.evidence_against(digest).is_none() {
            api.adopt_withdrawal(digest, evidence.clone());
        }
        self.recorded = Some(digest.to_owned());
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
        if self.reported.as_deref() != Some(digest) {
            self.reported = Some(digest.to_owned());
            api.report_event(withdrawal_event(settings, evidence));
        }
    }

    fn log_problem(&mut self, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            warn!("{problem}");
            self.problem = Some(problem);
        }
    }
}

fn withdrawal_event(settings: &NodeSettings, evidence: &Evidence) -> Event {
    Event::on_node(EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIWithdrawn",
        action: "Unchaining",
        note: describe(settings, evidence),
    })
}

/// Describes a withdrawal: what the runtime says, what follows for pods, and what to do.
fn describe(settings: &NodeSettings, evidence: &Evidence) -> String {
    let Evidence { pod, failure, message } = evidence;
    let remedy = remedy(settings, *failure);
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

/// Returns what to do so that the container runtime can run the plugin.
fn remedy(settings: &NodeSettings, failure: RunFailure) -> String {
    let dir = settings.bin_dir_on_node.display();
    match failure {
        RunFailure::NotFound => format!(
            "the agent installs {PLUGIN} in {dir}, and the runtime looks elsewhere: set the chart's \
             platform, or destCNIBinDir to the runtime's directory"
        ),
        RunFailure::NotStarted => format!(
            "the kernel does not start {PLUGIN} in {dir}: allow it in the node's security module \
             (SELinux, AppArmor, fapolicyd), mount {dir} without noexec, or install an image for \
             this processor"
        ),
    }
}
