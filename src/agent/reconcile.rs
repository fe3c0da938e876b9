//! Reconciles the host in one pass: observes it, compares each file with what it should be, writes the
//! files that differ, and judges from the outcomes whether the node is ready.
//!
//! The order is plugin binary, kubeconfig, network configs. So no network config ever names a
//! plugin that cannot run. Over an upstream plugin whose kubeconfig has a host name, the kubeconfig
//! comes first.

mod chain;
pub mod judge;
mod kubeconfig;
mod other_agent;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use tracing::info;

use super::api::ApiHandle;
use super::api::claims::Claims;
use super::api::event_queue::Event;
use super::contention::{ContendedFile, Contention};
use super::credential;
use super::entry_gap::EntryGap;
use super::not_ready::NotReadyReport;
use super::readiness::{Status, StatusBody};
use super::record_socket::RecordSocket;
use super::self_test::{SelfTest, TestedPlugin};
use super::settings::Settings;
use super::subject::Subject;
use super::upstream_kubeconfig::UpstreamKubeconfig;
use super::yielding::{OtherAgent, Yielding};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::{Entry, PLUGIN};
use crate::kube::event::{EventContent, EventType};
use crate::node::binaries::Binaries;
use crate::node::lock::NodeLocker;
use crate::node::mounts::Mounts;
use crate::node::observe::observe;
use judge::{BinaryOutcome, ChainOutcome, Outcomes, Progress, Readiness, SelfTestOutcome, judge};

/// Reconciles the host. Decides from the files found in each pass; what it remembers between
/// passes only saves work, log lines and writes under contention.
pub struct Reconciler {
    settings: Arc<Settings>,
    mode: ChainMode,
    entry: Entry,
    status: Arc<Status>,
    api: Arc<ApiHandle>,
    node_lock: NodeLocker,
    mounts: Arc<Mounts>,
    binaries: Binaries,
    contention: Contention,
    /// The last token found in the kubeconfig on the host. It stays in use until the API
    /// server issues one.
    token_found_on_host: Option<String>,
    self_test: Option<SelfTest>,
    chained_conflists: BTreeSet<String>,
    /// Whether the bin dir had the plugin binary when the agent started.
    had_binary: bool,
    /// Whether the runtime is known to look for plugins in the bin dir. Never reset: the
    /// runtime's configuration does not change with a conflist.
    runtime_finds_plugin: bool,
    upstream_kubeconfig: UpstreamKubeconfig,
    /// Shows whether a newer agent of this project runs on this node.
    record_socket: Option<Arc<RecordSocket>>,
    yielding: Yielding,
    /// The other agent whose files stay in use, as logged last.
    yields_to: Option<OtherAgent>,
    leftovers_removed: bool,
    entry_gap: EntryGap,
    not_ready: NotReadyReport,
    ready_logged: bool,
    /// The agent received SIGTERM or SIGINT.
    stopping: bool,
}

impl Reconciler {
    pub fn new(
        settings: Arc<Settings>,
        mode: ChainMode,
        entry: Entry,
        status: Arc<Status>,
        api: Arc<ApiHandle>,
        mounts: Arc<Mounts>,
    ) -> Reconciler {
        let binary = settings.node.bin_dir.join(PLUGIN);
        let had_binary = binary.symlink_metadata().is_ok();
        Reconciler {
            api,
            yielding: Yielding::new(settings.resync),
            node_lock: NodeLocker::new(&settings.node.net_dir),
            mounts,
            settings,
            mode,
            entry,
            status,
            binaries: Binaries::default(),
            contention: Contention::default(),
            token_found_on_host: None,
            self_test: None,
            chained_conflists: BTreeSet::new(),
            had_binary,
            runtime_finds_plugin: false,
            upstream_kubeconfig: UpstreamKubeconfig::default(),
            record_socket: None,
            yields_to: None,
            leftovers_removed: false,
            entry_gap: EntryGap::new(Instant::now()),
            not_ready: NotReadyReport::default(),
            ready_logged: false,
            stopping: false,
        }
    }

    /// Makes readiness depend on `self_test` from now on.
    pub fn require_self_test(&mut self, self_test: SelfTest) {
        self.self_test = Some(self_test);
    }

    /// Returns the names of all conflists to which this agent ever chained the plugin.
    pub fn chained_conflists(&self) -> &BTreeSet<String> {
        &self.chained_conflists
    }

    /// Prepares for the passes between SIGTERM and the agent's end. They never write the kubeconfig:
    /// the agent's token becomes invalid with its pod, and whether to uninstall depends on the token
    /// found there. From now on the startup taint is not removed either.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.api.set_node_ready(false);
    }

    /// Runs one reconcile pass, and sets what `/ready` and the metrics report. Writes nothing to
    /// directories that are no longer the node's.
    pub fn pass(&mut self) -> Readiness {
        let outcomes = match self.mounts.stale() {
            Some(why) => {
                self.status.set_stale_mount(&why);
                Outcomes { stale_mount: Some(why), ..Outcomes::default() }
            }
            None => self.reconcile(),
        };
        let readiness = judge(&outcomes);
        self.publish(&outcomes, &readiness);
        readiness
    }

    /// Compares each file with what it should be, and writes those that differ.
    fn reconcile(&mut self) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let held = self.node_lock.take();
        let observed = observe(&self.settings.node);
        let configs = observed.as_ref().map_or(&[][..], |observed| &observed.configs);
        let (kept, next) = self.kept_files(configs);
        next.into_iter().for_each(|when| outcomes.progress.schedule_next(when));
        // The plugin in the image resolves no names. So it replaces an upstream plugin only once the
        // kubeconfig has an address, which both can use.
        let on_host = Binaries::executable(&self.settings.node.bin_dir, PLUGIN).is_some();
        match on_host && credential::needs_resolver(&self.settings) {
            true => {
                outcomes.kubeconfig = self.install_kubeconfig(kept);
                if !credential::needs_resolver(&self.settings) {
                    outcomes.binary = self.install_binaries(kept);
                }
            }
            false => {
                outcomes.binary = self.install_binaries(kept);
                outcomes.kubeconfig = self.install_kubeconfig(kept);
            }
        }
        // A token that the API server rejects does not prevent chaining: without the plugin, meshed
        // pods would start without redirect rules.
        let can_chain = outcomes.binary.problem.is_none() && outcomes.kubeconfig.missing.is_none();
        outcomes.chain = match observed {
            Ok(observed) => self.install_configs(observed, kept, can_chain, held.is_held()),
            Err(error) => {
                ChainOutcome { error: Some(error.to_string()), ..ChainOutcome::default() }
            }
        };
        drop(held);
        for (file, over_at) in self.contention.active(Instant::now()) {
            outcomes.contended.push(file.clone());
            outcomes.progress.schedule_next(over_at);
        }
        outcomes.self_test = self.check_self_test(&outcomes, kept);
        if let Some(end) = self.status.pods_awaited_until() {
            outcomes.lacks_pods = true;
            outcomes.progress.schedule_next(end);
        }
        let token = credential::token_on_host(&self.settings);
        let end = token.and_then(|token| Claims::read(&token)?.expiry());
        let end = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        outcomes.token_expires = end.map(|end| end.as_secs());
        let seconds = outcomes.token_expires.unwrap_or_default();
        self.status.metrics.token_expiration.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        outcomes
    }

    /// Sets what `/ready`, the metrics, the startup taint and Events show of a pass.
    fn publish(&mut self, outcomes: &Outcomes, readiness: &Readiness) {
        let metrics = &self.status.metrics;
        metrics.contention_active.set(readiness.contention.into());
        metrics.reconciles.inc();
        if readiness.has_problem() {
            metrics.reconcile_errors.inc();
        }
        if self.stopping {
            return;
        }
        metrics.token_request_failed.set(outcomes.kubeconfig.token_request.is_some().into());
        let not_ready = readiness.not_ready.clone();
        if !self.ready_logged && not_ready.is_none() {
            self.ready_logged = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        // The startup taint is removed once the node is ready. Warnings do not delay the removal,
        // because some are permanent.
        self.api.set_node_ready(not_ready.is_none());
        if let Some(event) = self.not_ready.update(not_ready.as_deref(), Instant::now()) {
            self.api.report_event(Event::OnNode(event));
        }
        self.status.publish(StatusBody {
            not_ready,
            note: (!readiness.notes.is_empty()).then(|| readiness.notes.join("; ")),
            conflist: outcomes.chain.conflist.clone(),
            token_expires: outcomes.token_expires,
            contended: outcomes
                .contended
                .iter()
                .map(|file| format!("{}: {file}", file.subject()))
                .collect(),
            problems: readiness.logged(),
            ..StatusBody::default()
        });
    }

    /// Copies the plugin binaries that are missing or different on the host from the image. Those of
    /// another agent that stay in use only need to be executable.
    fn install_binaries(&mut self, kept: Option<OtherAgent>) -> BinaryOutcome {
        let mut progress = Progress::default();
        let problem = self.copy_binaries(kept, &mut progress).err();
        BinaryOutcome { problem, progress }
    }

    fn copy_binaries(
        &mut self,
        kept: Option<OtherAgent>,
        progress: &mut Progress,
    ) -> Result<(), String> {
        let node = &self.settings.node;
        let names = Binaries::in_image(node).map_err(|error| {
            let dir = node.image_bin_dir.display();
            format!("CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries")
        })?;
        let mut stale = self.binaries.stale(node, &names).map_err(|error| error.to_string())?;
        if kept.is_some() {
            stale.retain(|name| Binaries::executable(&node.bin_dir, name).is_none());
        }
        if stale.is_empty() {
            return Ok(());
        }
        self.mark_not_ready(&Subject::Binary);
        let file = ContendedFile::Binaries(node.bin_dir.clone());
        if let Some(until) = self.contention.blocked_until(&file, "", Instant::now()) {
            progress.schedule_next(until);
            return Err(file.to_string());
        }
        for name in stale {
            Binaries::copy(node, &name).map_err(|error| error.to_string())?;
            progress.wrote = true;
            self.status.metrics.binary_writes.inc();
        }
        // Word for word as in Linkerd's troubleshooting page, because users search for it.
        info!("Wrote linkerd CNI binaries to {}", node.bin_dir.display());
        self.record_write(file, "");
        Ok(())
    }

    /// Records a write with the `key` of [`Contention::blocked_until`]. Reports contention that begins
    /// with this write.
    fn record_write(&mut self, file: ContendedFile, key: &str) {
        if self.contention.record_write(file.clone(), key, Instant::now()) {
            self.status.metrics.contentions.inc();
            self.api.report_event(Event::OnAgentPod(EventContent {
                kind: EventType::Warning,
                reason: "LinkerdCNIContention",
                action: "Chaining",
                note: file.to_string(),
            }));
        }
    }

    /// Returns the outcome of the self-test, and starts the self-test if there is none yet. It runs
    /// only if binary, kubeconfig and network configs are correct and this pass did not change them.
    fn check_self_test(
        &mut self,
        outcomes: &Outcomes,
        kept: Option<OtherAgent>,
    ) -> Option<SelfTestOutcome> {
        let self_test = self.self_test.as_mut().filter(|_| outcomes.is_installed())?;
        let node = &self.settings.node;
        let verified = self.binaries.verified(PLUGIN);
        let (dir, binary) = match kept {
            None => (&node.bin_dir, verified),
            Some(OtherAgent::Newer) => {
                let any = || Binaries::executable(&node.bin_dir, PLUGIN);
                (&node.bin_dir, verified.or_else(any))
            }
            // An upstream plugin cannot run in the self-test: its iptables is on the node.
            Some(OtherAgent::Upstream) => {
                (&node.image_bin_dir, Binaries::executable(&node.image_bin_dir, PLUGIN))
            }
        };
        let entry = outcomes.chain.yielded_entry.as_ref().unwrap_or(&self.entry);
        let (dir, entry) = (dir.clone(), entry.text().to_owned());
        let outcome = self_test.outcome(TestedPlugin { dir, binary: binary?, entry });
        Some(outcome.cloned().map_or(SelfTestOutcome::Running, SelfTestOutcome::Ended))
    }

    /// Makes `/ready` report not ready at once, before the write that corrects `subject`.
    /// The end of the pass sets the final state.
    fn mark_not_ready(&self, subject: &Subject) {
        self.status.set_not_ready(format!("{subject}: being corrected"));
    }
}
