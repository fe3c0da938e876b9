//! Checks of what the agents report in `/status`.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::NODES;
use super::agent_states::AgentStates;
use super::nodes::with_node_and_pod;
use crate::VERSION;
use crate::agent::status_body::{ChainProof, StatusBody};
use crate::agent::subject::Subject;
use crate::extension::agents::Agent;
use crate::extension::facts::Facts;
use crate::extension::objects::{admin_port, agent_container, pod_spec, text};
use crate::extension::release::is_called_by_multus;
use crate::extension::report::{Check, CheckResult, Severity};
use crate::failure;

/// Checks what the agents report. Without agents, there is nothing to check.
pub fn checks(facts: &Facts, daemonset: &Value) -> Vec<Check> {
    let Ok(agents) = &facts.agents else { return Vec::new() };
    if agents.is_empty() {
        return Vec::new();
    }
    if admin_port(pod_spec(daemonset)).is_none() {
        return vec![report_agent_without_state(daemonset)];
    }
    let states = AgentStates::new(facts);
    let mut checks = vec![
        check("agent-state", "the state of each agent can be read", check_readable_states(agents)),
        check("agent-note", "no agent adds a note to its readiness", check_notes(&states)),
        check("agent-problem", "no agent reports another problem", check_other_problems(&states)),
        check(
            "version",
            &format!("each agent has this command's version {VERSION}"),
            check_versions(&states),
        ),
    ];
    if !is_called_by_multus(daemonset) {
        let called = "the active network config of each node calls the plugin";
        checks.push(check("conflist", called, check_conflists(&states)));
        checks.push(check("runtime", &describe_runtimes(&states), check_runtimes(&states)));
    }
    let not_overwritten = "no other program overwrites the agents' files";
    let succeed = format!("plugin calls succeed ({})", describe_backends(&states));
    checks.extend([
        check("token", "the plugin's token is valid on each node", check_tokens(&states)),
        check("contention", not_overwritten, check_contention(&states)),
        check("pod-copy", "the agents know the pods of their nodes", check_pod_copies(&states)),
        check("plugin-calls", &succeed, check_plugin_calls(&states)),
    ]);
    checks
}

fn check(hint: &'static str, description: &str, result: CheckResult) -> Check {
    Check::new(NODES, hint, description, result)
}

/// Reports that the states are unknown, because Linkerd's own agent has no `/status`.
fn report_agent_without_state(daemonset: &Value) -> Check {
    let image = text(&agent_container(pod_spec(daemonset))["image"]);
    let unknown = Severity::Unknown.fail(format!(
        "Linkerd's own agent (image {image}) runs here, which reports no state: network config, \
         token and contention are not checked; install this chart in its place"
    ));
    check("upstream", "the agents report their state", unknown)
}

/// Names the agents whose state cannot be read. The checks that follow cannot cover these agents.
fn check_readable_states(agents: &[Agent]) -> CheckResult {
    let mut unread = Vec::new();
    for agent in agents {
        match &agent.status {
            Some(Ok(_)) => {}
            Some(Err(error)) => unread.push(with_node_and_pod(agent, &error.to_string())),
            None => unread.push(with_node_and_pod(agent, "it has no port for /status")),
        }
    }
    Severity::Unknown.fail_if_any(
        "agents without readable /status, whose network config, token and contention are not \
         checked",
        &unread,
    )
}

/// Warns of agents that are ready with a note, such as one about a skipped self-test.
fn check_notes(states: &AgentStates<'_>) -> CheckResult {
    states.judge(Severity::Warning, "agents whose readiness has a note", note_except_of_token)
}

/// Returns the agent's note. The agent also adds a failed TokenRequest to its note. Such a note is
/// left out, because the check of the token names the failure.
fn note_except_of_token(body: &StatusBody) -> Option<String> {
    let is_of_token = body.note.as_deref() == body.problem(&Subject::TokenRequest);
    if is_of_token {
        return None;
    }
    body.note.clone()
}

/// Warns of problems that no other check names, such as a network config of another program that
/// the agent cannot read.
fn check_other_problems(states: &AgentStates<'_>) -> CheckResult {
    states.judge(Severity::Warning, "agents with a problem", other_problems)
}

fn other_problems(body: &StatusBody) -> Vec<String> {
    let mut problems = Vec::new();
    for (subject, reason) in &body.problems {
        if !is_reported_by_another_check(body, subject, reason) {
            problems.push(format!("{subject}: {reason}"));
        }
    }
    problems
}

/// Whether another check reports this problem.
fn is_reported_by_another_check(body: &StatusBody, subject: &str, reason: &str) -> bool {
    for checked in [Subject::KubeconfigToken, Subject::TokenRequest, Subject::PodCopy] {
        if checked.key() == subject {
            return true;
        }
    }
    let is_of_conflist = subject == Subject::NetworkConfig.key() && body.conflist.is_none();
    if is_of_conflist {
        return true;
    }
    if let Some(not_ready) = &body.not_ready
        && not_ready.contains(reason)
    {
        return true;
    }
    body.contended.iter().any(|contended| contended.contains(reason))
}

fn check_versions(states: &AgentStates<'_>) -> CheckResult {
    states.judge(
        Severity::Warning,
        "agents with another version than this command",
        different_version,
    )
}

fn different_version(body: &StatusBody) -> Option<String> {
    if body.version == VERSION {
        return None;
    }
    Some(body.version.clone())
}

/// Fails, and lists the nodes whose active network config does not call the plugin.
fn check_conflists(states: &AgentStates<'_>) -> CheckResult {
    let summary = "nodes whose active network config does not call the plugin";
    states.judge(Severity::Error, summary, unchained_reason)
}

/// Returns why the active network config does not call the plugin. `None` if it does.
fn unchained_reason(body: &StatusBody) -> Option<String> {
    if body.conflist.is_some() {
        return None;
    }
    let reason = body.problem(&Subject::NetworkConfig);
    Some(reason.unwrap_or("the agent reports none").to_owned())
}

/// Describes the check of the runtimes, with the number of nodes whose runtime has not called the
/// plugin yet.
fn describe_runtimes(states: &AgentStates<'_>) -> String {
    let not_called = states.collect_texts(provisional_note);
    let description = "no runtime fails to run the plugin";
    match not_called.len() {
        0 => description.to_owned(),
        1 => format!("{description} (1 node: not called by the runtime yet)"),
        nodes => format!("{description} ({nodes} nodes: not called by the runtime yet)"),
    }
}

/// Returns the note on a runtime that has not called the plugin yet.
fn provisional_note(body: &StatusBody) -> Option<String> {
    let runtime = body.runtime.as_ref()?;
    if runtime.chain != ChainProof::Provisional {
        return None;
    }
    runtime.note.clone()
}

/// Fails with the nodes whose runtime cannot run the plugin. A chain that is provisional is no
/// problem: nothing speaks against it, and the agent watches what the next pods do.
fn check_runtimes(states: &AgentStates<'_>) -> CheckResult {
    let summary = "nodes whose runtime cannot run the plugin, so that the agent has removed the \
                   plugin entry";
    states.judge_with_unknown(
        Severity::Error,
        summary,
        |body| runtime_note(body, ChainProof::Withdrawn),
        |body| runtime_note(body, ChainProof::Unprovable),
    )
}

/// Returns the note on the runtime if the chain is in this state.
fn runtime_note(body: &StatusBody, state: ChainProof) -> Option<String> {
    let runtime = body.runtime.as_ref()?;
    if runtime.chain != state {
        return None;
    }
    Some(runtime.note.clone().unwrap_or_default())
}

fn check_tokens(states: &AgentStates<'_>) -> CheckResult {
    // Pods with the mark start, and are redirected by their annotations, so only the others fail.
    let summary = "nodes on which meshed pods without the proxy injector's mark fail to start";
    let expired = states.collect_texts(describe_expired_token);
    Severity::Error.fail_if_any(summary, &expired)?;
    let summary = "nodes with a problem of the token";
    states.judge_with_unknown(Severity::Warning, summary, token_problems, unchecked_token_reason)
}

fn describe_expired_token(body: &StatusBody) -> Option<String> {
    let seconds = body.token_expires?;
    // Another program in the agent's place may report any number, so adding it must not overflow.
    let expiry = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    if SystemTime::now() < expiry {
        return None;
    }
    Some("expired".to_owned())
}

fn token_problems(body: &StatusBody) -> Vec<String> {
    let mut problems = Vec::new();
    if body.not_ready.is_some()
        && let Some(problem) = body.problem(&Subject::KubeconfigToken)
    {
        problems.push(problem.to_owned());
    }
    if let Some(problem) = body.problem(&Subject::TokenRequest) {
        problems.push(problem.to_owned());
    }
    problems
}

/// Returns why the agent could not check the token. An agent that is not ready is left out: the API
/// server may have rejected its token, which is a problem and not unknown.
fn unchecked_token_reason(body: &StatusBody) -> Option<String> {
    if body.not_ready.is_some() {
        return None;
    }
    body.problem(&Subject::KubeconfigToken).map(str::to_owned)
}

fn check_contention(states: &AgentStates<'_>) -> CheckResult {
    states.judge(Severity::Warning, "nodes with contention", describe_contention)
}

fn describe_contention(body: &StatusBody) -> Option<String> {
    if body.contended.is_empty() {
        return None;
    }
    Some(body.contended.join("; "))
}

fn check_pod_copies(states: &AgentStates<'_>) -> CheckResult {
    let summary = "nodes on which the plugin sends API requests for pods that start";
    states.judge_with_unknown(
        Severity::Warning,
        summary,
        pod_copy_problem,
        unlisted_pod_copy_reason,
    )
}

fn pod_copy_problem(body: &StatusBody) -> Option<String> {
    let Some(pod_copy) = &body.pod_copy else {
        return Some("its agent does not watch the pods (watchPods: false)".to_owned());
    };
    if pod_copy.current {
        return None;
    }
    pod_copy.problem.clone()
}

/// Returns that the agent has neither listed the pods yet nor failed to do so, if that is the case.
fn unlisted_pod_copy_reason(body: &StatusBody) -> Option<String> {
    let pod_copy = body.pod_copy.as_ref()?;
    if pod_copy.current || pod_copy.problem.is_some() {
        return None;
    }
    Some("its agent has not listed the pods yet".to_owned())
}

fn describe_backends(states: &AgentStates<'_>) -> String {
    let mut names = BTreeSet::new();
    for (_, body) in &states.bodies {
        names.extend(body.calls.redirects.keys().map(String::as_str));
    }
    if names.is_empty() {
        return "no pod redirected yet".to_owned();
    }
    format!("backend {}", Vec::from_iter(names).join(" and "))
}

/// Warns of plugin calls that failed, or redirected by annotations alone.
fn check_plugin_calls(states: &AgentStates<'_>) -> CheckResult {
    states.judge(Severity::Warning, "plugin calls since the agent started", call_problems)
}

fn call_problems(body: &StatusBody) -> Vec<String> {
    let mut problems = Vec::new();
    for (code, count) in &body.calls.failures {
        problems.push(describe_calls(*count, "failed", code));
    }
    for (code, count) in &body.calls.degraded {
        problems.push(describe_calls(*count, "redirected by annotations alone", code));
    }
    problems
}

fn describe_calls(count: u64, result: &str, code: &str) -> String {
    match failure::causes(code) {
        Some(causes) => format!("{count} {result} with code {code}: {causes}"),
        None => format!("{count} {result} with code {code}"),
    }
}
