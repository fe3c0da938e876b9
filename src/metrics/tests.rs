//! Compares the metrics of a program with the list in docs/monitoring.md.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring.md");

/// Fails unless the page lists exactly the metrics of this OpenMetrics text whose names start with
/// one of `prefixes`, with their help and labels. The message of the failure has the rows to paste
/// into the page.
pub fn assert_documented(openmetrics: &str, prefixes: &[&str]) {
    let starts: Vec<String> = prefixes.iter().map(|prefix| format!("| `{prefix}")).collect();
    let is_listed = |row: &&str| starts.iter().any(|start| row.starts_with(start));
    let page = std::fs::read_to_string(PAGE).unwrap();
    let documented: BTreeSet<_> = page.lines().filter(is_listed).collect();
    let expected = rows(openmetrics);
    let expected: BTreeSet<_> = expected.iter().map(String::as_str).filter(is_listed).collect();
    let missing: Vec<_> = expected.difference(&documented).copied().collect();
    let stale: Vec<_> = documented.difference(&expected).copied().collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "docs/monitoring.md lacks:\n{}\nand must not have:\n{}",
        missing.join("\n"),
        stale.join("\n")
    );
}

/// Returns a row of the page's table for each metric: the name for queries, help and labels. Panics
/// if the end of a name does not match the metric's type, because the page promises that it does.
fn rows(openmetrics: &str) -> Vec<String> {
    let (mut helps, mut types) = (BTreeMap::new(), BTreeMap::new());
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut family = "";
    for line in openmetrics.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            family = name;
            helps.insert(name, help.trim_end_matches('.'));
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            types.insert(name, kind);
        } else if let Some((_, list)) = line.split_once('{') {
            // Each part before a `="` ends with the key of a label. The last part has no key, but the
            // end of the list. The key `le` is that of a histogram's buckets.
            let keys = list.split("=\"").map(|text| text.rsplit([',', '{']).next().unwrap());
            let keys = keys.filter(|key| !key.contains('}') && *key != "le");
            labels.entry(family).or_default().extend(keys);
        }
    }
    let mut rows = Vec::new();
    for (name, help) in helps {
        let suffix = if types[name] == "counter" { "_total" } else { "" };
        let is_time =
            ["_duration_seconds", "_latency_seconds"].iter().any(|end| name.ends_with(end));
        assert_eq!(types[name] == "histogram", is_time, "{name}");
        let keys = labels.get(name).into_iter().flatten();
        let keys: Vec<_> = keys.map(|key| format!("`{key}`")).collect();
        let keys = if keys.is_empty() { String::new() } else { format!(" ({})", keys.join(", ")) };
        rows.push(format!("| `{name}{suffix}` | {help}{keys} |"));
    }
    rows
}
