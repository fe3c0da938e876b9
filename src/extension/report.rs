//! Check results as table, short text or JSON, in the format of `linkerd check`. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use crate::quote::one_line;

/// Page with a section for each check, which the hints point to.
const HINTS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/cli.md#");

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Heading of the check's group.
    pub category: &'static str,
    pub description: String,
    /// Section of docs/cli.md about the check.
    pub hint: &'static str,
    pub result: CheckResult,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    Success,
    /// Worth a look. The exit code stays 0.
    Warning(String),
    Error(String),
    /// An error that may disappear while the chart is rolled out. The check is retried.
    Pending(String),
}

impl Check {
    /// A check that succeeded.
    pub fn new(category: &'static str, hint: &'static str, description: impl Into<String>) -> Self {
        let description = one_line(&description.into());
        Check { category, description, hint, result: CheckResult::Success }
    }

    pub fn error(mut self, why: impl Into<String>) -> Self {
        self.result = CheckResult::Error(plain_lines(&why.into()));
        self
    }

    pub fn warning(mut self, why: impl Into<String>) -> Self {
        self.result = CheckResult::Warning(plain_lines(&why.into()));
        self
    }

    pub fn pending(mut self, why: impl Into<String>) -> Self {
        self.result = CheckResult::Pending(plain_lines(&why.into()));
        self
    }

    /// Fails with the list of `items`, in the format of `linkerd check`; succeeds if it is empty.
    pub fn error_if_any(self, summary: &str, items: &[String]) -> Self {
        match items {
            [] => self,
            items => self.error(bullets(summary, items)),
        }
    }

    /// Warns with the list of `items`; succeeds if it is empty.
    pub fn warning_if_any(self, summary: &str, items: &[String]) -> Self {
        match items {
            [] => self,
            items => self.warning(bullets(summary, items)),
        }
    }

    /// Returns why the check did not succeed.
    fn problem(&self) -> Option<&str> {
        match &self.result {
            CheckResult::Success => None,
            CheckResult::Warning(why) | CheckResult::Error(why) | CheckResult::Pending(why) => {
                Some(why)
            }
        }
    }

    fn is_failure(&self) -> bool {
        matches!(self.result, CheckResult::Error(_) | CheckResult::Pending(_))
    }

    fn hint_url(&self) -> String {
        format!("{HINTS}{}", self.hint)
    }
}

/// Applies [`one_line`] to each line, and keeps the indentation of [`bullets`].
fn plain_lines(text: &str) -> String {
    let plain = |line: &str| match line.strip_prefix('\t') {
        Some(item) => format!("\t{}", one_line(item)),
        None => one_line(line),
    };
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Longest list in a message.
const ITEM_LIMIT: usize = 20;

/// Returns `summary` and the items, one a line.
pub fn bullets(summary: &str, items: &[String]) -> String {
    let mut text = format!("{}:", one_line(summary));
    for item in items.iter().take(ITEM_LIMIT) {
        let _ = write!(text, "\n\t* {}", one_line(item));
    }
    if items.len() > ITEM_LIMIT {
        let _ = write!(text, "\n\t* and {} more", items.len() - ITEM_LIMIT);
    }
    text
}

/// Format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Table,
    /// Only checks that did not succeed.
    Short,
    Json,
}

/// Whether no check failed. Warnings do not count.
pub fn is_success(checks: &[Check]) -> bool {
    !checks.iter().any(Check::is_failure)
}

/// Whether a failed check may succeed later.
pub fn is_pending(checks: &[Check]) -> bool {
    checks.iter().any(|check| matches!(check.result, CheckResult::Pending(_)))
}

/// Renders the report. `color` is for terminals.
pub fn render(checks: &[Check], format: Format, color: bool) -> String {
    match format {
        Format::Json => json(checks),
        Format::Table => text(checks, false, color),
        Format::Short => text(checks, true, color),
    }
}

fn text(checks: &[Check], short: bool, color: bool) -> String {
    let mut text = String::new();
    let mut last = "";
    for check in checks.iter().filter(|check| !short || check.problem().is_some()) {
        if check.category != last {
            let gap = if last.is_empty() { "" } else { "\n" };
            let line = "-".repeat(check.category.len());
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{gap}{}\n{line}", check.category);
            last = check.category;
        }
        let _ = writeln!(text, "{} {}", glyph(&check.result, color), check.description);
        if let Some(why) = check.problem() {
            let _ = writeln!(text, "    {why}\n    see {} for hints", check.hint_url());
        }
    }
    if !last.is_empty() || !short {
        text.push('\n');
    }
    let overall = match is_success(checks) {
        true => CheckResult::Success,
        false => CheckResult::Error(String::new()),
    };
    let _ = writeln!(text, "Status check results are {}", glyph(&overall, color));
    text
}

fn glyph(result: &CheckResult, color: bool) -> String {
    let (glyph, code) = match result {
        CheckResult::Success => ('√', 32),
        CheckResult::Warning(_) => ('‼', 33),
        CheckResult::Error(_) | CheckResult::Pending(_) => ('×', 31),
    };
    match color {
        true => format!("\x1b[{code};1m{glyph}\x1b[0m"),
        false => glyph.to_string(),
    }
}

/// The JSON of `linkerd check --output json`, which `linkerd check` reads from extensions.
#[derive(Serialize)]
struct Output {
    success: bool,
    categories: Vec<Category>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Category {
    category_name: &'static str,
    checks: Vec<CheckOutput>,
}

#[derive(Serialize)]
struct CheckOutput {
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    result: &'static str,
}

fn json(checks: &[Check]) -> String {
    let mut categories: Vec<Category> = Vec::new();
    for check in checks {
        if categories.last().is_none_or(|last| last.category_name != check.category) {
            categories.push(Category { category_name: check.category, checks: Vec::new() });
        }
        let output = CheckOutput {
            description: check.description.clone(),
            hint: check.problem().map(|_| check.hint_url()),
            error: check.problem().map(str::to_owned),
            result: match check.result {
                CheckResult::Success => "success",
                CheckResult::Warning(_) => "warning",
                CheckResult::Error(_) | CheckResult::Pending(_) => "error",
            },
        };
        if let Some(category) = categories.last_mut() {
            category.checks.push(output);
        }
    }
    let output = Output { success: is_success(checks), categories };
    // Structs with text cannot fail to serialize.
    serde_json::to_string_pretty(&output).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        let items: Vec<String> = (1..=21).map(|node| format!("node-{node}: why")).collect();
        vec![
            Check::new("linkerd-cni", "a", "first"),
            Check::new("linkerd-cni", "b", "second").warning("worth a look"),
            Check::new("linkerd-cni-nodes", "c", "third").error_if_any("nodes fail", &items),
            Check::new("linkerd-cni-nodes", "d", "fourth").pending("1 of 2"),
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

    #[test]
    fn a_short_report_without_problems_is_one_line() {
        let good = [Check::new("linkerd-cni", "a", "first")];
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
