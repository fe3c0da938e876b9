//! What `linkerd cni check`, `bypass` and `explain`, metrics and Events say of the states in
//! `verdicts.yaml`, in which something is broken or cannot be seen, one after the other on one real
//! cluster. Before and after, the cluster is healthy, and everything about it is right.

mod states;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use testkit::table::rows;

use crate::agent::{agent_pods, is_ready};
use crate::pod_copy::hand_made;
use crate::scene::Scene;
use crate::{api, node, pods};
use states::{State, upgrade};

/// Longest time until a state is reported, or no longer reported. Audits report an unknown pod
/// after a minute, and Kubernetes takes almost as long to notice a dead node.
const LIMIT: Duration = Duration::from_secs(240);
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time of a check that waits for nothing, although `--wait` allows five minutes.
const CHECK: Duration = Duration::from_secs(60);

/// Values of the healthy cluster. By default, nothing redirects link-local connections over IPv6.
pub const HEALTHY: &str = "disableIPv6=false";

/// A row of `verdicts.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    values: String,
    #[serde(default)]
    state: String,
    /// Whether `check` runs with its default of `--wait`, and must not wait for the state's end.
    #[serde(default)]
    waits: bool,
    check: Option<CheckSays>,
    bypass: Option<BypassSays>,
    explain: Option<ExplainSays>,
    /// Name, with labels, and the smallest value; or 0.
    metric: Option<(String, f64)>,
    /// Reason, and a part of the message.
    event: Option<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckSays {
    /// Exit code.
    code: i32,
    /// The check: its section in docs/cli.md.
    at: String,
    /// `wrong`, `unknown` or `warning`.
    is: String,
    says: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BypassSays {
    code: i32,
    /// The reason of a path of the state's pod. Missing if there is no report.
    reason: Option<String>,
    #[serde(default)]
    says: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainSays {
    code: i32,
    says: String,
}

#[test]
#[ignore = "takes minutes: scripts/test --matrix runs it"]
fn no_broken_or_unseen_state_is_reported_as_right() {
    let scene = Scene::installed(&["--set", HEALTHY]);
    let Scene { pods, .. } = &scene;
    pods.start(&[pods::meshed("closed"), pods::native_sidecar("sidecar"), hand_made("by-hand")]);
    pods.start(&[pods::unmeshed("client")]);
    assert_healthy();

    let mut values = String::new();
    let mut failures = Vec::new();
    for (name, row) in rows::<Row>(include_str!("verdicts.yaml")) {
        assert!(row.is_not_right(), "{name}");
        if row.values != values {
            upgrade(&row.values);
            values.clone_from(&row.values);
        }
        let state = states::make(&row.state);
        let begin = Instant::now();
        if let Err(why) = until_ok(|| row.said(&state)) {
            failures.push(format!("{}: {why}", &*name));
        }
        println!("{}", row.summary(&name, &state, begin.elapsed()));
        drop(state);
        if !row.state.is_empty()
            && let Err(why) = until_ok(|| row.ended())
        {
            failures.push(format!("{}, after its end: {why}", &*name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    upgrade("");
    assert_healthy();
    scene.remove();
}

/// Checks that everything is right, for the administrator and for a user with the documented rights.
fn assert_healthy() {
    let reader = states::user_with_all_rights();
    for flags in [Vec::new(), reader.flags.clone()] {
        let healthy = until_ok(|| all_right(&flags));
        assert_eq!(healthy, Ok(()), "{flags:?}");
    }
}

fn all_right(flags: &[String]) -> Result<(), String> {
    let check = run(&["check", "--wait=0s", "-o", "json"], flags);
    if check.code != 0 || check.json["outcome"] != "right" || !check.problems().is_empty() {
        return Err(format!("check: {}", check.text));
    }
    let bypass = run(&["bypass", "-o", "json"], flags);
    let pods = bypass.json["pods"].as_array().cloned().unwrap_or_default();
    if bypass.code != 0 || bypass.json["outcome"] != "right" || pods.len() < 3 {
        return Err(format!("bypass: {}", bypass.text));
    }
    for pod in &pods {
        let [name, namespace] = ["name", "namespace"].map(|key| pod[key].as_str().unwrap());
        let explained = run(&["explain", name, "-n", namespace, "-o", "json"], flags);
        if explained.code != 0 || explained.json["outcome"] != "right" {
            return Err(format!("explain: {}", explained.text));
        }
    }
    Ok(())
}

/// Repeats `attempt` until it succeeds, or returns its last error.
fn until_ok(mut attempt: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let end = Instant::now() + LIMIT;
    loop {
        let result = attempt();
        if result.is_ok() || Instant::now() > end {
            return result;
        }
        thread::sleep(PAUSE);
    }
}

impl Row {
    /// Whether the row expects that somebody sees that not all is right.
    fn is_not_right(&self) -> bool {
        let bypass = self.bypass.as_ref().is_some_and(|bypass| bypass.code != 0);
        let explain = self.explain.as_ref().is_some_and(|explain| explain.code != 0);
        self.check.is_some() || bypass || explain
    }

    /// Fails with what is not said of the state as the row expects.
    fn said(&self, state: &State) -> Result<(), String> {
        if let Some((reason, text)) = &self.event {
            expect_event(reason, text)?;
        }
        if let Some((name, least)) = &self.metric {
            expect_metric(name, *least)?;
        }
        if let Some(expected) = &self.bypass {
            expected.compare(state)?;
        }
        if let Some(expected) = &self.explain {
            expected.compare(state)?;
        }
        if let Some(expected) = &self.check {
            let begin = Instant::now();
            let check = self.run_check(state);
            expected.compare(&check)?;
            assert!(!self.waits || begin.elapsed() < CHECK, "it waits: {}", check.text);
        }
        Ok(())
    }

    fn run_check(&self, state: &State) -> Said {
        let wait: &[&str] = if self.waits { &[] } else { &["--wait=0s"] };
        run(&[&["check", "-o", "json"], wait].concat(), &state.flags)
    }

    /// Fails as long as `check` still says of the cluster what the row expects.
    fn ended(&self) -> Result<(), String> {
        if !is_ready() || api::condition(&node::list()[0], "Ready") != "True" {
            return Err("the agent or the node is not ready".to_owned());
        }
        let Some(expected) = &self.check else { return Ok(()) };
        let check = run(&["check", "--wait=0s", "-o", "json"], &[]);
        let found = expected.find(&check);
        match found {
            Some(problem) if problem["error"].as_str().unwrap().contains(&expected.says) => {
                Err(problem.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Returns a row of a table in Markdown.
    fn summary(&self, name: &str, state: &State, time: Duration) -> String {
        let check = self.run_check(state);
        let problems: Vec<String> = check.problems().into_iter().map(describe).collect();
        let bypass = run_bypass(state);
        let reasons = bypass.reasons(&state.pod).join(", ");
        let explain = run_explain(state);
        let decision = explain.json["decision"].as_str().unwrap_or_default();
        let metric = self.metric.as_ref().map_or("", |(name, _)| name);
        let event = self.event.as_ref().map_or("", |(reason, _)| reason);
        format!(
            "| {name} | {} {} | {} {reasons} | {} {decision} | {metric} | {event} | {:.0} s |",
            check.code,
            problems.join(", "),
            bypass.code,
            explain.code,
            time.as_secs_f64(),
        )
    }
}

/// Names a check that did not succeed, and what it is.
fn describe(check: &Value) -> String {
    let hint = check["hint"].as_str().unwrap();
    let (_, section) = hint.split_once('#').unwrap();
    format!("{section} {}", level(check))
}

/// Returns `wrong`, `unknown` or `warning`.
fn level(check: &Value) -> &str {
    if check["result"] == "warning" { "warning" } else { check["outcome"].as_str().unwrap() }
}

impl CheckSays {
    fn find<'s>(&self, said: &'s Said) -> Option<&'s Value> {
        let hint = format!("docs/cli.md#{}", self.at);
        let mut problems = said.problems().into_iter();
        problems.find(|check| check["hint"] == hint && level(check) == self.is)
    }

    fn compare(&self, said: &Said) -> Result<(), String> {
        let problem = self.find(said).map_or("", |check| check["error"].as_str().unwrap());
        if said.code == self.code && problem.contains(&self.says) && !problem.is_empty() {
            return Ok(());
        }
        Err(format!("check, not {} at {}: {}", self.is, self.at, said.shown()))
    }
}

impl BypassSays {
    fn compare(&self, state: &State) -> Result<(), String> {
        let said = run_bypass(state);
        let reasons = said.reasons(&state.pod);
        let has_reason = self.reason.as_ref().is_none_or(|reason| reasons.contains(reason));
        if said.code == self.code && has_reason && said.text.contains(&self.says) {
            return Ok(());
        }
        Err(format!("bypass, not {:?}: {}", self.reason, said.shown()))
    }
}

impl ExplainSays {
    fn compare(&self, state: &State) -> Result<(), String> {
        let said = run_explain(state);
        if said.code == self.code && said.text.contains(&self.says) {
            return Ok(());
        }
        Err(format!("explain, not {}: {}", self.says, said.shown()))
    }
}

fn run_bypass(state: &State) -> Said {
    run(&["bypass", "-n", &state.namespace, "-o", "json"], &state.flags)
}

fn run_explain(state: &State) -> Said {
    run(&["explain", &state.pod, "-n", &state.namespace, "-o", "json"], &state.flags)
}

/// What a command of `linkerd cni` said.
struct Said {
    code: i32,
    /// stdout and stderr.
    text: String,
    /// Null if the command failed without a report.
    json: Value,
}

fn run(args: &[&str], flags: &[String]) -> Said {
    let mut cni = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"));
    let output = cni.args(args).args(flags).output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    Said {
        code: output.status.code().expect("no signal ends the command"),
        json: serde_json::from_str(&stdout).unwrap_or_default(),
        text: stdout + &stderr,
    }
}

impl Said {
    /// Returns the checks that did not succeed.
    fn problems(&self) -> Vec<&Value> {
        let categories = self.json["categories"].as_array().into_iter().flatten();
        let checks = categories.flat_map(|category| category["checks"].as_array().unwrap());
        checks.filter(|check| check["result"] != "success").collect()
    }

    /// Returns the reasons of the paths of the pod with this name.
    fn reasons(&self, pod: &str) -> Vec<String> {
        let mut pods = self.json["pods"].as_array().into_iter().flatten();
        let Some(pod) = pods.find(|found| found["name"] == pod) else { return Vec::new() };
        let paths = pod["bypasses"].as_array().unwrap().iter();
        paths.map(|path| path["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Returns exit code and text, without the checks that succeeded.
    fn shown(&self) -> String {
        let problems = self.problems();
        if problems.is_empty() {
            return format!("{} {}", self.code, self.text);
        }
        format!("{} {problems:#?}", self.code)
    }
}

fn expect_event(reason: &str, text: &str) -> Result<(), String> {
    let events = api::list(&format!("/api/v1/events?fieldSelector=reason={reason}"));
    let mut messages = events.iter().map(|event| event["message"].as_str().unwrap_or_default());
    if messages.clone().any(|message| message.contains(text)) {
        return Ok(());
    }
    Err(format!("no Event {reason} with {text}: {:?}", messages.next_back()))
}

/// Fails if no program in the agent's pods has the metric with at least this value. A value of 0 is
/// expected exactly.
fn expect_metric(name: &str, least: f64) -> Result<(), String> {
    let mut found = Vec::new();
    for pod in agent_pods() {
        for port in ["9990", "9991"] {
            let pod = pod["metadata"]["name"].as_str().unwrap();
            let path = format!("{}/{pod}:{port}/proxy/metrics", pods::path("linkerd-cni"));
            let metrics = api::admin().get_text(&path).unwrap_or_default();
            let mut lines = metrics.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.extend(value.map(|value| value.parse::<f64>().unwrap()));
        }
    }
    let is_met = |value: &f64| if least == 0.0 { *value == 0.0 } else { *value >= least };
    if found.iter().any(is_met) {
        return Ok(());
    }
    Err(format!("metric {name}, not {least}: {found:?}"))
}
