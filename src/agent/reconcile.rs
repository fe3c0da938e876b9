//! One look at the host and the least that puts it right, in the order that never leaves
//! a network naming a plugin that cannot run: programs, kubeconfig, network configuration.

mod chain;
mod kubeconfig;
mod pass;
mod rivals;
mod step;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::{info, warn};

use super::api::Api;
use super::binaries::Binaries;
use super::contention::Fights;
use super::handover::{self, Handover};
use super::self_test::{Proof, Standing, Subject};
use super::settings::Settings;
use super::status::Status;
use crate::conflist::mode::ChainMode;
use crate::conflist::net_dir;
use crate::conflist::{Entry, PLUGIN};
pub use pass::{BINARY, CONFLIST, CREDENTIAL, KUBECONFIG, Pass, SELF_TEST};

/// Keeps the host as it should be. It remembers only what saves work or log lines.
pub struct Reconciler {
    settings: Arc<Settings>,
    mode: ChainMode,
    entry: Entry,
    status: Arc<Status>,
    api: Arc<Api>,
    binaries: Binaries,
    fights: Fights,
    /// Who else writes the plugin or the kubeconfig, by subject.
    rivals: Fights,
    /// The token found on the host, kept while the API server issues none.
    kept_token: Option<String>,
    proof: Option<Arc<Proof>>,
    lists: BTreeSet<String>,
    /// Whether the bin dir had the plugin binary when the agent started.
    had_binary: bool,
    /// Whether the runtime is known to look for plugins in the bin dir. Once known, it stays
    /// so: the runtime's configuration does not change with a conflist.
    runtime_finds_plugin: bool,
    handover: Handover,
    tidied: bool,
    greeted: bool,
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
            fights: Fights::default(),
            rivals: Fights::default(),
            kept_token: None,
            proof: None,
            lists: BTreeSet::new(),
            had_binary,
            runtime_finds_plugin: false,
            handover: Handover::default(),
            tidied: false,
            greeted: false,
        }
    }

    /// From now on ready takes a `proof` of the installed plugin.
    pub fn takes_proof(&mut self, proof: Arc<Proof>) {
        self.proof = Some(proof);
    }

    /// The lists that carried us at any time.
    pub fn lists(&self) -> &BTreeSet<String> {
        &self.lists
    }

    /// Restores the kubeconfig of an upstream agent, if that chains the plugin on this node.
    pub fn hand_over(&self) {
        let found = net_dir::scan(&self.settings.net_dir, &self.settings.kubeconfig_name);
        if !found.is_ok_and(|found| handover::upstream_chains(&found, &self.entry)) {
            return;
        }
        if let Err(error) = self.handover.restore(&self.settings.kubeconfig()) {
            warn!("{error}");
        }
    }

    /// Looks at everything once and writes what is not right.
    pub fn pass(&mut self) -> Pass {
        let mut pass = Pass::default();
        if let Err(error) = self.keep_binaries(&mut pass) {
            pass.problem(BINARY, error);
        }
        if let Err(error) = self.keep_kubeconfig(&mut pass) {
            pass.problem(KUBECONFIG, error);
        }
        // A token that the API server refuses is still better than a pod without rules.
        let credential = pass.problems.remove(CREDENTIAL);
        let whole = pass.problems.is_empty() && !pass.waits.contains_key(KUBECONFIG);
        pass.problems
            .extend(credential.map(|why| (CREDENTIAL.to_owned(), why)));
        if let Err(error) = self.keep_conflists(&mut pass, whole) {
            pass.problem(CONFLIST, error);
        }
        // Until the kubeconfig is there, nothing is chained, which needs no warning of its own.
        if pass.waits.contains_key(KUBECONFIG)
            && let Some(why) = pass.problems.remove(CONFLIST)
        {
            pass.wait_for(CONFLIST, why);
        }
        self.doubt_rivals(&mut pass);
        self.keep_proof(&mut pass);
        Status::count(&self.status.reconciles);
        if !pass.problems.is_empty() {
            Status::count(&self.status.reconcile_errors);
        }
        if !self.greeted && pass.ready().is_ok() {
            self.greeted = true;
            info!("linkerd CNI is installed and verified on this node");
        }
        // A doubt that keeps the plugin out of the chain makes the node not ready, so it also
        // holds the startup taint. A doubt that is only logged must not hold it for ever.
        self.api.verified(pass.ready().is_ok());
        self.status.set_ready(pass.ready());
        self.status.set_remark(pass.remark.clone());
        let agents_token = pass.agents_token.into();
        self.status
            .agents_token
            .store(agents_token, Ordering::Relaxed);
        pass
    }

    fn keep_binaries(&mut self, pass: &mut Pass) -> Result<(), String> {
        let wanted = Binaries::wanted(&self.settings).map_err(|error| {
            let dir = self.settings.image_bin_dir.display();
            format!("CONTAINER_CNI_BIN_DIR={dir}: {error}; name the image's directory of programs")
        })?;
        let wrong = self.binaries.wrong(&self.settings, &wanted);
        let wrong = wrong.map_err(|error| error.to_string())?;
        if wrong.is_empty() {
            return Ok(());
        }
        self.repairs(BINARY);
        let dir = self.settings.bin_dir.clone();
        if self.is_held(BINARY, &dir, "", pass) {
            return Ok(());
        }
        for name in wrong {
            Binaries::copy(&self.settings, &name).map_err(|error| error.to_string())?;
            pass.wrote = true;
            Status::count(&self.status.binary_writes);
        }
        info!("Wrote linkerd CNI binaries to {}", dir.display());
        self.rivals.wrote(BINARY, "", Instant::now());
        Ok(())
    }

    /// The plugin is only tried where all that it needs is in place.
    fn keep_proof(&self, pass: &mut Pass) {
        let Some(proof) = &self.proof else {
            return;
        };
        let wrong = [BINARY, KUBECONFIG, CONFLIST];
        let wrong = wrong.iter().any(|what| pass.is_wrong(what));
        let program = self.binaries.verified(PLUGIN);
        match program.filter(|_| !wrong && !pass.wrote) {
            None => proof.rest(),
            Some(program) => {
                let entry = self.entry.text().to_owned();
                match proof.of(Subject { program, entry }) {
                    Standing::Proven => {}
                    Standing::Pending => pass.pending = true,
                    Standing::Wrong(why) => pass.problem(SELF_TEST, why),
                }
            }
        }
    }

    /// From when something is seen to be wrong, no one is to be told that all is right.
    fn repairs(&self, subject: &str) {
        let why = format!("{subject}: is being put right");
        self.status.set_ready(Err(why));
    }
}
