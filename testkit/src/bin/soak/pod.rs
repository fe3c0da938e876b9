//! One pod of the load: checks what it must do, and records what it has done so far.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use testkit::cluster::containers::{Sandbox, answer_of};

use crate::ledger::{self, Invariant};
use crate::outages::{self, Cause, undisturbed_time};

/// Longest start of an unmeshed pod, on a machine with two processors.
const UNMESHED: Duration = Duration::from_secs(60);
/// Longest start of a meshed pod, on a machine with two processors.
const MESHED: Duration = Duration::from_secs(120);
/// Longest deletion of a pod. It is long, because kubelet retries a failed DEL after up to a
/// minute.
pub const END: Duration = Duration::from_secs(120);
/// Longest time until the repair controller has repaired a pod.
const REPAIR: Duration = Duration::from_secs(90);
/// Time between two checks of a pod that has responded.
const CHECK_INTERVAL: Duration = Duration::from_secs(4);
/// Consecutive checks without a response after which a pod that has responded counts as dead.
const SILENT_CHECKS: usize = 3;
/// Time after which a failed `nft` is run again in a netns. The first failure does not count,
/// because the runtime unmounts a netns an instant before it deletes the file.
const NFT_PAUSE: Duration = Duration::from_millis(500);
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
    /// Meshed, without the mark, so the plugin needs the API server if the node's copy lacks the
    /// pod.
    Manual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    ApiServer,
    /// A static pod, which kubelet reads from a file.
    File,
}

pub struct Pod {
    pub name: String,
    pub kind: Kind,
    pub source: Source,
    pub created_at: Instant,
    /// Whether the API server was down when the pod was created.
    pub without_api: bool,
    pub sandbox: Option<Sandbox>,
    /// When the pod first responded as it must: a meshed pod through its proxy.
    pub responded_at: Option<Instant>,
    /// Time from the creation to the first response. `None` until then, and for a pod that an
    /// outage held back.
    pub start_time: Option<Duration>,
    pub deleted_at: Option<Instant>,
    /// When the pod was found to be stranded, because another writer had removed the plugin entry.
    stranded_at: Option<Instant>,
    pub repaired: bool,
    /// Number of checks of the pod's rules.
    pub rule_checks: usize,
    checked_at: Instant,
    /// Whether a deletion was tried. The API server may have deleted the pod even if it did not
    /// respond.
    pub deletion_tried: bool,
    /// Number of consecutive checks in which the pod did not respond.
    silent_checks: usize,
    /// Violations that were reported, each once.
    reported: BTreeSet<Invariant>,
}

impl Pod {
    pub fn new(name: String, kind: Kind, source: Source, without_api: bool) -> Pod {
        let now = Instant::now();
        Pod {
            name,
            kind,
            source,
            created_at: now,
            without_api,
            sandbox: None,
            responded_at: None,
            start_time: None,
            deleted_at: None,
            stranded_at: None,
            repaired: false,
            rule_checks: 0,
            checked_at: now,
            deletion_tried: false,
            silent_checks: 0,
            reported: BTreeSet::new(),
        }
    }

    pub fn is_meshed(&self) -> bool {
        self.kind != Kind::Unmeshed
    }

    /// Checks the pod with its present sandbox.
    pub fn observe(&mut self, found: Option<&Sandbox>) {
        if self.deleted_at.is_some() {
            return;
        }
        if let Some(sandbox) = found.filter(|found| self.sandbox.as_ref() != Some(*found)) {
            self.on_sandbox(sandbox);
        }
        if let Some(sandbox) = self.sandbox.clone() {
            let is_due = self.checked_at.elapsed() > CHECK_INTERVAL;
            if is_due || self.responded_at.is_none() {
                self.check_response(&sandbox);
            }
            if is_due {
                self.check_rules();
            }
        }
        self.check_start();
    }

    /// Returns the time since the creation. `None` if an outage held the pod back.
    pub fn undisturbed_start_time(&self) -> Option<Duration> {
        if outages::was_disturbed(self.held_by(), self.created_at) {
            return None;
        }
        Some(self.created_at.elapsed())
    }

    /// Whether the pod has stopped responding, and this is not reported yet. Such a pod must not be
    /// deleted, because the deletion would hide the violation.
    pub fn is_silent(&self) -> bool {
        self.silent_checks > 0 && !self.reported.contains(&Invariant::Running)
    }

    /// Records a new sandbox, and checks its rules. It is a violation if the pod has already
    /// responded in another sandbox.
    fn on_sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(old) = self.sandbox.replace(sandbox.clone()) {
            let seen = format!("has netns {:?} after {:?}", sandbox.netns, old.netns);
            self.report_death(&seen);
        }
        // The pod may be stranded only if another writer has removed the plugin entry. Otherwise
        // the check of the rules below reports the pod.
        let was_unchained =
            outages::was_disturbed(&[Cause::Unchained, Cause::NoConflist], self.created_at);
        if self.is_meshed() && !sandbox.has_entry && was_unchained {
            self.stranded_at = Some(Instant::now());
        }
        self.check_rules();
    }

    /// Whether the pod is stranded and the repair controller still has time to repair it.
    fn awaits_repair(&self) -> bool {
        // The repair controller needs the API server.
        let causes = [Cause::ApiServer, Cause::Node];
        !self.repaired
            && self.stranded_at.is_some_and(|since| undisturbed_time(&causes, since) < REPAIR)
    }

    pub fn check_rules(&mut self) {
        let Some(sandbox) = &self.sandbox else { return };
        self.checked_at = Instant::now();
        self.rule_checks += 1;
        let mut listed = nft(sandbox, &["list", "ruleset"]);
        if listed.is_err() {
            thread::sleep(NFT_PAUSE);
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
            self.repaired |= self.stranded_at.is_some();
        } else if self.is_meshed() && !self.awaits_repair() {
            self.report_missing_rules(&format!("has {rules:?}"));
        }
    }

    fn check_response(&mut self, sandbox: &Sandbox) {
        let Some(response) = answer_of(&sandbox.address) else {
            self.silent_checks += usize::from(self.responded_at.is_some());
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
        self.responded_at.get_or_insert_with(Instant::now);
    }

    fn report_death(&mut self, seen: &str) {
        if self.responded_at.is_some() && !self.deletion_tried {
            self.report(Invariant::Running, seen);
        }
    }

    fn report_missing_rules(&mut self, seen: &str) {
        let how = if self.stranded_at.is_some() { "was not repaired: " } else { "" };
        self.report(Invariant::MeshedRules, &format!("{how}{seen}"));
    }

    fn report(&mut self, invariant: Invariant, seen: &str) {
        if self.reported.insert(invariant) {
            let seen = format!("{} ({:?}, {:?}) {seen}", self.name, self.kind, self.source);
            ledger::violated(invariant, seen);
        }
    }

    fn check_start(&mut self) {
        if self.responded_at.is_some() {
            return;
        }
        let (invariant, bound) = if !self.is_meshed() {
            (Invariant::UnmeshedStart, UNMESHED)
        } else if self.stranded_at.is_some() {
            (Invariant::MeshedStart, MESHED + REPAIR)
        } else {
            (Invariant::MeshedStart, MESHED)
        };
        let took = undisturbed_time(self.held_by(), self.created_at);
        if took > bound {
            let state = if self.sandbox.is_some() { "added" } else { "not added" };
            self.report(invariant, &format!("{state}, not ready after {took:.0?}"));
        }
    }

    /// Returns the causes of outages that hold back the start of this pod.
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
        let state = if self.deleted_at.is_some() { "deleted" } else { "not deleted" };
        self.report(Invariant::End, &format!("is left at the end of the load, {state}"));
    }

    pub fn check_end(&mut self) {
        let causes = [Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::NoKubeconfig];
        let took =
            self.deleted_at.map_or(Duration::ZERO, |deleted| undisturbed_time(&causes, deleted));
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
