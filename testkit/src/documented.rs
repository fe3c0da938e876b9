//! The commands in the pages, and how the tests show that each of them works. This module only
//! reads the pages and a table. It runs no command.

use std::fs;
use std::path::PathBuf;

use crate::chart::files_below;
use crate::repository;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The chart's test `documented` renders the chart with the command's values, and checks its
    /// flags.
    Rendered,
    /// The cluster test `documented` runs the command of the page, with names instead of its
    /// placeholders.
    OnCluster,
    /// This test, or this step of `scripts/test`, runs the command or the same work.
    By(&'static str),
    /// The command cannot run in a test, for this reason.
    Not(&'static str),
}

/// A table. Each row has the beginning of commands, `|`, and how the tests show that these commands
/// work. If several rows match a command, the one with the longest beginning applies.
const ROWS: &str = include_str!("documented.txt");

#[derive(Clone, Debug)]
pub struct Command {
    pub page: String,
    pub text: String,
}

impl Command {
    /// Returns how the tests show that the command works. `None`: no row of the table applies.
    pub fn shown(&self) -> Option<Shown> {
        // The beginnings in the table end with a space.
        let text = format!("{} ", self.text);
        let matching_rows = rows().filter(|(beginning, _)| text.starts_with(beginning));
        let (_, shown) = matching_rows.max_by_key(|(beginning, _)| beginning.len())?;
        Some(shown)
    }
}

/// Returns the rows of the table: the beginning of commands, and how the tests show that they work.
pub fn rows() -> impl Iterator<Item = (&'static str, Shown)> {
    ROWS.lines().map(|row| {
        let (beginning, how) = row.split_once("| ").expect("a row");
        (beginning, parse_shown(how))
    })
}

fn parse_shown(text: &'static str) -> Shown {
    match text {
        "rendered" => return Shown::Rendered,
        "on a cluster" => return Shown::OnCluster,
        _ => {}
    }
    match text.strip_prefix("by ") {
        Some(test) => Shown::By(test),
        None => Shown::Not(text.strip_prefix("not: ").expect("a reason")),
    }
}

pub fn pages() -> Vec<PathBuf> {
    let mut pages = files_below(&repository().join("docs"), "md");
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "charts/linkerd2-cni/README.md"];
    pages.extend(others.map(|page| repository().join(page)));
    pages
}

pub fn commands() -> Vec<Command> {
    let mut commands = Vec::new();
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        let page = path.strip_prefix(repository()).unwrap().display().to_string();
        for text in commands_in(&text) {
            commands.push(Command { page: page.clone(), text });
        }
    }
    commands
}

/// Returns the commands in the code blocks with the language `sh`. A block may be indented, because
/// it may be part of a list.
fn commands_in(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut in_block = false;
    let mut continues = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            in_block = line == "```sh";
            continue;
        }
        let line = without_comment(line);
        if !in_block || line.is_empty() {
            continue;
        }
        let part = line.trim_end_matches('\\').trim();
        match commands.last_mut() {
            Some(last) if continues => *last = format!("{last} {part}"),
            _ => commands.push(part.to_owned()),
        }
        continues = line.ends_with('\\');
    }
    commands
}

fn without_comment(line: &str) -> &str {
    if line.starts_with("# ") {
        return "";
    }
    match line.split_once(" # ") {
        Some((command, _)) => command.trim(),
        None => line,
    }
}
