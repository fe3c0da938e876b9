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

    /// Checks the pod with its current sandbox.
    pub fn observe(&mut self, current: Option<&Sandbox>) {
        if self.deleted_at.is_some() {
            return;
        }
        if let Some(sandbox) = current
            && self.sandbox.as_ref() != Some(sandbox)
        {
            self.record_new_sandbox(sandbox);
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
        if outages::was_disturbed(self.held_by(), self.created_at)
            || outages::was_disturbed(&[Cause::Runtime], self.created_at)
        {
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
    fn record_new_sandbox(&mut self, sandbox: &Sandbox) {
        if let Some(old) = self.sandbox.replace(sandbox.clone()) {
            let problem = format!("has netns {:?} after {:?}", sandbox.netns, old.netns);
            self.report_death(&problem);
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
        // The repair controller needs the API server, and a node that is ready.
        let causes = [Cause::ApiServer, Cause::Node, Cause::Runtime];
        !self.repaired
            && self.stranded_at.is_some_and(|since| undisturbed_time(&causes, since) < REPAIR)
    }

    /// Checks the rules in the pod's netns.
    pub fn check_rules(&mut self) {
        let Some(sandbox) = self.sandbox.clone() else { return };
        self.checked_at = Instant::now();
        self.rule_checks += 1;
        let mut result = nft(&sandbox, &["list", "ruleset"]);
        if result.is_err() {
            thread::sleep(NFT_PAUSE);
            result = nft(&sandbox, &["list", "ruleset"]);
        }
        if result.is_err() && !sandbox.netns.exists() {
            self.report_death("has no netns");
            return;
        }
        // An error is reported like rules that are wrong.
        let (Ok(rules) | Err(rules)) = result;
        if self.is_meshed() {
            self.check_meshed_rules(&rules);
        } else if !rules.trim().is_empty() {
            self.report(Invariant::UnmeshedRules, &format!("has {rules:?}"));
        }
    }

    fn check_meshed_rules(&mut self, rules: &str) {
        let is_redirected = REDIRECTS.iter().all(|rule| rules.contains(rule));
        if is_redirected && self.stranded_at.is_some() {
            self.repaired = true;
        }
        if !is_redirected && !self.awaits_repair() {
            self.report_missing_rules(&format!("has {rules:?}"));
        }
    }

    fn check_response(&mut self, sandbox: &Sandbox) {
        let Some(response) = answer_of(&sandbox.address) else {
            if self.responded_at.is_some() {
                self.silent_checks += 1;
            }
            if self.silent_checks >= SILENT_CHECKS {
                self.report_death("responds no more");
            }
            return;
        };
        self.silent_checks = 0;
        if self.is_meshed() && response.starts_with("app-of") {
            if !self.awaits_repair() && sandbox.netns.exists() {
                self.report_missing_rules(&format!("reached without the proxy: {response}"));
            }
            return;
        }
        self.responded_at.get_or_insert_with(Instant::now);
    }

    /// Reports that a pod has ended that must run on.
    fn report_death(&mut self, problem: &str) {
        if self.responded_at.is_some() && !self.deletion_tried {
            self.report(Invariant::Running, problem);
        }
    }

    fn report_missing_rules(&mut self, problem: &str) {
        let prefix = if self.stranded_at.is_some() { "was not repaired: " } else { "" };
        self.report(Invariant::MeshedRules, &format!("{prefix}{problem}"));
    }

    /// Records a violation, unless one of this invariant was already recorded for the pod.
    fn report(&mut self, invariant: Invariant, problem: &str) {
        if self.reported.insert(invariant) {
            let pod = format!("{} ({:?}, {:?})", self.name, self.kind, self.source);
            ledger::record_violation(invariant, format!("{pod} {problem}"));
        }
    }

    fn check_start(&mut self) {
        if self.responded_at.is_some() {
            return;
        }
        let (invariant, limit) = if !self.is_meshed() {
            (Invariant::UnmeshedStart, UNMESHED)
        } else if self.stranded_at.is_some() {
            (Invariant::MeshedStart, MESHED + REPAIR)
        } else {
            (Invariant::MeshedStart, MESHED)
        };
        let time = undisturbed_time(self.held_by(), self.created_at);
        if time > limit {
            let state = if self.sandbox.is_some() { "added" } else { "not added" };
            self.report(invariant, &format!("{state}, not ready after {time:.0?}"));
        }
    }

    /// Returns the causes of outages that may hold back the start of this pod for longer than its
    /// limit. If the runtime cannot run the plugin, a meshed pod waits for its repair, and an
    /// unmeshed pod has to start in time.
    fn held_by(&self) -> &'static [Cause] {
        match (self.kind, self.source) {
            (Kind::Unmeshed, Source::ApiServer) => {
                &[Cause::Node, Cause::NoConflist, Cause::ApiServer]
            }
            (Kind::Unmeshed, Source::File) => &[Cause::Node, Cause::NoConflist],
            (Kind::Injected, Source::ApiServer) => {
                &[Cause::Node, Cause::NoConflist, Cause::Runtime, Cause::ApiServer]
            }
            (Kind::Injected, Source::File) => &[Cause::Node, Cause::NoConflist, Cause::Runtime],
            (Kind::Manual, _) => &[
                Cause::Node,
                Cause::NoConflist,
                Cause::Runtime,
                Cause::ApiServer,
                Cause::Credential,
            ],
        }
    }

    /// Reports that the pod has not ended.
    pub fn report_leftover(&mut self) {
        let state = if self.deleted_at.is_some() { "deleted" } else { "not deleted" };
        self.report(Invariant::End, &format!("is left at the end of the load, {state}"));
    }

    /// Checks that a deleted pod loses its network in time.
    pub fn check_end(&mut self) {
        let Some(deleted_at) = self.deleted_at else {
            return;
        };
        let causes =
            [Cause::Node, Cause::NoConflist, Cause::ApiServer, Cause::NoKubeconfig, Cause::Runtime];
        let time = undisturbed_time(&causes, deleted_at);
        if time > END {
            self.report(Invariant::End, &format!("has a network {time:.0?} after its deletion"));
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
