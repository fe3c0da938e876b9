//! The commits since the last release follow CONTRIBUTING.md.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::Command;

/// The last commit before the rules, for a repository without a release.
const BEFORE_RULES: &str = "81defda";
/// Longest subject, in characters.
const SUBJECT_LIMIT: usize = 72;
const INFLECTED: &str = "the subject is not in the imperative";
/// First words with the end of a participle or a third person that are imperatives.
const IMPERATIVES: [&str; 6] = ["Bring", "Embed", "Feed", "Focus", "Need", "Seed"];

/// Runs git in this checkout. `None` if it fails, as in an archive of the sources.
fn git(args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(Path::new(env!("CARGO_MANIFEST_DIR"))).args(args);
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

/// What is wrong with a commit; empty if nothing is.
fn faults(message: &str) -> Vec<&'static str> {
    let (subject, body) = message.split_once('\n').unwrap_or((message, ""));
    let first = subject.split(' ').next().unwrap_or_default();
    let is_inflected = ["ing", "ed"].iter().any(|end| first.ends_with(end))
        || (first.ends_with('s') && !first.ends_with("ss"));
    let is_signed = |line: &&str| line.starts_with("Signed-off-by: ");
    let mut reasons = body.lines().filter(|line| !line.is_empty() && !is_signed(line));
    let checks = [
        (subject.chars().count() > SUBJECT_LIMIT, "the subject has more than 72 characters"),
        (subject.ends_with('.'), "the subject ends with a full stop"),
        (!first.starts_with(char::is_uppercase), "the subject starts with a small letter"),
        (is_inflected && !IMPERATIVES.contains(&first), INFLECTED),
        (reasons.next().is_none(), "no body says why"),
        (!body.lines().any(|line| is_signed(&line)), "no Signed-off-by: use git commit --signoff"),
    ];
    checks.into_iter().filter_map(|(is_wrong, what)| is_wrong.then_some(what)).collect()
}

#[test]
fn commits_since_the_last_release_follow_the_rules_for_messages() {
    let last_release = git(&["describe", "--tags", "--abbrev=0", "--match=v[0-9]*"]);
    let range = format!("{}..HEAD", last_release.as_deref().unwrap_or(BEFORE_RULES));
    let Some(log) = git(&["log", "--no-merges", "--format=%h %B%x00", &range]) else {
        // Only the repository's own workflow promises the whole history; a fork may have another.
        let is_shallow = git(&["rev-parse", "--is-shallow-repository"]).as_deref() != Some("false");
        let needs_history = env::var_os("GITHUB_ACTIONS").is_some() && is_shallow;
        assert!(!needs_history, "no commits {range}: check out the whole history");
        return;
    };
    let mut subjects = BTreeSet::new();
    let mut found = Vec::new();
    for commit in log.split('\0').map(str::trim).filter(|commit| !commit.is_empty()) {
        let (hash, message) = commit.split_once(' ').unwrap();
        let subject = message.lines().next().unwrap_or_default();
        let is_new = subjects.insert(subject);
        let repeated = (!is_new).then_some("another commit has this subject");
        let faults = faults(message).into_iter().chain(repeated);
        found.extend(faults.map(|fault| format!("{hash} {subject}: {fault}")));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn each_fault_of_a_commit_message_is_found() {
    let signed = "\n\nNobody asks for it.\n\nSigned-off-by: A <a@localhost>";
    let long = format!("Drop {}", "x".repeat(70));
    for (subject, expected) in [
        ("Drop the option", vec![]),
        ("Pass the option", vec![]),
        ("Drops the option", vec![INFLECTED]),
        ("Dropping the option", vec![INFLECTED]),
        ("Drop the option.", vec!["the subject ends with a full stop"]),
        ("drop the option", vec!["the subject starts with a small letter"]),
        (&long, vec!["the subject has more than 72 characters"]),
    ] {
        assert_eq!(faults(&format!("{subject}{signed}")), expected, "{subject}");
    }
    let bare = ["no body says why", "no Signed-off-by: use git commit --signoff"];
    assert_eq!(faults("Drop the option"), bare);
}
