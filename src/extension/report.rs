//! Check results as table, short text or JSON, in the format of `linkerd check`. Pure.

use std::fmt::{Display, Write as _};

use serde_json::{Value, json};

use crate::quote::one_line;

/// Page with a section for each check, which the hints point to.
const HINTS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/cli.md#");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub category: &'static str,
    /// Section of docs/cli.md about the check.
    pub hint: &'static str,
    pub description: String,
    pub result: CheckResult,
}

pub type CheckResult = Result<(), Problem>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Problem {
    pub severity: Severity,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The check found something that an operator should look at. The exit code stays 0.
    Warning,
    Error,
    /// An error that may disappear while the chart is rolled out. The check is retried.
    Pending,
}

impl Severity {
    /// Fails with this text.
    pub fn because<T>(self, text: impl AsRef<str>) -> Result<T, Problem> {
        Err(Problem { severity: self, text: one_line(text.as_ref()) })
    }

    /// Fails with the list of `items`, in the format of `linkerd check`; succeeds if it is empty.
    pub fn if_any(self, summary: &str, items: &[String]) -> CheckResult {
        if items.is_empty() {
            return Ok(());
        }
        let mut text = format!("{}:", one_line(summary));
        for item in items {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n\t* {}", one_line(item));
        }
        Err(Problem { severity: self, text })
    }

    /// Fails because `what` cannot be read.
    pub fn unreadable<T>(self, what: &str, why: &impl Display) -> Result<T, Problem> {
        self.because(format!("cannot read {what}: {why}"))
    }
}

impl Check {
    pub fn new(
        category: &'static str,
        hint: &'static str,
        description: impl AsRef<str>,
        result: CheckResult,
    ) -> Check {
        Check { category, hint, description: one_line(description.as_ref()), result }
    }

    fn severity(&self) -> Option<Severity> {
        self.result.as_ref().err().map(|problem| problem.severity)
    }

    fn is_failure(&self) -> bool {
        match self.severity() {
            None | Some(Severity::Warning) => false,
            Some(Severity::Error | Severity::Pending) => true,
        }
    }

    fn hint_url(&self) -> String {
        format!("{HINTS}{}", self.hint)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    /// The report has only the checks that did not succeed.
    Short,
    Json,
}

/// Whether every check succeeded or gave only a warning.
pub fn is_success(checks: &[Check]) -> bool {
    !checks.iter().any(Check::is_failure)
}

/// Whether a check may succeed later, while the chart is rolled out.
pub fn is_pending(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.severity() == Some(Severity::Pending))
}

/// Renders the report. `color` is for terminals.
pub fn render(checks: &[Check], format: Format, color: bool) -> String {
    if format == Format::Json {
        return format!("{:#}\n", json(checks));
    }
    let mut shown: Vec<&Check> = checks.iter().collect();
    if format == Format::Short {
        shown.retain(|check| check.result.is_err());
    }
    let mut text = String::new();
    for group in shown.chunk_by(|a, b| a.category == b.category) {
        let category = group[0].category;
        let _ = writeln!(text, "{category}\n{}", "-".repeat(category.len()));
        for check in group {
            let _ = writeln!(text, "{} {}", glyph(check.severity(), color), check.description);
            if let Err(problem) = &check.result {
                let (why, hint) = (&problem.text, check.hint_url());
                let _ = writeln!(text, "    {why}\n    see {hint} for hints");
            }
        }
        text.push('\n');
    }
    let overall = if is_success(checks) { None } else { Some(Severity::Error) };
    let _ = writeln!(text, "Status check results are {}", glyph(overall, color));
    text
}

/// Renders the reports of several clusters, each with its context.
pub fn render_contexts(clusters: &[(String, Vec<Check>)], format: Format, color: bool) -> String {
    if format == Format::Json {
        return format!("{:#}\n", contexts_json(clusters));
    }
    let mut reports = Vec::new();
    for (context, checks) in clusters {
        let report = render(checks, format, color);
        reports.push(format!("Context {}\n\n{report}", one_line(context)));
    }
    reports.join("\n")
}

fn contexts_json(clusters: &[(String, Vec<Check>)]) -> Value {
    let mut reports = Vec::new();
    for (context, checks) in clusters {
        let mut report = json(checks);
        report["context"] = json!(context);
        reports.push(report);
    }
    let success = clusters.iter().all(|(_, checks)| is_success(checks));
    json!({"success": success, "contexts": reports})
}

/// Returns the sign in front of a check: passed, warning or failed.
fn glyph(severity: Option<Severity>, color: bool) -> String {
    let (glyph, code) = match severity {
        None => ('√', 32),
        Some(Severity::Warning) => ('‼', 33),
        Some(Severity::Error | Severity::Pending) => ('×', 31),
    };
    if !color {
        return glyph.to_string();
    }
    format!("\x1b[{code};1m{glyph}\x1b[0m")
}

/// Renders the JSON of `linkerd check --output json`, which `linkerd check` reads from extensions.
fn json(checks: &[Check]) -> Value {
    let mut categories = Vec::new();
    for group in checks.chunk_by(|a, b| a.category == b.category) {
        let checks: Vec<Value> = group.iter().map(check_json).collect();
        categories.push(json!({"categoryName": group[0].category, "checks": checks}));
    }
    json!({"success": is_success(checks), "categories": categories})
}

fn check_json(check: &Check) -> Value {
    match &check.result {
        Ok(()) => json!({"description": check.description, "result": "success"}),
        Err(problem) => json!({
            "description": check.description,
            "hint": check.hint_url(),
            "error": problem.text,
            "result": if check.is_failure() { "error" } else { "warning" },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        let items: Vec<String> = (1..=2).map(|node| format!("node-{node}: why")).collect();
        vec![
            Check::new("linkerd-cni", "a", "first", Ok(())),
            Check::new("linkerd-cni", "b", "second", Severity::Warning.because("worth a look")),
            Check::new(
                "linkerd-cni-nodes",
                "c",
                "third",
                Severity::Error.if_any("nodes fail", &items),
            ),
            Check::new("linkerd-cni-nodes", "d", "fourth", Severity::Pending.because("1 of 2")),
        ]
    }

    #[test]
    fn the_three_formats_look_like_those_of_linkerd_check() {
        for (name, format) in
            [("table", Format::Table), ("short", Format::Short), ("json", Format::Json)]
        {
            insta::assert_snapshot!(name, render(&checks(), format, false));
        }
    }

    /// No other output names the nodes, so the list must not be cut.
    #[test]
    fn a_list_of_any_length_is_complete() {
        let nodes: Vec<String> = (1..=5000).map(|node| format!("node-{node}")).collect();
        let problem = Severity::Error.if_any("nodes fail", &nodes).unwrap_err();
        assert!(problem.text.lines().skip(1).eq(nodes.iter().map(|node| format!("\t* {node}"))));
    }

    #[test]
    fn a_short_report_without_problems_is_one_line() {
        let good = [Check::new("linkerd-cni", "a", "first", Ok(()))];
        assert_eq!(render(&good, Format::Short, false), "Status check results are √\n");
    }

    #[test]
    fn only_errors_fail_and_only_terminals_get_color() {
        let all = checks();
        assert!(is_success(&all[..2]) && !is_success(&all) && !is_success(&all[3..]));
        assert!(is_pending(&all) && !is_pending(&all[..3]));
        let plain = render(&all, Format::Table, false);
        assert!(!plain.contains('\x1b'));
        assert!(render(&all, Format::Table, true).contains("\x1b[32;1m√\x1b[0m first"));
    }
}
