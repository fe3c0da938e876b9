//! One pod of the load: what it must do, and what it has done so far.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use testkit::cluster::containers::Sandbox;

use crate::ledger::{self, Invariant};
use crate::outages::{self, Cause};
use crate::sandbox::{self, Rules};

/// Bounds beyond a pod's normal time, on a machine with two processors.
const UNMESHED: Duration = Duration::from_secs(45);
const MESHED: Duration = Duration::from_secs(90);
/// Bound of a deletion. Kubelet retries a failed DEL after up to a minute.
pub const END: Duration = Duration::from_secs(120);
/// Bound of the repair of a pod that started while another writer had removed the plugin entry.
const REPAIR: Duration = Duration::from_secs(90);
/// Time between two checks of the rules of a pod.
const CHECK: Duration = Duration::from_secs(4);
/// Consecutive checks without a response after which a pod that has responded counts as dead.
const SILENT_CHECKS: usize = 3;

/// Kinds of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unmeshed,
    /// Meshed, with the proxy injector's mark.
    Injected,
    /// Meshed, without the mark: the plugin needs the API server.
    Manual,
}

/// Where kubelet learns of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    ApiServer,
    /// A file on the node.
    File,
}

/// The longest start of an unmeshed pod without the plugin. Until it is measured there is no bound.
pub static NORMAL: OnceLock<Duration> = OnceLock::new();

/// A pod.
pub struct Pod {
    /// Its name, as the runtime has it.
    pub name: String,
    pub kind: Kind,
    pub source: Source,
    pub created: Instant,
    /// Whether it was created while the API server was down.
    pub without_api: bool,
    pub sandbox: Option<Sandbox>,
    pub answered: Option<Instant>,
    pub deleted: Option<Instant>,
    /// Whether it started without the plugin entry. Then it is to be repaired by this time.
    pub repair_by: Option<Instant>,
    pub repaired: bool,
    /// Number of times that its rules were listed.
    pub rule_checks: usize,
    checked: Instant,
    /// Whether a deletion was tried. The API server may have performed it also if it did not respond.
    pub deletion_tried: bool,
    /// Consecutive checks without a response, up to now, of a pod that has responded.
    silent_checks: usize,
    /// What was reported already.
    reported: BTreeSet<Invariant>,
}

impl Pod {
    pub fn new(name: String, kind: Kind, source: Source, without_api: bool) -> Pod {
        let now = Instant::now();
        Pod {
            name,
            kind,
            source,
            created: now,
            without_api,
            sandbox: None,
            answered: None,
            deleted: None,
            repair_by: None,
            repaired: false,
            rule_checks: 0,
            checked: now,
            deletion_tried: false,
            silent_checks: 0,
            reported: BTreeSet::new(),
        }
    }

    pub fn is_meshed(&self) -> bool {
        self.kind != Kind::Unmeshed
    }

    /// Takes note of the pod's sandbox, and checks the pod.
    pub fn observe(&mut self, found: Option<&Sandbox>) {
        if self.deleted.is_some() {
            return;
        }
        if let Some(sandbox) = found.filter(|found| self.sandbox.as_ref() != Some(*found)) {
            self.on_sandbox(sandbox);
        }
        let Some(sandbox) = self.sandbox.clone() else {
            return self.check_start();
        };
        if self.checked.elapsed() > CHECK || self.answered.is_none() {
            self.check_response(&sandbox);
        }
        if self.checked.elapsed() > CHECK {
            self.check_rules(&sandbox);
        }
        self.check_start();
    }

    /// Checks the rules of a pod that is about to be deleted.
    pub fn observe_last(&mut self) {
        if let Some(sandbox) = self.sandbox.clone() {
            self.check_rules(&sandbox);
        }
    }

    /// Time since the creation, if nothing held the pod back.
    pub fn undisturbed(&self) -> Option<Duration> {
        let elapsed = self.created.elapsed();
        let outside = outages::elapsed_outside(self.held_by(), self.created);
        (outside >= elapsed).then_some(elapsed)
    }

    /// Whether a pod that has responded has stopped to, and is not reported yet. Its deletion would hide that.
    pub fn is_silent(&self) -> bool {
        self.silent_checks > 0 && !self.reported.contains(&Invariant::Running)
    }

    /// Takes note of a sandbox, and checks its rules. A pod that has responded keeps its sandbox.
    fn on_sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(old) = self.sandbox.replace(sandbox.clone()) {
            let seen = format!("has netns {:?} after {:?}", sandbox.netns, old.netns);
            self.report_death(&seen);
        }
        // ADD used a network config without the plugin entry. Only another writer may have caused that.
        let foreign = [Cause::Unchained, Cause::NoConflist];
        let is_foreign = foreign.iter().any(|cause| outages::since(*cause, self.created));
        if self.is_meshed() && !sandbox.has_entry && is_foreign {
            self.repair_by = Some(Instant::now() + REPAIR);
        }
        self.check_rules(sandbox);
    }

    /// Whether the pod still may wait for a repair.
    fn awaits_repair(&self) -> bool {
        !self.repaired && self.repair_by.is_some_and(|by| Instant::now() < by)
    }

    /// The repair controller needs the API server: its time begins anew after an outage.
    fn extend_repair_deadline(&mut self) {
        let causes = [Cause::ApiServer, Cause::Node];
        if causes.iter().any(|cause| outages::is_open(*cause)) {
            let extended = Instant::now() + REPAIR;
            self.repair_by = self.repair_by.map(|by| by.max(extended));
        }
    }

    fn check_rules(&mut self, sandbox: &Sandbox) {
        self.checked = Instant::now();
        self.rule_checks += 1;
        self.extend_repair_deadline();
        match (sandbox::rules(sandbox), self.is_meshed()) {
            (Rules::Gone, _) => self.report_death("has no netns"),
            (Rules::Unreadable(error), true) => self.report_missing_rules(&error),
            (Rules::Nothing, false) => {}
            (Rules::All, true) => self.repaired |= self.repair_by.is_some(),
            (rules, true) => {
                if !self.awaits_repair() {
                    self.report_missing_rules(&format!("{rules:?}"));
                }
            }
            (rules, false) => {
                self.report(Invariant::UnmeshedRules, &format!("has {rules:?}"));
            }
        }
    }

    fn check_response(&mut self, sandbox: &Sandbox) {
        let Some(response) = sandbox::response(sandbox) else {
            return self.on_silence();
        };
        self.silent_checks = 0;
        let past_proxy = response.starts_with("app-of");
        if past_proxy && self.is_meshed() {
            self.extend_repair_deadline();
            if !self.awaits_repair() && sandbox::rules(sandbox) != Rules::Gone {
                let seen = format!("reached without the proxy: {response}");
                self.report_missing_rules(&seen);
            }
            return;
        }
        self.answered.get_or_insert_with(Instant::now);
    }

    /// Takes note of a check without a response.
    fn on_silence(&mut self) {
        self.silent_checks += usize::from(self.answered.is_some());
        if self.silent_checks >= SILENT_CHECKS {
            self.report_death("responds no more");
        }
    }

    /// Reports that a pod that has responded does not run on, unless its deletion was tried.
    fn report_death(&mut self, seen: &str) {
        if self.answered.is_some() && !self.deletion_tried {
            self.report(Invariant::Running, seen);
        }
    }

    fn report_missing_rules(&mut self, seen: &str) {
        let how = if self.repair_by.is_some() { "was not repaired: " } else { "" };
        self.report(Invariant::MeshedRules, &format!("{how}{seen}"));
    }

    /// Reports each invariant once.
    fn report(&mut self, invariant: Invariant, seen: &str) {
        if self.reported.insert(invariant) {
            let seen = format!("{} ({:?}, {:?}) {seen}", self.name, self.kind, self.source);
            ledger::violated(invariant, seen);
        }
    }

    fn check_start(&mut self) {
        if self.answered.is_some() {
            return;
        }
        let (invariant, bound) = match self.kind {
            Kind::Unmeshed => (Invariant::UnmeshedStart, UNMESHED),
            _ if self.repair_by.is_some() => (Invariant::MeshedStart, MESHED + REPAIR),
            _ => (Invariant::MeshedStart, MESHED),
        };
        let took = outages::elapsed_outside(self.held_by(), self.created);
        if took > NORMAL.get().copied().unwrap_or(Duration::MAX).saturating_add(bound) {
            let state = if self.sandbox.is_some() { "added" } else { "not added" };
            self.report(invariant, &format!("{state}, not ready after {took:.0?}"));
        }
    }

    /// Outages that do not count against this pod's start bound.
    fn held_by(&self) -> &'static [Cause] {
        match (self.kind, self.source) {
            (Kind::Manual, _) => {
                &[Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::Credential]
            }
            (_, Source::ApiServer) => &[Cause::Node, Cause::NoConflist, Cause::ApiServer],
            (_, Source::File) => &[Cause::Node, Cause::NoConflist],
        }
    }

    /// Reports a pod that is still there at the end of the load, unless its end is reported.
    pub fn report_leftover(&mut self) {
        let state = if self.deleted.is_some() { "deleted" } else { "not deleted" };
        self.report(Invariant::End, &format!("is left at the end of the load, {state}"));
    }

    /// Checks that the deleted pod goes away.
    pub fn check_end(&mut self) {
        let Some(deleted) = self.deleted else {
            return;
        };
        let causes = [Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::NoKubeconfig];
        let took = outages::elapsed_outside(&causes, deleted);
        if took > END {
            let seen = format!("has a network {took:.0?} after its deletion");
            self.report(Invariant::End, &seen);
        }
    }
}
