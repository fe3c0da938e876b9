//! One look at the host and the least that puts it right, in the order that never leaves
//! a network naming a plugin that cannot run: programs, kubeconfig, network configuration.

mod chain;
mod pass;
mod rivals;
mod step;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use super::api::Api;
use super::binaries::Binaries;
use super::conflist::{Entry, PLUGIN};
use super::credential;
use super::environment::Settings;
use super::fight::Fights;
use super::handover::{self, Handover};
use super::mode::Mode;
use super::netdir;
use super::proof::{Proof, Standing, Subject};
use super::status::Status;
use pass::BIN_DIR;
pub use pass::{BINARY, CONFLIST, CREDENTIAL, KUBECONFIG, Pass, SELF_TEST};

/// Keeps the host as it should be. It remembers only what saves work or log lines.
pub struct Reconciler {
    settings: Arc<Settings>,
    mode: Mode,
    entry: Entry,
    status: Arc<Status>,
    api: Arc<Api>,
    binaries: Binaries,
    fights: Fights,
    /// Who else writes the plugin or the kubeconfig, by subject.
    rivals: Fights,
    proof: Option<Arc<Proof>>,
    lists: BTreeSet<String>,
    handover: Handover,
    tidied: bool,
    greeted: bool,
}

impl Reconciler {
    pub fn new(
        settings: Arc<Settings>,
        mode: Mode,
        entry: Entry,
        status: Arc<Status>,
        api: Arc<Api>,
    ) -> Reconciler {
        Reconciler {
            api,
            settings,
            mode,
            entry,
            status,
            binaries: Binaries::default(),
            fights: Fights::default(),
            rivals: Fights::default(),
            proof: None,
            lists: BTreeSet::new(),
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
        let found = netdir::scan(&self.settings.net_dir, &self.settings.kubeconfig_name);
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
        let whole = pass.problems.is_empty();
        pass.problems
            .extend(credential.map(|why| (CREDENTIAL.to_owned(), why)));
        if let Err(error) = self.keep_conflists(&mut pass, whole) {
            pass.problem(CONFLIST, error);
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
        // A taint that goes too early cannot be made up for, so a doubt holds it.
        let doubted = pass.doubts.contains_key(BIN_DIR);
        self.api.verified(pass.ready().is_ok() && !doubted);
        self.status.set_ready(pass.ready());
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

    fn keep_kubeconfig(&mut self, pass: &mut Pass) -> Result<(), credential::Error> {
        let desired = credential::desired(&self.settings, self.api.token())?;
        if !credential::is_right(&self.settings, &desired.text)? {
            self.repairs(KUBECONFIG);
            if self.is_held(KUBECONFIG, &self.settings.kubeconfig(), &desired.text, pass) {
                return Ok(());
            }
            let path = self.settings.kubeconfig();
            self.handover.overwrites(&path, &desired.text);
            credential::write(&self.settings, &desired.text)?;
            pass.wrote = true;
            Status::count(&self.status.kubeconfig_writes);
            info!("Wrote kubeconfig {}", self.settings.kubeconfig().display());
            self.rivals.wrote(KUBECONFIG, &desired.text, Instant::now());
        }
        match self.api.answer(&desired.token) {
            Some(answer) => {
                if let Err(why) = answer {
                    pass.problem(CREDENTIAL, why);
                }
            }
            None => self.await_answer(pass),
        }
        Ok(())
    }

    /// The token is new to the API server. Where it has a right to be away, as under
    /// upstream's chart whose agent never asks it, nobody waits for it.
    fn await_answer(&mut self, pass: &mut Pass) {
        if pass.wrote {
            self.api.nudge();
        }
        if self.settings.plugin_account.is_some() && !self.api.answered() {
            pass.problem(CREDENTIAL, "the API server has not answered yet");
        }
    }

    /// The plugin is only tried where all that it needs is in place.
    fn keep_proof(&self, pass: &mut Pass) {
        let Some(proof) = &self.proof else {
            return;
        };
        let wrong = [BINARY, KUBECONFIG, CONFLIST];
        let wrong = wrong.iter().any(|what| pass.problems.contains_key(*what));
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
