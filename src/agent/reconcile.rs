//! Reconciles the host in one pass: compares each file with what it should be, and writes the
//! files that differ.
//!
//! The order is plugin binary, kubeconfig, network configs. So no network config ever names a
//! plugin that cannot run.

mod chain;
mod chain_step;
mod contention_report;
mod kubeconfig;
mod pass;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use super::api::Api;
use super::binaries::Binaries;
use super::contention::Contention;
use super::self_test::{SelfTest, SelfTestState, TestedPlugin};
use super::settings::Settings;
use super::status::Status;
use super::subject::Subject;
use super::upstream_kubeconfig::{self, UpstreamKubeconfig};
use crate::conflist::chain_mode::ChainMode;
use crate::conflist::net_dir;
use crate::conflist::{Entry, PLUGIN};
pub use pass::Pass;

/// Reconciles the host. Decides from the files found in each pass; what it remembers between
/// passes only saves work, log lines and writes under contention.
pub struct Reconciler {
    settings: Arc<Settings>,
    mode: ChainMode,
    entry: Entry,
    status: Arc<Status>,
    api: Arc<Api>,
    binaries: Binaries,
    /// Contention with programs that remove the plugin entry, by conflist. The node is not
    /// ready while it lasts.
    entry_removals: Contention,
    /// Contention with other agents that overwrite a file of this agent. Only a warning.
    overwrites: Contention,
    /// The last token found in the kubeconfig on the host. It stays in use until the API
    /// server issues one.
    token_found_on_host: Option<String>,
    self_test: Option<Arc<SelfTest>>,
    chained_conflists: BTreeSet<String>,
    /// Whether the bin dir had the plugin binary when the agent started.
    had_binary: bool,
    /// Whether the runtime is known to look for plugins in the bin dir. Never reset: the
    /// runtime's configuration does not change with a conflist.
    runtime_finds_plugin: bool,
    upstream_kubeconfig: UpstreamKubeconfig,
    leftovers_removed: bool,
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
        api: Arc<Api>,
    ) -> Reconciler {
        let binary = settings.bin_dir.join(PLUGIN);
        let had_binary = binary.symlink_metadata().is_ok();
        Reconciler {
            api,
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
            leftovers_removed: false,
            ready_logged: false,
            stopping: false,
        }
    }

    /// Makes readiness depend on `self_test` from now on.
    pub fn require_self_test(&mut self, self_test: Arc<SelfTest>) {
        self.self_test = Some(self_test);
    }

    /// Returns the names of all conflists to which this agent ever chained the plugin.
    pub fn chained_conflists(&self) -> &BTreeSet<String> {
        &self.chained_conflists
    }

    /// Restores the kubeconfig of an upstream agent if such an agent chains the plugin on this
    /// node. Returns whether one does.
    pub fn restore_upstream_kubeconfig(&self) -> bool {
        let found = net_dir::scan(&self.settings.net_dir, &self.settings.kubeconfig_name);
        if !found
            .is_ok_and(|found| upstream_kubeconfig::is_chained_by_upstream(&found, &self.entry))
        {
            return false;
        }
        if let Err(error) = self.upstream_kubeconfig.restore(&self.settings.kubeconfig()) {
            warn!("{error}");
        }
        true
    }

    /// Prepares for the passes between SIGTERM and the agent's end. They never write the kubeconfig:
    /// the agent's token becomes invalid with its pod, and whether to uninstall depends on the token
    /// found there. They never remove the startup taint either.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Runs one reconcile pass, and sets what `/ready` and the metrics report.
    pub fn pass(&mut self) -> Pass {
        let mut pass = Pass::default();
        if let Err(error) = self.reconcile_binaries(&mut pass) {
            pass.problem(Subject::Binary, error);
        }
        if let Err(error) = self.reconcile_kubeconfig(&mut pass) {
            pass.problem(Subject::Kubeconfig, error);
        }
        // A token that the API server rejects does not keep the plugin out of the chain: without
        // the plugin, meshed pods would start without redirect rules.
        let credential = pass.problems.remove(&Subject::Credential);
        let can_chain = pass.problems.is_empty() && !pass.waits.contains_key(&Subject::Kubeconfig);
        pass.problems.extend(credential.map(|why| (Subject::Credential, why)));
        if let Err(error) = self.reconcile_conflists(&mut pass, can_chain) {
            pass.problem(Subject::NetworkConfig, error);
        }
        // Without a kubeconfig the plugin is not chained. The missing kubeconfig is the cause, so
        // the unchained network config is not logged too.
        if pass.waits.contains_key(&Subject::Kubeconfig)
            && let Some(why) = pass.problems.remove(&Subject::NetworkConfig)
        {
            pass.wait_for(Subject::NetworkConfig, why);
        }
        self.warn_of_overwrites(&mut pass);
        self.check_self_test(&mut pass);
        self.status.reconciles.inc();
        if !pass.problems.is_empty() {
            self.status.reconcile_errors.inc();
        }
        if self.stopping {
            return pass;
        }
        if !self.ready_logged && pass.ready().is_ok() {
            self.ready_logged = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        // The startup taint is removed once the node is ready. Warnings do not hold it: some never
        // go away. One that keeps the plugin out of the chain is a problem by now.
        self.api.set_node_ready(pass.ready().is_ok());
        self.status.set_ready(pass.ready());
        self.status.set_ready_notes(&pass.ready_notes);
        self.status.uses_agent_token.set(pass.uses_agent_token.into());
        pass
    }

    /// Copies the plugin binaries that are missing or different on the host from the image.
    fn reconcile_binaries(&mut self, pass: &mut Pass) -> Result<(), String> {
        let names = Binaries::in_image(&self.settings).map_err(|error| {
            let dir = self.settings.image_bin_dir.display();
            format!("CONTAINER_CNI_BIN_DIR={dir}: {error}; set it to the image's directory of plugin binaries")
        })?;
        let stale = self.binaries.stale(&self.settings, &names);
        let stale = stale.map_err(|error| error.to_string())?;
        if stale.is_empty() {
            return Ok(());
        }
        self.mark_not_ready(&Subject::Binary);
        let dir = self.settings.bin_dir.clone();
        if self.is_write_delayed(Subject::Binary, &dir, "", pass) {
            return Ok(());
        }
        for name in stale {
            Binaries::copy(&self.settings, &name).map_err(|error| error.to_string())?;
            pass.wrote = true;
            self.status.binary_writes.inc();
        }
        info!("Wrote linkerd CNI binaries to {}", dir.display());
        self.overwrites.record_write(Subject::Binary, "", Instant::now());
        Ok(())
    }

    /// Adds the result of the self-test to `pass`, and starts the self-test if there is no
    /// result yet. It runs only if binary, kubeconfig and network configs are right and this
    /// pass did not change them.
    fn check_self_test(&self, pass: &mut Pass) {
        let Some(self_test) = &self.self_test else {
            return;
        };
        let wrong = [Subject::Binary, Subject::Kubeconfig, Subject::NetworkConfig];
        let wrong = wrong.iter().any(|subject| pass.is_wrong(subject));
        let binary = self.binaries.verified(PLUGIN);
        match binary.filter(|_| !wrong && !pass.wrote) {
            None => self_test.pause(),
            Some(binary) => {
                let entry = self.entry.text().to_owned();
                match self_test.state_of(TestedPlugin { binary, entry }) {
                    SelfTestState::Passed { untested } => pass.ready_notes.extend(untested),
                    SelfTestState::Pending => pass.self_test_running = true,
                    SelfTestState::Failed(why) => pass.problem(Subject::SelfTest, why),
                }
            }
        }
    }

    /// Makes `/ready` report not ready at once, before the write that corrects `subject`.
    /// The end of the pass sets the final state.
    fn mark_not_ready(&self, subject: &Subject) {
        self.status.set_ready(Err(format!("{subject}: being corrected")));
    }
}
