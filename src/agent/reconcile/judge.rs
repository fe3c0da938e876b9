//! Judges whether the node is ready, from the findings of a reconcile pass and the outcomes of its
//! steps. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::findings::Finding::{self, Problem, Waiting, Warning};
use super::kubeconfig::KubeconfigDecision;
use super::other_agent::{KeptFiles, YieldedEntry};
use super::plugin_token::PluginToken;
use crate::agent::self_test::TestOutcome;
use crate::agent::status_body::{StatusBody, problems_by_key};
use crate::agent::subject::Subject;
use crate::node::contention::{ContendedFile, WrittenFile};
use crate::node::install::StepOutcome;
use crate::node::install::kubeconfig::HostName;
use crate::node::install::network_configs::ConfigsOutcome;
use crate::node::leftovers::LeftoversOutcome;

/// What a pass decided, and the outcomes of its install steps.
pub struct Installed {
    pub kept: KeptFiles,
    pub token: PluginToken,
    pub decision: KubeconfigDecision,
    pub host_name: HostName,
    pub binaries: StepOutcome,
    pub kubeconfig: StepOutcome,
    pub configs: ConfigsReconciled,
    pub contended: Vec<ContendedFile>,
}

/// Outcomes of a pass for the network configs.
#[derive(Default)]
pub struct ConfigsReconciled {
    /// Outcome of removing the files that a dead agent left.
    pub leftovers: LeftoversOutcome,
    pub yielded: Option<YieldedEntry>,
    pub outcome: ConfigsOutcome,
}

impl ConfigsReconciled {
    /// Returns the outcomes of a pass that could not read the net dir, for this reason.
    pub fn failed(problem: String) -> ConfigsReconciled {
        let outcome = ConfigsOutcome { problem: Some(problem), ..ConfigsOutcome::default() };
        ConfigsReconciled { outcome, ..ConfigsReconciled::default() }
    }
}

/// What the checks of a pass found, after its install steps.
pub struct Verified {
    pub self_test: SelfTestState,
    /// What is wrong with the token in the kubeconfig.
    pub token: Option<Finding>,
    /// When the token in the kubeconfig expires, in seconds since 1970. `None`: unknown, or never.
    pub token_expires: Option<u64>,
    /// End of the wait for the first list of the node's pods; `None` once the agent no longer
    /// waits.
    pub pods_awaited_until: Option<Instant>,
}

/// State of the self-test of the installed plugin.
pub enum SelfTestState {
    /// The settings require no self-test, or the files on the node are not correct yet.
    NotStarted,
    Running,
    Ended(TestOutcome),
}

/// The judgement of a pass.
#[derive(Debug, Default)]
pub struct Judgement {
    pub findings: Vec<(Subject, Finding)>,
    /// Whether the pass wrote to the host, so that the next pass has to verify what it wrote.
    pub wrote: bool,
    /// When a step or a check of the pass needs the next pass. `None` if the resync is early
    /// enough.
    pub next_pass_at: Option<Instant>,
    /// What `/ready` and `/status` show of the pass.
    pub status: StatusBody,
}

impl Installed {
    pub fn wrote(&self) -> bool {
        let configs = &self.configs.outcome;
        self.binaries.writes > 0
            || self.wrote_kubeconfig()
            || !configs.writes.is_empty()
            || configs.is_stale
    }

    pub fn wrote_kubeconfig(&self) -> bool {
        self.host_name == HostName::Replaced || self.kubeconfig.writes > 0
    }

    /// Returns whether all files are correct, and were correct before this pass.
    pub fn is_settled(&self) -> bool {
        if self.wrote() {
            return false;
        }
        let findings = file_findings(self);
        let subjects = [Subject::Binary, Subject::Kubeconfig, Subject::NetworkConfig];
        subjects.iter().all(|subject| why_unready(&findings, subject).is_none())
    }
}

/// Judges a pass by the outcomes of its install steps (`installed`) and by what its checks have
/// found (`verified`).
pub fn judge(installed: &Installed, verified: &Verified) -> Judgement {
    let mut findings = file_findings(installed);
    findings.extend(verified_findings(verified));
    let mut contended = Vec::new();
    for ContendedFile { file, .. } in &installed.contended {
        contended.push(format!("{}: {file}", subject(file)));
    }
    let status = StatusBody {
        note: note_for_ready(installed, verified),
        conflist: installed.configs.outcome.called_through.clone(),
        contended,
        token_expires: verified.token_expires,
        ..StatusBody::default()
    };
    let next_pass_at = earliest_next_pass(installed, verified);
    Judgement { next_pass_at, ..Judgement::new(findings, installed.wrote(), status) }
}

/// Returns the note that `/ready` adds to a response of 200.
fn note_for_ready(installed: &Installed, verified: &Verified) -> Option<String> {
    let mut notes = Vec::new();
    if let Some(why) = &installed.decision.request_error {
        notes.push(why.clone());
    }
    if let Some(yielded) = &installed.configs.yielded {
        notes.push(yielded.agent.describe().to_owned());
    }
    if let SelfTestState::Ended(TestOutcome::Skipped(why)) = &verified.self_test {
        notes.push(format!("self-test skipped: {why}"));
    }
    if notes.is_empty() { None } else { Some(notes.join("; ")) }
}

/// Judges a pass that wrote nothing, because a CNI directory is no longer the node's.
pub fn judge_stale_mounts(why: String) -> Judgement {
    let findings = vec![(Subject::Mounts, Problem(why))];
    let wrote = false;
    Judgement::new(findings, wrote, StatusBody::default())
}

/// Returns the subject of problems with `file`.
pub fn subject(file: &WrittenFile) -> Subject {
    match file {
        WrittenFile::Binaries(_) => Subject::Binary,
        WrittenFile::Kubeconfig(_) => Subject::Kubeconfig,
        WrittenFile::ConfigWithoutEntry(_) | WrittenFile::ConfigWithUnusableEntry(_) => {
            Subject::NetworkConfig
        }
        WrittenFile::ConfigWithEntry(path) => Subject::File(path.clone()),
    }
}

/// Returns what is wrong with the files on the node.
fn file_findings(installed: &Installed) -> Vec<(Subject, Finding)> {
    let Installed { decision, configs, .. } = installed;
    let ConfigsReconciled { leftovers, outcome, .. } = configs;
    let mut findings = Vec::new();
    if let Some(why) = &decision.address_error {
        findings.push((Subject::ServerAddress, Warning(why.clone())));
    }
    if let Some(why) = &decision.request_error {
        findings.push((Subject::TokenRequest, Warning(why.clone())));
    }
    if !leftovers.failures.is_empty() {
        findings.push((Subject::Leftovers, Problem(leftovers.failures.join("; "))));
    }
    if let Some(why) = &outcome.saved_state_problem {
        findings.push((Subject::SavedState, Problem(why.clone())));
    }
    if let Some(why) = &outcome.bin_dir_warning {
        findings.push((Subject::CniDirectories, Warning(why.clone())));
    }
    for (path, why) in &outcome.file_problems {
        findings.push((Subject::File(path.clone()), Problem(why.clone())));
    }
    if let Some(why) = &outcome.warning {
        findings.push((Subject::NetworkConfig, Warning(why.clone())));
    }
    findings.extend(contention_findings(&installed.contended));
    if let Some(why) = outcome.problem.clone() {
        // While the agent waits for the kubeconfig, the plugin is not chained. This consequence is
        // not logged as a problem of its own.
        let awaits_kubeconfig = matches!(decision.missing(), Some(Waiting(_)));
        let finding = if awaits_kubeconfig { Waiting(why) } else { Problem(why) };
        findings.push((Subject::NetworkConfig, finding));
    }
    if let Some(why) = &installed.binaries.warning {
        findings.push((Subject::Binary, Warning(why.clone())));
    }
    if let Some(why) = &installed.binaries.problem {
        findings.push((Subject::Binary, Problem(why.clone())));
    }
    if let Some(finding) = decision.missing() {
        findings.push((Subject::Kubeconfig, finding.clone()));
    }
    if let Some(why) = &installed.kubeconfig.problem {
        findings.push((Subject::Kubeconfig, Problem(why.clone())));
    }
    findings
}

/// Returns the findings about files under contention. A network config from which another program
/// keeps removing the plugin entry, or keeps writing one that does not work, is a problem, so that
/// the node is not ready. Any other file is a warning.
fn contention_findings(contended: &[ContendedFile]) -> Vec<(Subject, Finding)> {
    let mut findings = Vec::new();
    let mut missing_entries = Vec::new();
    for ContendedFile { file, .. } in contended {
        match file {
            WrittenFile::ConfigWithoutEntry(_) | WrittenFile::ConfigWithUnusableEntry(_) => {
                missing_entries.push(file.to_string());
            }
            WrittenFile::Binaries(_)
            | WrittenFile::Kubeconfig(_)
            | WrittenFile::ConfigWithEntry(_) => {
                findings.push((subject(file), Warning(file.to_string())));
            }
        }
    }
    if !missing_entries.is_empty() {
        findings.push((Subject::NetworkConfig, Problem(missing_entries.join("; "))));
    }
    findings
}

/// Returns what the checks after the install steps found wrong.
fn verified_findings(verified: &Verified) -> Vec<(Subject, Finding)> {
    let mut findings = Vec::new();
    if let Some(finding) = &verified.token {
        findings.push((Subject::KubeconfigToken, finding.clone()));
    }
    match &verified.self_test {
        SelfTestState::Running => {
            findings.push((Subject::SelfTest, Waiting("still running".into())));
        }
        SelfTestState::Ended(TestOutcome::Failed(why)) => {
            findings.push((Subject::SelfTest, Problem(why.clone())));
        }
        SelfTestState::Ended(TestOutcome::Passed(_) | TestOutcome::Skipped(_))
        | SelfTestState::NotStarted => {}
    }
    if verified.pods_awaited_until.is_some() {
        // The node is not ready, because the plugin may have to decide by the annotations of a pod
        // until the pods are listed. If these do not show that the pod has a proxy, the pod starts
        // without redirect rules.
        let why = "the pods of this node are not listed yet";
        findings.push((Subject::PodCopy, Waiting(why.into())));
    }
    findings
}

/// Returns the earliest time at which a step or a check needs the next pass.
fn earliest_next_pass(installed: &Installed, verified: &Verified) -> Option<Instant> {
    let mut times = vec![
        installed.kept.until,
        installed.token.allowed_at,
        installed.binaries.allowed_at,
        installed.kubeconfig.allowed_at,
        installed.configs.leftovers.repeat_at,
        installed.configs.outcome.allowed_at,
        verified.pods_awaited_until,
    ];
    if let Some(yielded) = &installed.configs.yielded {
        times.push(yielded.until);
    }
    for contended in &installed.contended {
        times.push(Some(contended.over_at));
    }
    times.into_iter().flatten().min()
}

impl Judgement {
    /// Returns a judgement with these `findings`. Adds to `status` what follows from them.
    fn new(findings: Vec<(Subject, Finding)>, wrote: bool, status: StatusBody) -> Judgement {
        let not_ready = why_not_ready(&findings, wrote);
        let problems = problems_by_key(logged(&findings));
        let status = StatusBody { not_ready, problems, ..status };
        Judgement { findings, wrote, next_pass_at: None, status }
    }

    /// Adds `findings` that are not of the pass itself, and do not decide on readiness.
    pub fn add(&mut self, findings: Vec<(Subject, Finding)>) {
        self.findings.extend(findings);
        self.status.problems = problems_by_key(logged(&self.findings));
    }

    pub fn has_problem(&self) -> bool {
        self.findings.iter().any(|(_, finding)| matches!(finding, Problem(_)))
    }

    /// Returns the text to log for each subject.
    pub fn logged(&self) -> BTreeMap<Subject, String> {
        logged(&self.findings)
    }
}

/// Returns the text to log for each subject: its first problem, or else its first warning.
fn logged(findings: &[(Subject, Finding)]) -> BTreeMap<Subject, String> {
    let mut problems = BTreeMap::new();
    let mut warnings = BTreeMap::new();
    for (subject, finding) in findings {
        match finding {
            Problem(why) => {
                problems.entry(subject.clone()).or_insert_with(|| why.clone());
            }
            Warning(why) => {
                warnings.entry(subject.clone()).or_insert_with(|| why.clone());
            }
            Waiting(_) => {}
        }
    }
    warnings.extend(problems);
    warnings
}

/// Returns why the node is not ready. The reasons are the subjects that decide on readiness and are
/// not correct, or else that the pass wrote files.
fn why_not_ready(findings: &[(Subject, Finding)], wrote: bool) -> Option<String> {
    let subjects: BTreeSet<&Subject> = findings.iter().map(|(subject, _)| subject).collect();
    let mut reasons = Vec::new();
    for subject in subjects {
        if subject.decides_readiness()
            && let Some(why) = why_unready(findings, subject)
        {
            reasons.push(format!("{subject}: {why}"));
        }
    }
    if !reasons.is_empty() {
        return Some(reasons.join("; "));
    }
    if wrote {
        return Some("files were just written and are not verified yet".into());
    }
    None
}

/// Returns the first finding about `subject` that makes the node not ready.
fn why_unready<'f>(findings: &'f [(Subject, Finding)], subject: &Subject) -> Option<&'f str> {
    for (found_subject, finding) in findings {
        if let Problem(why) | Waiting(why) = finding
            && found_subject == subject
        {
            return Some(why);
        }
    }
    None
}

#[cfg(test)]
mod tests;
