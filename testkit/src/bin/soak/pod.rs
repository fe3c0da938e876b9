//! One pod of the load: what it must do, and what it has done so far.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::cluster::containers::{Sandbox, answer_of};

use crate::ledger::{self, Invariant};
use crate::outages::{self, Cause, calm};

/// Bounds of a pod's start, on a machine with two processors.
const UNMESHED: Duration = Duration::from_secs(60);
const MESHED: Duration = Duration::from_secs(120);
/// Bound of a deletion. Kubelet retries a failed DEL after up to a minute.
pub const END: Duration = Duration::from_secs(120);
const REPAIR: Duration = Duration::from_secs(90);
const CHECK: Duration = Duration::from_secs(4);
/// Consecutive checks without a response after which a pod that has responded counts as dead.
const SILENT_CHECKS: usize = 3;
/// Time after which `nft` is tried again in a netns. The runtime unmounts a netns an instant before
/// it deletes the file.
const AGAIN: Duration = Duration::from_millis(500);
/// Texts in the rules that redirect TCP, in both directions.
const REDIRECTS: [&str; 4] = [
    "jump PROXY_INIT_REDIRECT",
    "redirect to :4143",
    "jump PROXY_INIT_OUTPUT",
    "redirect to :4140",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unmeshed,
    /// Meshed, with the proxy injector's mark.
    Injected,
    /// Meshed, without the mark: the plugin needs the API server.
    Manual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    ApiServer,
    File,
}

pub struct Pod {
    pub name: String,
    pub kind: Kind,
    pub source: Source,
    pub created: Instant,
    pub without_api: bool,
    pub sandbox: Option<Sandbox>,
    pub answered: Option<Instant>,
    pub start: Option<Duration>,
    pub deleted: Option<Instant>,
    stranded: Option<Instant>,
    pub repaired: bool,
    pub rule_checks: usize,
    checked: Instant,
    /// Whether a deletion was tried. The API server may have performed it also if it did not
    /// respond.
    pub deletion_tried: bool,
    silent_checks: usize,
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
            start: None,
            deleted: None,
            stranded: None,
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

    pub fn observe(&mut self, found: Option<&Sandbox>) {
        if self.deleted.is_some() {
            return;
        }
        if let Some(sandbox) = found.filter(|found| self.sandbox.as_ref() != Some(*found)) {
            self.on_sandbox(sandbox);
        }
        if let Some(sandbox) = self.sandbox.clone() {
            let is_due = self.checked.elapsed() > CHECK;
            if is_due || self.answered.is_none() {
                self.check_response(&sandbox);
            }
            if is_due {
                self.check_rules();
            }
        }
        self.check_start();
    }

    pub fn undisturbed(&self) -> Option<Duration> {
        if outages::since(self.held_by(), self.created) {
            return None;
        }
        Some(self.created.elapsed())
    }

    /// Whether a pod that has responded no longer responds, and is not reported yet. Its deletion
    /// would hide that.
    pub fn is_silent(&self) -> bool {
        self.silent_checks > 0 && !self.reported.contains(&Invariant::Running)
    }

    /// Records a sandbox, and checks its rules. A pod that has responded keeps its sandbox.
    fn on_sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(old) = self.sandbox.replace(sandbox.clone()) {
            let seen = format!("has netns {:?} after {:?}", sandbox.netns, old.netns);
            self.report_death(&seen);
        }
        // ADD used a network config without the plugin entry. Only another writer may have caused
        // that.
        let is_foreign = outages::since(&[Cause::Unchained, Cause::NoConflist], self.created);
        if self.is_meshed() && !sandbox.has_entry && is_foreign {
            self.stranded = Some(Instant::now());
        }
        self.check_rules();
    }

    /// Whether the pod still may wait for a repair, for which the API server is needed.
    fn awaits_repair(&self) -> bool {
        let causes = [Cause::ApiServer, Cause::Node];
        !self.repaired && self.stranded.is_some_and(|since| calm(&causes, since) < REPAIR)
    }

    pub fn check_rules(&mut self) {
        let Some(sandbox) = &self.sandbox else { return };
        self.checked = Instant::now();
        self.rule_checks += 1;
        let mut listed = nft(sandbox, &["list", "ruleset"]);
        if listed.is_err() {
            thread::sleep(AGAIN);
            listed = nft(sandbox, &["list", "ruleset"]);
        }
        let rules = match listed {
            Err(_) if !sandbox.netns.exists() => return self.report_death("has no netns"),
            Err(error) => error,
            Ok(rules) => rules,
        };
        if !self.is_meshed() && !rules.trim().is_empty() {
            self.report(Invariant::UnmeshedRules, &format!("has {rules:?}"));
        } else if self.is_meshed() && REDIRECTS.iter().all(|rule| rules.contains(rule)) {
            self.repaired |= self.stranded.is_some();
        } else if self.is_meshed() && !self.awaits_repair() {
            self.report_missing_rules(&format!("has {rules:?}"));
        }
    }

    fn check_response(&mut self, sandbox: &Sandbox) {
        let Some(response) = answer_of(&sandbox.address) else {
            self.silent_checks += usize::from(self.answered.is_some());
            if self.silent_checks >= SILENT_CHECKS {
                self.report_death("responds no more");
            }
            return;
        };
        self.silent_checks = 0;
        if self.is_meshed() && response.starts_with("app-of") {
            if !self.awaits_repair() && sandbox.netns.exists() {
                let seen = format!("reached without the proxy: {response}");
                self.report_missing_rules(&seen);
            }
            return;
        }
        self.answered.get_or_insert_with(Instant::now);
    }

    fn report_death(&mut self, seen: &str) {
        if self.answered.is_some() && !self.deletion_tried {
            self.report(Invariant::Running, seen);
        }
    }

    fn report_missing_rules(&mut self, seen: &str) {
        let how = if self.stranded.is_some() { "was not repaired: " } else { "" };
        self.report(Invariant::MeshedRules, &format!("{how}{seen}"));
    }

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
        let (invariant, bound) = if !self.is_meshed() {
            (Invariant::UnmeshedStart, UNMESHED)
        } else if self.stranded.is_some() {
            (Invariant::MeshedStart, MESHED + REPAIR)
        } else {
            (Invariant::MeshedStart, MESHED)
        };
        let took = calm(self.held_by(), self.created);
        if took > bound {
            let state = if self.sandbox.is_some() { "added" } else { "not added" };
            self.report(invariant, &format!("{state}, not ready after {took:.0?}"));
        }
    }

    fn held_by(&self) -> &'static [Cause] {
        const ALL: &[Cause] =
            &[Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::Credential];
        match (self.kind, self.source) {
            (Kind::Manual, _) => ALL,
            (_, Source::ApiServer) => &ALL[..3],
            (_, Source::File) => &ALL[..2],
        }
    }

    pub fn report_leftover(&mut self) {
        let state = if self.deleted.is_some() { "deleted" } else { "not deleted" };
        self.report(Invariant::End, &format!("is left at the end of the load, {state}"));
    }

    pub fn check_end(&mut self) {
        let causes = [Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::NoKubeconfig];
        let took = self.deleted.map_or(Duration::ZERO, |deleted| calm(&causes, deleted));
        if took > END {
            let seen = format!("has a network {took:.0?} after its deletion");
            self.report(Invariant::End, &seen);
        }
    }
}

/// Runs `nft` in the pod's netns. Returns its output, or its error.
pub fn nft(sandbox: &Sandbox, args: &[&str]) -> Result<String, String> {
    let netns = format!("--net={}", sandbox.netns.display());
    let output = Command::new("nsenter").arg(netns).arg("nft").args(args).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
