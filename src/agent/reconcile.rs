//! Reconciles the host in one pass: observes it, compares each file with what it should be, writes
//! the files that differ, verifies them, and judges from the outcomes whether the node is ready.
//!
//! [`install`](crate::node::install) has the steps that write, and their order.

mod entry_history;
pub mod findings;
pub mod judge;
mod kubeconfig;
mod other_agent;
mod plugin_token;
mod verify;
mod withdrawals;

use std::sync::Arc;
use std::time::Instant;

use super::api_thread::ApiHandle;
use super::api_thread::event_queue::Event;
use super::readiness::Status;
use super::record_socket::RecordSocket;
use super::runtime_proof::Chain;
use super::self_test::SelfTest;
use super::settings::Settings;
use super::status_body::StatusBody;
use super::subject::Subject;
use super::yielding::{OtherAgent, usable_entry_is_installed};
use crate::conflist::net_dir::ConfigFile;
use crate::conflist::saved_state::SavedState;
use crate::conflist::{Entry, PLUGIN, plan};
use crate::files;
use crate::kube::event::{EventContent, EventType};
use crate::node::binaries::Binaries;
use crate::node::contention::{ContendedFile, LimitedWriter, WrittenFile};
use crate::node::install::bin_dir::BinDirCheck;
use crate::node::install::network_configs::Chaining;
use crate::node::install::run_check::RunCheck;
use crate::node::install::{self, StepOutcome, kubeconfig::HostName};
use crate::node::leftovers::{LeftoversOutcome, LeftoversRemoval};
use crate::node::lock::NodeLocker;
use crate::node::observed::Observed;
use crate::node::{Mounts, NodeSettings, withdrawal};
use entry_history::EntryHistory;
use findings::Finding;
use judge::{ConfigsReconciled, Installed, Judgement, Verified};
use other_agent::{KeptFiles, OtherAgents};
use plugin_token::TokenSource;
use withdrawals::{OwnChain, Withdrawals};

/// Reconciles the host. Each pass decides from the files that it finds. What is remembered between
/// passes only saves work, repeated log lines, and writes under contention.
pub struct Reconciler {
    pub settings: Arc<Settings>,
    pub status: Arc<Status>,
    pub api: Arc<ApiHandle>,
    /// Shows whether a newer agent of this project runs, to which this agent then yields: the newer
    /// agent has replaced the file of the socket.
    pub record_socket: Arc<RecordSocket>,
    pub mounts: Mounts,
    entry: Entry,
    node_lock: NodeLocker,
    writer: LimitedWriter,
    binaries: Binaries,
    run_check: RunCheck,
    bin_dir: BinDirCheck,
    leftovers: LeftoversRemoval,
    token_source: TokenSource,
    other_agents: OtherAgents,
    withdrawals: Withdrawals,
    entry_history: EntryHistory,
    /// `None` if the settings do not require a self-test for readiness.
    self_test: Option<SelfTest>,
}

impl Reconciler {
    pub fn new(
        settings: Arc<Settings>,
        entry: Entry,
        status: Arc<Status>,
        api: Arc<ApiHandle>,
        self_test: Option<SelfTest>,
        record_socket: Arc<RecordSocket>,
    ) -> Reconciler {
        let node = &settings.node;
        Reconciler {
            mounts: Mounts::at_start(node),
            node_lock: NodeLocker::new(node),
            writer: limited_writer(&status),
            binaries: Binaries::default(),
            run_check: RunCheck::default(),
            bin_dir: BinDirCheck::at_start(node),
            leftovers: LeftoversRemoval::default(),
            token_source: TokenSource::default(),
            other_agents: OtherAgents::new(&settings),
            withdrawals: Withdrawals::default(),
            entry_history: EntryHistory::default(),
            settings,
            entry,
            status,
            api,
            self_test,
            record_socket,
        }
    }

    /// Runs one reconcile pass, and reports its judgement together with the `findings` of the main
    /// loop. Writes nothing if a mounted directory is no longer the node's.
    pub fn pass(&mut self, findings: Vec<(Subject, Finding)>) -> Judgement {
        let mut judgement = match self.mounts.stale() {
            Some(why) => judge::judge_stale_mounts(why),
            None => self.reconcile(),
        };
        judgement.add(findings);
        self.report(&judgement);
        judgement
    }

    /// Observes the node, decides, installs, verifies and judges, in this order.
    fn reconcile(&mut self) -> Judgement {
        let settings = Arc::clone(&self.settings);
        let node = &settings.node;
        // If a newer agent has ended and removed its socket, this agent receives the records again.
        self.record_socket.reopen_missing();
        let lock = self.node_lock.take();
        let observed = Observed::read(node);
        let kept = self.decide_kept_files(&observed);
        let is_stopping = self.status.state().stopped_by.is_some();
        let token = self.token_source.token(&settings, &self.api, &observed);
        let decision =
            kubeconfig::decide(&settings, &self.api, is_stopping, kept.agent, &token, &observed);
        // Nothing is installed on an empty node until there is a token for the plugin.
        let lacks_token = is_stopping || token.text.is_err();
        let has_nothing = observed.is_empty() && !observed.has_plugin;
        let is_deferred = lacks_token && has_nothing;

        let desired = decision.text_to_write();
        let host_name = install::kubeconfig::replace_host_name(
            node,
            &observed,
            desired,
            &mut self.other_agents.upstream_kubeconfig,
            &mut self.writer,
        );
        let mut binaries = StepOutcome::default();
        if !is_deferred && host_name != HostName::Stays {
            binaries = self.install_binaries(&observed, kept.agent);
        }
        let kubeconfig = install::kubeconfig::install(
            node,
            desired,
            &mut self.other_agents.upstream_kubeconfig,
            &mut self.writer,
        );
        // The token in the kubeconfig does not matter here. Even if the API server rejects it, the
        // plugin is chained, because without the plugin meshed pods start without redirect rules.
        let has_kubeconfig = decision.missing().is_none() && kubeconfig.problem.is_none();
        let can_chain = !is_deferred && binaries.problem.is_none() && has_kubeconfig;
        let configs = self.reconcile_configs(observed, kept.agent, can_chain, lock.is_exclusive);
        drop(lock);

        let contended = self.writer.contended(Instant::now());
        let installed = Installed {
            kept,
            token,
            decision,
            host_name,
            binaries,
            kubeconfig,
            configs,
            contended,
        };
        let verified = self.verify(&installed);
        self.report_writes(&installed, &verified);
        judge::judge(&installed, &verified)
    }

    /// Returns whether an agent may have installed anything on the node. If the net dir cannot be
    /// read, or is no longer the node's, it may have a plugin entry.
    pub fn is_installed(&self) -> bool {
        self.mounts.stale_net_dir().is_some() || !Observed::read(&self.settings.node).is_empty()
    }

    /// Restores the kubeconfig of an upstream agent if one chains the plugin. Returns whether one
    /// does.
    pub fn restore_upstream_kubeconfig(&self) -> bool {
        self.other_agents.restore_upstream_kubeconfig(&self.settings.node, &self.entry)
    }

    /// Decides whether the plugin binary and the kubeconfig of another agent stay in use.
    fn decide_kept_files(&mut self, observed: &Observed) -> KeptFiles {
        let OtherAgents { upstream_kubeconfig, .. } = &mut self.other_agents;
        // An equal plugin entry with another text may be upstream's only if upstream's kubeconfig
        // was found: upstream's agent writes its kubeconfig before its plugin entry.
        self.entry.is_exact = upstream_kubeconfig.remember(&self.settings.node.kubeconfig());
        self.other_agents.decide_kept_files(
            &self.settings,
            self.record_socket.newer_agent_runs(),
            &mut self.binaries,
            &self.entry,
            observed,
        )
    }

    /// Copies the plugin binaries to the host, and runs the installed plugin. `kept` is the agent
    /// whose plugin binary stays in use.
    fn install_binaries(&mut self, observed: &Observed, kept: Option<OtherAgent>) -> StepOutcome {
        let node = &self.settings.node;
        let keeps_other_binaries = kept.is_some();
        let mut outcome = install::binaries::install(
            node,
            observed,
            keeps_other_binaries,
            &mut self.binaries,
            &mut self.run_check,
            &mut self.writer,
        );
        // The plugin of an upstream agent is not run here. It may need the node's libc, and the
        // pods that it has started show that it can be run.
        if outcome.problem.is_none() && kept != Some(OtherAgent::Upstream) {
            install::binaries::check_installed(node, observed, &mut self.run_check, &mut outcome);
        }
        outcome
    }

    /// Keeps the plugin entry in the network configs correct, which may be the entry of this agent
    /// or of another. Writes only if binary and kubeconfig are in place (`can_chain`). `is_locked`
    /// says that no other agent of this project writes at the same time. `kept` is the agent whose
    /// plugin binary and kubeconfig stay in use.
    fn reconcile_configs(
        &mut self,
        observed: Observed,
        kept: Option<OtherAgent>,
        can_chain: bool,
        is_locked: bool,
    ) -> ConfigsReconciled {
        let newer_agent_runs = kept == Some(OtherAgent::Newer);
        let mut configs = match observed.configs {
            Ok(configs) => configs,
            Err(error) => return ConfigsReconciled::failed(error.to_string()),
        };
        let settings = Arc::clone(&self.settings);
        let node = &settings.node;
        self.count_time_without_entry(&configs);
        let mut chain = OwnChain::default();
        if kept.is_none() {
            chain = self.withdrawals.decide(node, &self.entry, &self.api);
        }
        let is_withdrawn = chain.withdrawn_for.is_some();
        let mut leftovers = LeftoversOutcome::default();
        if can_chain && !self.leftovers.is_complete() {
            leftovers = self.leftovers.attempt(node, &observed.saved, is_locked);
            // Some of these network configs may have been leftovers, and are removed now.
            configs.retain(|file| node.net_dir.join(&file.name).symlink_metadata().is_ok());
        }
        let mut yielded = None;
        if can_chain && !is_withdrawn {
            let own = &self.entry;
            yielded = self.other_agents.decide_entry_in_use(node, newer_agent_runs, own, &configs);
        }
        let is_left_to_newer_agent =
            newer_agent_runs && self.leaves_writes_to_newer_agent(&configs, &observed.saved);
        let chaining = Chaining {
            settings: node,
            own: &self.entry,
            yielded: yielded.as_ref().map(|yielded| &yielded.entry),
            is_left_to_newer_agent,
            can_chain,
            is_locked,
            bin_dir: self.bin_dir.check(node, settings.require_network_plugins, &configs),
            withdrawn: chain.describe_withdrawal(node),
        };
        let outcome = install::network_configs::install(
            &chaining,
            &configs,
            observed.saved,
            &mut self.writer,
        );
        let has_chained = can_chain && !is_withdrawn && outcome.problem.is_none();
        let is_own_chain = kept.is_none() && yielded.is_none();
        if has_chained && is_own_chain {
            self.withdrawals.remove_outdated_record(node);
        }
        let mut chain_in_place = None;
        if yielded.is_none() && outcome.is_unchanged() {
            chain_in_place = self.chain_in_place(chain, &configs);
        }
        self.api.observe_chain(chain_in_place);
        ConfigsReconciled { leftovers, yielded, outcome }
    }

    /// Returns whether this agent writes no network config while a newer agent runs: because the
    /// plugin is chained already, or because one of the two agents has withdrawn its chain.
    fn leaves_writes_to_newer_agent(&self, configs: &[ConfigFile], saved: &SavedState) -> bool {
        self.has_usable_entry(configs, saved)
            || has_withdrawn_its_chain(&self.settings.node)
            || self.withdrawals.has_withdrawn()
    }

    /// Returns the chain of this agent, if the runtime calls the plugin through it for each pod.
    /// `None` in the mode in which Multus calls the plugin: pods that do not name it there start
    /// whatever is wrong with it.
    fn chain_in_place(&self, own: OwnChain, configs: &[ConfigFile]) -> Option<Chain> {
        let node = &self.settings.node;
        if own.withdrawn_for.is_some() {
            return None;
        }
        let called = plan::called_config(configs)?;
        if !self.entry.matches(called.plugin_entry()?.text) {
            return None;
        }
        let config_changed = files::changed_at(&node.net_dir.join(&called.name))?;
        let binary_changed = files::changed_at(&node.bin_dir.join(PLUGIN))?;
        Some(Chain { digest: own.digest?, since: config_changed.max(binary_changed) })
    }

    /// Returns whether a plugin entry is installed with which the plugin works.
    fn has_usable_entry(&self, configs: &[ConfigFile], saved: &SavedState) -> bool {
        let NodeSettings { kubeconfig_on_host, mode, .. } = &self.settings.node;
        usable_entry_is_installed(&self.entry, kubeconfig_on_host, mode, configs, saved)
    }

    /// Checks what the install steps left on the node.
    fn verify(&mut self, installed: &Installed) -> Verified {
        let Installed { decision, kubeconfig, .. } = installed;
        let node = &self.settings.node;
        let mut token = None;
        if kubeconfig.problem.is_none() {
            let was_written = installed.wrote_kubeconfig();
            token = kubeconfig::check_token(&self.settings, &self.api, decision, was_written);
        }
        Verified {
            self_test: verify::run_self_test(&mut self.self_test, node, &self.entry, installed),
            token,
            token_expires: verify::token_expiry(node),
            pods_awaited_until: self.status.pods_awaited_until(),
        }
    }

    /// Reports in the metrics what a pass has written and verified. Posts an Event for new
    /// contention.
    fn report_writes(&mut self, installed: &Installed, verified: &Verified) {
        let Installed { token, binaries, kubeconfig, host_name, configs, contended, .. } =
            installed;
        let metrics = &self.status.metrics;
        metrics.token_request_failed.set(token.request_error.is_some().into());
        metrics.binary_writes.inc_by(binaries.writes);
        let host_name_writes = u64::from(*host_name == HostName::Replaced);
        metrics.kubeconfig_writes.inc_by(host_name_writes + kubeconfig.writes);
        let writes = &configs.outcome.writes;
        metrics.conflist_writes.inc_by(writes.len() as u64);
        metrics.plugin_entry_restores.inc_by(self.entry_history.count_restores(writes));
        let expires = verified.token_expires.unwrap_or_default();
        let expires = i64::try_from(expires).unwrap_or(i64::MAX);
        metrics.token_expiration_timestamp_seconds.set(expires);
        for ContendedFile { file, is_new, .. } in contended {
            if *is_new {
                self.api.report_event(contention_event(file));
            }
        }
    }

    fn count_time_without_entry(&mut self, configs: &[ConfigFile]) {
        let time = self.entry_history.time_without_entry(&self.settings.node.mode, configs);
        self.status.metrics.conflist_without_entry_seconds.inc_by(time.as_secs_f64());
    }

    /// Reports the judgement of a pass in the metrics, in `/ready` and in `/status`, and to the
    /// thread that removes the startup taint.
    fn report(&self, judgement: &Judgement) {
        let metrics = &self.status.metrics;
        metrics.contention_active.set((!judgement.status.contended.is_empty()).into());
        metrics.reconcile.inc();
        if judgement.has_problem() {
            metrics.reconcile_errors.inc();
        }
        if self.status.state().stopped_by.is_some() {
            return;
        }
        // `not_ready` says nothing about warnings. So the startup taint is removed in spite of
        // them: some warnings are permanent.
        self.api.record_pass(judgement.status.not_ready.as_deref());
        let runtime = self.api.runtime_status();
        self.status.set_last_pass(StatusBody { runtime, ..judgement.status.clone() });
    }
}

fn contention_event(file: &WrittenFile) -> Event {
    Event::on_node(EventContent {
        kind: EventType::Warning,
        reason: "LinkerdCNIContention",
        action: "Chaining",
        note: file.to_string(),
    })
}

/// Returns whether the newer agent has withdrawn its chain, so that this agent must not chain the
/// plugin in its place. An unreadable record counts as one.
fn has_withdrawn_its_chain(settings: &NodeSettings) -> bool {
    !matches!(withdrawal::read(settings), Ok(None))
}

/// Returns a writer that makes the node not ready before each write. `/ready` then reports the file
/// until the end of the pass.
fn limited_writer(status: &Arc<Status>) -> LimitedWriter {
    let status = Arc::clone(status);
    LimitedWriter::new(move |file| {
        let why = format!("{}: being corrected", judge::subject(file));
        status.state().last_pass.not_ready = Some(why);
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ready_reports_a_file_as_being_corrected_while_it_is_written() {
        let status = Arc::new(Status::new(Duration::from_secs(30)));
        let mut writer = limited_writer(&status);
        let file = WrittenFile::Kubeconfig("/etc/cni/net.d/kubeconfig".into());
        let written = writer.write(&file, "", Instant::now(), || {
            let not_ready = status.state().last_pass.not_ready.clone();
            assert_eq!(not_ready.as_deref(), Some("kubeconfig: being corrected"));
            Ok::<(), ()>(())
        });
        assert!(written.is_ok());
    }
}
