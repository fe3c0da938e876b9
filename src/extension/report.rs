//! Renders check results as a table, as short text or as JSON, in the formats of `linkerd check`.

use std::fmt::{Display, Write as _};

use serde_json::{Value, json};

use crate::quote::one_line;
use crate::verdict::outcome::Outcome;

/// Page with a section for each check, to which the hints lead.
const HINTS: &str = "docs/cli.md#";
/// Heading of the list of what a check could not read.
const NOT_KNOWN: &str = "not known";

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
    /// The check saw everything, and found something that an operator should look at. The exit code
    /// stays 0.
    Warning,
    /// The check could not look at everything, and found no error in what it could see.
    Unknown,
    Error,
    /// An error that may disappear while the chart is rolled out. The check is retried.
    Pending,
}

impl Severity {
    /// Fails with this text.
    pub fn fail<T>(self, text: impl AsRef<str>) -> Result<T, Problem> {
        Err(Problem { severity: self, text: one_line(text.as_ref()) })
    }

    /// Fails with the list of `items`, in the format of `linkerd check`. Succeeds if there are no
    /// items.
    pub fn fail_if_any(self, summary: &str, items: &[String]) -> CheckResult {
        if items.is_empty() {
            return Ok(());
        }
        Err(Problem { severity: self, text: render_list(summary, items) })
    }

    /// Fails with the list of `items`, and with the list of what is unknown. If there are both, an
    /// error stays an error, but a warning becomes unknown, because what was not seen may be worse.
    pub fn fail_if_any_or_unknown(
        self,
        summary: &str,
        items: &[String],
        unknown: &[String],
    ) -> CheckResult {
        if unknown.is_empty() {
            return self.fail_if_any(summary, items);
        }
        let unknown = render_unknown(unknown);
        if items.is_empty() {
            return Err(Problem { severity: Severity::Unknown, text: unknown });
        }
        let severity = match self {
            Severity::Warning | Severity::Unknown => Severity::Unknown,
            Severity::Error | Severity::Pending => self,
        };
        Err(Problem { severity, text: format!("{}\n    {unknown}", render_list(summary, items)) })
    }

    fn outcome(self) -> Outcome {
        match self {
            Severity::Warning => Outcome::Right,
            Severity::Unknown => Outcome::Unknown,
            Severity::Error | Severity::Pending => Outcome::Wrong,
        }
    }
}

/// Fails because `what` cannot be read, so that the result of the check is unknown.
pub fn fail_to_read<T>(what: &str, error: &impl Display) -> Result<T, Problem> {
    Severity::Unknown.fail(format!("cannot read {what}: {error}"))
}

/// Renders what a check could not read.
fn render_unknown(unknown: &[String]) -> String {
    match unknown {
        [only] => format!("{NOT_KNOWN}: {}", one_line(only)),
        _ => render_list(NOT_KNOWN, unknown),
    }
}

/// Renders a list below its summary.
fn render_list(summary: &str, items: &[String]) -> String {
    let mut text = format!("{}:", one_line(summary));
    for item in items {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n\t* {}", one_line(item));
    }
    text
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

    fn outcome(&self) -> Outcome {
        match &self.result {
            Ok(()) => Outcome::Right,
            Err(problem) => problem.severity.outcome(),
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

/// Returns the outcome of all checks.
pub fn outcome(checks: &[Check]) -> Outcome {
    Outcome::worst(checks.iter().map(Check::outcome))
}

/// Returns the outcome of all clusters.
pub fn outcome_of_contexts(clusters: &[(String, Vec<Check>)]) -> Outcome {
    Outcome::worst(clusters.iter().map(|(_, checks)| outcome(checks)))
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
                let hint = check.hint_url();
                let _ = writeln!(text, "    {}\n    see {hint} for hints", problem.text);
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "Status check results are {}", glyph(worst_severity(checks), color));
    text
}

/// Returns the severity of the worst check. `None` only if all checks passed.
fn worst_severity(checks: &[Check]) -> Option<Severity> {
    match outcome(checks) {
        Outcome::Wrong => Some(Severity::Error),
        Outcome::Unknown => Some(Severity::Unknown),
        Outcome::Right if checks.iter().any(|check| check.result.is_err()) => {
            Some(Severity::Warning)
        }
        Outcome::Right => None,
    }
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
    let outcome = outcome_of_contexts(clusters);
    let success = outcome == Outcome::Right;
    json!({"success": success, "outcome": outcome.label(), "contexts": reports})
}

/// Returns the sign in front of a check: passed, warning, unknown or failed.
fn glyph(severity: Option<Severity>, color: bool) -> String {
    let (glyph, code) = match severity {
        None => ('√', 32),
        Some(Severity::Warning) => ('‼', 33),
        Some(Severity::Unknown) => ('?', 33),
        Some(Severity::Error | Severity::Pending) => ('×', 31),
    };
    if !color {
        return glyph.to_string();
    }
    format!("\x1b[{code};1m{glyph}\x1b[0m")
}

/// Renders the JSON of `linkerd check --output json`, which `linkerd check` reads from extensions.
/// Adds the outcomes, which are not part of that format.
fn json(checks: &[Check]) -> Value {
    let mut categories = Vec::new();
    for group in checks.chunk_by(|a, b| a.category == b.category) {
        let checks: Vec<Value> = group.iter().map(check_json).collect();
        categories.push(json!({"categoryName": group[0].category, "checks": checks}));
    }
    let outcome = outcome(checks);
    let success = outcome == Outcome::Right;
    json!({"success": success, "outcome": outcome.label(), "categories": categories})
}

fn check_json(check: &Check) -> Value {
    let outcome = check.outcome();
    let Err(problem) = &check.result else {
        return json!({
            "description": check.description,
            "result": "success",
            "outcome": outcome.label(),
        });
    };
    // `linkerd check` knows only the results success, warning and error. What is unknown must not
    // pass there, so it becomes an error.
    let result = match outcome {
        Outcome::Right => "warning",
        Outcome::Unknown | Outcome::Wrong => "error",
    };
    json!({
        "description": check.description,
        "hint": check.hint_url(),
        "error": problem.text,
        "result": result,
        "outcome": outcome.label(),
    })
}

#[cfg(test)]
mod tests;
