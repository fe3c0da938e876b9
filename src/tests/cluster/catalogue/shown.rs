//! What kubectl and `linkerd cni` show of a fault, without what differs between runs.

use serde_json::Value;

use crate::extension::cni;
use crate::fault_page::{FaultPage, Source};
use crate::pods::{command, kubectl};
use crate::until::until;

/// The page of a fault on the cluster.
pub struct Shown {
    page: FaultPage,
    /// Names that differ between runs, and what the page shows instead.
    names: Vec<(String, &'static str)>,
    cut: Option<&'static str>,
}

impl Shown {
    pub fn new(page: FaultPage) -> Shown {
        let node = kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
        Shown {
            page,
            names: vec![
                (format!(" {node}"), " node-1"),
                (format!("{node}:"), "node-1:"),
                // The bin dir of the tests' node beside the usual one.
                (" /var/lib/linkerd2-cni-cluster/cni-bin".to_owned(), ""),
            ],
            cut: None,
        }
    }

    /// Captures the Event of this reason in the namespace whose note has `text`.
    pub fn event(mut self, source: Source, namespace: &str, reason: &str, text: &str) -> Shown {
        let mut found = None;
        until(&format!("the Event {reason} with {text}"), || {
            let fields = format!("--field-selector=reason={reason}");
            let events = kubectl(&["get", "events", "-n", namespace, &fields, "-o", "json"]);
            let events: Value = serde_json::from_str(&events).unwrap();
            let mut items = events["items"].as_array().unwrap().iter();
            found = items.find(|event| message(event).contains(text)).cloned();
            found.is_some()
        });
        let event = found.unwrap();
        let kind = event["type"].as_str().unwrap();
        let line = format!("{kind}  {reason}  {}", message(&event));
        self.capture(source, &line);
        self
    }

    /// Cuts the captured texts after `text`, as the rest differs between machines.
    pub fn cut_after(mut self, text: &'static str) -> Shown {
        self.cut = Some(text);
        self
    }

    /// Captures the problem in `linkerd cni check` that has `text`, once it is reported.
    pub fn check(mut self, text: &str) -> Shown {
        let mut found = String::new();
        until(&format!("linkerd cni check says {text}"), || {
            let (_, report) = cni(&["check", "-o", "short", "--wait=0s"]);
            found = problem(&report, text).unwrap_or_default();
            !found.is_empty()
        });
        self.capture(Source::Check, &found);
        self
    }

    /// Captures what `kubectl get pods` says of the pods of a namespace, without the age.
    pub fn pods(mut self, namespace: &str, status: &str) -> Shown {
        let mut found = String::new();
        until(&format!("a pod is {status}"), || {
            let output = command(&["get", "pods", "-n", namespace]).output().unwrap();
            found = String::from_utf8(output.stdout).unwrap();
            found.contains(status)
        });
        let columns = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join("   ");
        let lines: Vec<String> = found
            .lines()
            .filter(|line| line.starts_with("NAME") || line.contains(status))
            .map(columns)
            .collect();
        self.capture(Source::Pods, &lines.join("\n"));
        self
    }

    pub fn capture(&mut self, source: Source, text: &str) {
        let mut text = text.replace("(combined from similar events): ", "");
        for (own, shown) in &self.names {
            text = text.replace(own, shown);
        }
        for (before, after, shown) in [
            ("for sandbox \"", "\"", "ID"),
            ("pods \"linkerd-cni-", "\"", "x"),
            ("pod linkerd-cni-", ":", "x"),
        ] {
            text = mask(&text, before, after, shown);
        }
        let cut = |line: &str| match self.cut.and_then(|end| line.split_once(end)) {
            Some((head, _)) => format!("{head}{}...\n", self.cut.unwrap_or_default()),
            None => format!("{line}\n"),
        };
        let text: String = text.lines().map(cut).collect();
        self.page.shows(source, &text);
    }

    pub fn compare(self) {
        self.page.check();
    }
}

fn message(event: &Value) -> &str {
    event["message"].as_str().unwrap_or_default()
}

/// The check in a report that has `text`, with its lines.
fn problem(report: &str, text: &str) -> Option<String> {
    let mut checks: Vec<String> = Vec::new();
    for line in report.lines() {
        match checks.last_mut() {
            _ if line.starts_with(['×', '‼']) => checks.push(format!("{line}\n")),
            Some(check) if line.starts_with([' ', '\t']) => {
                check.push_str(&format!("{}\n", line.replace('\t', "        ")));
            }
            _ => {}
        }
    }
    checks.into_iter().find(|check| check.contains(text))
}

/// Replaces the first text between `before` and `after`.
fn mask(text: &str, before: &str, after: &str, shown: &str) -> String {
    let parts =
        text.split_once(before).and_then(|(head, rest)| Some((head, rest.split_once(after)?.1)));
    parts.map_or(text.to_owned(), |(head, tail)| format!("{head}{before}{shown}{after}{tail}"))
}
