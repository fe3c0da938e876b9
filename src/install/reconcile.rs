//! One look at the host and the least that puts it right, in the order that never leaves
//! a network naming a plugin that cannot run: programs, kubeconfig, network configuration.

mod rivals;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::info;

use super::api::Api;
use super::binaries::Binaries;
use super::conflist::{Entry, PLUGIN};
use super::credential;
use super::environment::Settings;
use super::fight::Fights;
use super::files;
use super::journal::Journal;
use super::leftovers;
use super::mode::Mode;
use super::netdir::{self, Content, Found};
use super::places;
use super::plan::{self, Step};
use super::proof::{Proof, Standing, Subject};
use super::removal;
use super::status::Status;
use crate::kube::event::{Kind, Message};

/// What readiness is about; also the subjects of what is logged about it.
pub const BINARY: &str = "binary";
pub const KUBECONFIG: &str = "kubeconfig";
pub const CREDENTIAL: &str = "credential";
pub const CONFLIST: &str = "network configuration";
const BIN_DIR: &str = "bin dir";
const LEFTOVERS: &str = "leftovers";
pub const SELF_TEST: &str = "self-test";

/// What one look came to.
#[derive(Debug, Default)]
pub struct Pass {
    /// Something was written, which the next look is to verify.
    pub wrote: bool,
    /// When to look again at the latest.
    pub again: Option<Instant>,
    /// Somebody takes our entry out again and again.
    pub fight: bool,
    /// The installed plugin is being tried.
    pub pending: bool,
    /// What is wrong, by subject.
    pub problems: BTreeMap<String, String>,
    /// What may be wrong, by subject: said like the problems, but waited for no sooner.
    pub doubts: BTreeMap<String, String>,
}

impl Pass {
    fn problem(&mut self, subject: &str, why: impl ToString) {
        self.problems.insert(subject.to_owned(), why.to_string());
    }

    /// All that is worth a log line.
    pub fn said(&self) -> BTreeMap<String, String> {
        let mut said = self.doubts.clone();
        said.extend(self.problems.clone());
        said
    }

    /// Ready only if all were right and nothing had to be written for it.
    pub fn ready(&self) -> Result<(), String> {
        let wrong: Vec<String> = [BINARY, KUBECONFIG, CREDENTIAL, CONFLIST, SELF_TEST]
            .iter()
            .filter_map(|subject| Some(format!("{subject}: {}", self.problems.get(*subject)?)))
            .collect();
        match wrong.is_empty() {
            false => Err(wrong.join("; ")),
            true if self.wrote => Err("just written, to be verified".into()),
            true if self.pending => Err(format!("{SELF_TEST}: the plugin is being tried")),
            true => Ok(()),
        }
    }
}

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

    fn keep_conflists(&mut self, pass: &mut Pass, whole: bool) -> Result<(), files::Error> {
        let settings = Arc::clone(&self.settings);
        if whole && !self.tidied {
            let left = leftovers::tidy(&settings);
            self.tidied = left.is_empty();
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            if !left.is_empty() {
                pass.problem(LEFTOVERS, left.join("; "));
            }
        }
        let dir = &settings.net_dir;
        let found = netdir::scan(dir, &settings.kubeconfig_name)?;
        let (mut journal, why) = Journal::load(dir);
        if let Some(why) = why {
            pass.problem("journal", why);
        }
        let mut plan = plan::chain(&self.mode, &found, &self.entry, &journal);
        for (name, why) in plan.skipped {
            pass.problem(&dir.join(&name).display().to_string(), why);
        }
        match plan.bare {
            Some(why) if found.is_empty() => {
                let remedy = places::no_network(&settings);
                pass.problem(CONFLIST, format!("{why}; {remedy}"));
            }
            Some(why) => pass.problem(CONFLIST, why),
            None => {}
        }
        if let Some(why) = plan.doubt {
            pass.doubts.insert(CONFLIST.to_owned(), why);
        }
        self.doubt_bin_dir(&found, pass);
        if settings.require_network_plugins
            && let Some(why) = pass.doubts.remove(BIN_DIR)
        {
            let why = format!("not chained, as pods could not start any more: {why}");
            pass.problem(CONFLIST, why);
            return Ok(());
        }
        if !whole {
            return Ok(());
        }
        self.lists.extend(plan.lists);
        if journal.unread {
            // It says what to give back.
            plan.undo.clear();
        }
        for step in plan.steps {
            self.repairs(CONFLIST);
            let before = content(&found, step.source()).map_or("", |before| &before.text);
            let now = Instant::now();
            // With another entry of ours, pods are not bare.
            let rival = plan::names_us(before);
            let fights = match rival {
                true => &mut self.rivals,
                false => &mut self.fights,
            };
            if let Some(until) = fights.hold(step.list(), before, now) {
                pass.again = Some(pass.again.map_or(until, |again| again.min(until)));
                continue;
            }
            match take(dir, &found, &step, &mut journal) {
                Ok(()) => {
                    pass.wrote = true;
                    if fights.wrote(step.list(), before, now) && !rival {
                        Status::count(&self.status.fights);
                        self.tell(&dir.join(step.list()));
                    }
                    Status::count(&self.status.conflist_writes);
                    // What was wrong is put right, and the next look says whether it is.
                    pass.problems.remove(CONFLIST);
                    info!("Created CNI config {}", dir.join(step.list()).display());
                }
                Err(files::Error::Raced { .. }) => pass.wrote = true,
                Err(error) => pass.problem(&dir.join(step.list()).display().to_string(), error),
            }
        }
        for undo in plan.undo {
            let before = |name: &str| content(&found, name);
            match removal::take(dir, &undo, before) {
                Ok(()) => {
                    pass.wrote = true;
                    Status::count(&self.status.conflist_writes);
                    info!("Removed {PLUGIN} from {}", dir.join(undo.list()).display());
                    journal.forget(undo.list(), dir)?;
                }
                Err(files::Error::Raced { .. }) => pass.wrote = true,
                Err(error) => pass.problem(&dir.join(undo.list()).display().to_string(), error),
            }
        }
        for (list, over) in self.fights.on(Instant::now()) {
            pass.fight = true;
            pass.again = Some(pass.again.map_or(over, |again| again.min(over)));
            pass.problem(CONFLIST, remedy(&dir.join(list)));
        }
        Ok(())
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

    /// Says whether a runtime that loads what was `found` is likely to find our plugin.
    fn doubt_bin_dir(&self, found: &[Found], pass: &mut Pass) {
        let loaded = plan::loaded(found);
        let doubt = loaded.and_then(|loaded| places::no_plugins(&self.settings, loaded));
        let value = doubt.is_some().into();
        self.status.foreign_bin_dir.store(value, Ordering::Relaxed);
        if let Some(why) = doubt {
            pass.doubts.insert(BIN_DIR.to_owned(), why);
        }
    }

    /// Says on our pod that somebody fights over `list`.
    fn tell(&self, list: &Path) {
        self.api.tell(Message {
            kind: Kind::Warning,
            reason: "LinkerdCNIFight",
            action: "Chaining",
            note: remedy(list),
        });
    }

    /// From when something is seen to be wrong, no one is to be told that all is right.
    fn repairs(&self, subject: &str) {
        let why = format!("{subject}: is being put right");
        self.status.set_ready(Err(why));
    }
}

/// What to do about somebody who fights over `list`.
fn remedy(list: &Path) -> String {
    format!(
        "another program takes linkerd-cni out of {} again and again, so pods may start without \
         redirection: with Cilium set cni.exclusive=false, else stop that program from \
         restoring the file",
        list.display()
    )
}

fn content<'f>(found: &'f [Found], name: &str) -> Option<&'f Content> {
    let file = found.iter().find(|file| file.name == name)?;
    file.content.as_ref().ok()
}

/// Takes one step: first what removal will need, then the list, then what it replaces.
fn take(
    dir: &Path,
    found: &[Found],
    step: &Step,
    journal: &mut Journal,
) -> Result<(), files::Error> {
    if let Step::Own {
        name,
        text,
        access,
        of,
    } = step
    {
        if journal.own.get(name) != Some(of) {
            journal.own.insert(name.clone(), of.clone());
            journal.save(dir)?;
        }
        let path = dir.join(name);
        return match content(found, name) {
            Some(there) if there.link.is_none() => {
                files::rewrite(&path, there.text.as_bytes(), text.as_bytes(), *access)
            }
            _ => files::write(&path, text.as_bytes(), *access),
        };
    }
    let Some(before) = content(found, step.source()) else {
        return Ok(());
    };
    if let Some(origin) = plan::record(step, before, found, journal)
        && journal.lists.get(step.list()) != Some(&origin)
    {
        journal.lists.insert(step.list().to_owned(), origin);
        journal.save(dir)?;
    }
    match step {
        Step::Patch { name, text } => {
            let path = dir.join(name);
            files::rewrite(
                &path,
                before.text.as_bytes(),
                text.as_bytes(),
                before.access,
            )
        }
        Step::Convert {
            conf, list, text, ..
        } => {
            let conf = dir.join(conf);
            let (path, new) = (dir.join(list), text.as_bytes());
            match content(found, list) {
                Some(there) if there.text == *text => {}
                Some(there) => files::rewrite(&path, there.text.as_bytes(), new, before.access)?,
                None => files::create(&path, new, before.access, &conf)?,
            }
            files::unchanged(&conf, before.text.as_bytes())?;
            files::remove(&conf).map(|_| ())
        }
        Step::Own { .. } => Ok(()),
    }
}
