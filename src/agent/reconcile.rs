//! Reconciles the host in one pass: compares each file with what it should be, and writes the
//! files that differ.
//!
//! The order is plugin binary, kubeconfig, network configs. So no network config ever names a
//! plugin that cannot run. Over an upstream plugin whose kubeconfig has a host name, the kubeconfig
//! comes first.

mod chain;
mod contention_report;
mod kubeconfig;
mod pass_result;
mod upstream_files;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use tracing::info;

use super::api::ApiHandle;
use super::api::claims::Claims;
use super::api::event_queue::Event;
use super::contention::Contention;
use super::credential;
use super::entry_gap::EntryGap;
use super::not_ready::NotReadyReport;
use super::readiness::Status;
use super::record_socket::RecordSocket;
use super::self_test::{SelfTest, TestOutcome, TestedPlugin};
use super::settings::Settings;
use super::subject::Subject;
use super::upstream_kubeconfig::UpstreamKubeconfig;
use super::yielding::{OtherAgent, Yielding};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::{Entry, PLUGIN};
use crate::node::binaries::{Binaries, Stamp};
use crate::node::lock::NodeLocker;
use crate::node::mounts::Mounts;
pub use pass_result::PassResult;

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
    /// Contention with programs that remove the plugin entry, by conflist. The node is not
    /// ready while it lasts.
    entry_removals: Contention,
    /// Contention with other agents that overwrite a file of this agent. A warning while the file
    /// is correct, a problem while the correcting write is delayed.
    overwrites: Contention,
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
            entry_removals: Contention::default(),
            overwrites: Contention::default(),
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

    /// From now on yields to a newer agent of this project. It replaces the file of `record_socket`,
    /// which shows that it runs.
    pub fn yield_to_newer_agents(&mut self, record_socket: Arc<RecordSocket>) {
        self.record_socket = Some(record_socket);
    }

    /// Returns whether an agent of this project that started after this one runs on this node.
    pub fn newer_agent_runs(&self) -> bool {
        self.record_socket.as_ref().is_some_and(|socket| socket.newer_agent_runs())
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
    pub fn pass(&mut self) -> PassResult {
        let mut pass =
            PassResult { newer_agent_runs: self.newer_agent_runs(), ..PassResult::default() };
        match self.mounts.stale() {
            Some(why) => {
                self.status.set_stale_mount(&why);
                pass.problem(Subject::Mounts, why);
            }
            None => self.reconcile(&mut pass),
        }
        self.publish(&pass);
        pass
    }

    /// Compares each file with what it should be, and writes those that differ.
    fn reconcile(&mut self, pass: &mut PassResult) {
        let lock = self.node_lock.take();
        pass.holds_lock = lock.is_held();
        // The plugin in the image resolves no names. So it replaces an upstream plugin only once the
        // kubeconfig has an address, which both can use.
        let on_host = Binaries::executable(&self.settings.node.bin_dir, PLUGIN).is_some();
        let kubeconfig_first = on_host && credential::needs_resolver(&self.settings);
        pass.keeps_upstream_files = on_host && self.keeps_upstream_files(pass);
        if kubeconfig_first {
            self.kubeconfig_step(pass);
        }
        if (!kubeconfig_first || !credential::needs_resolver(&self.settings))
            && let Err(error) = self.reconcile_binaries(pass)
        {
            pass.problem(Subject::Binary, error);
        }
        if !kubeconfig_first {
            self.kubeconfig_step(pass);
        }
        // A token that the API server rejects does not prevent chaining: without the plugin, meshed
        // pods would start without redirect rules.
        let token_problem = pass.problems.remove(&Subject::KubeconfigToken);
        let can_chain = pass.problems.is_empty() && !pass.waits.contains_key(&Subject::Kubeconfig);
        pass.problems.extend(token_problem.map(|why| (Subject::KubeconfigToken, why)));
        if let Err(error) = self.reconcile_conflists(pass, can_chain) {
            pass.problem(Subject::NetworkConfig, error);
        }
        drop(lock);
        // Without a kubeconfig the plugin is not chained. The missing kubeconfig is the cause, so
        // the unchained network config is not logged too.
        if pass.waits.contains_key(&Subject::Kubeconfig)
            && let Some(why) = pass.problems.remove(&Subject::NetworkConfig)
        {
            pass.wait_for(Subject::NetworkConfig, why);
        }
        self.warn_of_overwrites(pass);
        self.check_self_test(pass);
        self.update_token_expiration();
    }

    /// Sets what `/ready`, the metrics, the startup taint and Events show of `pass`.
    fn publish(&mut self, pass: &PassResult) {
        self.status.metrics.contention_active.set(pass.contention.into());
        self.status.metrics.reconciles.inc();
        if !pass.problems.is_empty() {
            self.status.metrics.reconcile_errors.inc();
        }
        if self.stopping {
            return;
        }
        if !self.ready_logged && pass.ready().is_ok() {
            self.ready_logged = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        // The startup taint is removed once the node is ready. Warnings do not delay the removal,
        // because some are permanent. `plan` turns a warning that prevents chaining into a problem.
        let ready = pass.ready();
        self.api.set_node_ready(ready.is_ok());
        if let Some(event) = self.not_ready.update(&ready, Instant::now()) {
            self.api.report_event(Event::OnNode(event));
        }
        self.status.publish(pass.status_body(ready.err()));
        self.status.metrics.token_request_failed.set(pass.token_request_failed.into());
    }

    fn kubeconfig_step(&mut self, pass: &mut PassResult) {
        if let Err(error) = self.reconcile_kubeconfig(pass) {
            pass.problem(Subject::Kubeconfig, error);
        }
    }

    /// Copies the plugin binaries that are missing or different on the host from the image.
    fn reconcile_binaries(&mut self, pass: &mut PassResult) -> Result<(), String> {
        let names = Binaries::in_image(&self.settings.node).map_err(|error| {
            let dir = self.settings.node.image_bin_dir.display();
            format!("CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries")
        })?;
        let stale = self.binaries.stale(&self.settings.node, &names);
        let mut stale = stale.map_err(|error| error.to_string())?;
        if pass.newer_agent_runs || pass.keeps_upstream_files {
            stale.retain(|name| Binaries::executable(&self.settings.node.bin_dir, name).is_none());
        }
        if stale.is_empty() {
            return Ok(());
        }
        self.mark_not_ready(&Subject::Binary);
        let dir = self.settings.node.bin_dir.clone();
        if self.is_write_delayed(Subject::Binary, &dir, "", pass) {
            return Ok(());
        }
        for name in stale {
            Binaries::copy(&self.settings.node, &name).map_err(|error| error.to_string())?;
            pass.wrote = true;
            self.status.metrics.binary_writes.inc();
        }
        // Word for word as in Linkerd's troubleshooting page, because users search for it.
        info!("Wrote linkerd CNI binaries to {}", dir.display());
        if self.overwrites.record_write(Subject::Binary, "", Instant::now()) {
            self.status.metrics.contentions.inc();
            self.post_overwrite_event(&dir);
        }
        Ok(())
    }

    /// Adds the result of the self-test to `pass`, and starts the self-test if there is no
    /// result yet. It runs only if binary, kubeconfig and network configs are correct and this
    /// pass did not change them.
    fn check_self_test(&mut self, pass: &mut PassResult) {
        let required = [Subject::Binary, Subject::Kubeconfig, Subject::NetworkConfig];
        if pass.wrote || required.iter().any(|subject| pass.is_unready(subject)) {
            return;
        }
        // An upstream plugin cannot run in the self-test: its iptables is on the node.
        let settings = &self.settings;
        let (dir, binary) = match pass.keeps_upstream_files {
            true => (
                &settings.node.image_bin_dir,
                Binaries::executable(&settings.node.image_bin_dir, PLUGIN),
            ),
            false => (&settings.node.bin_dir, self.installed_binary(pass)),
        };
        let (Some(binary), Some(self_test)) = (binary, &mut self.self_test) else {
            return;
        };
        let entry = pass.yielded_entry.as_ref().unwrap_or(&self.entry).text().to_owned();
        match self_test.outcome(TestedPlugin { dir: dir.clone(), binary, entry }) {
            None => pass.self_test_running = true,
            Some(TestOutcome::Passed { untested, .. }) => pass.ready_notes.extend(untested.clone()),
            Some(TestOutcome::Skipped(why)) => {
                pass.ready_notes.push(format!("self-test skipped: {why}"));
            }
            Some(TestOutcome::Failed(why)) => pass.problem(Subject::SelfTest, why),
        }
    }

    /// Sets the metric with the end of the token in the kubeconfig on the host.
    fn update_token_expiration(&self) {
        let token = credential::token_on_host(&self.settings);
        let end = token.and_then(|token| Claims::read(&token)).and_then(|claims| claims.end());
        let end = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok());
        let seconds = end.map_or(0, |end| end.as_secs());
        self.status.metrics.token_expiration.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Returns the stamp of the plugin binary on the host. It must be this agent's binary, unless a
    /// newer agent runs.
    fn installed_binary(&self, pass: &PassResult) -> Option<Stamp> {
        let verified = self.binaries.verified(PLUGIN);
        let any = || Binaries::executable(&self.settings.node.bin_dir, PLUGIN);
        verified.or_else(|| pass.newer_agent_runs.then(any).flatten())
    }

    /// Makes `/ready` report not ready at once, before the write that corrects `subject`.
    /// The end of the pass sets the final state.
    fn mark_not_ready(&self, subject: &Subject) {
        self.status.set_not_ready(format!("{subject}: being corrected"));
    }
}
