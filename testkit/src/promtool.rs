//! Checks metrics with promtool.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Fails unless `promtool check metrics` accepts these metrics without a remark. Without promtool
/// the check is skipped, but fails in CI.
pub fn assert_clean(openmetrics: &str) {
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let Ok(mut child) = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        assert!(std::env::var_os("CI").is_none(), "promtool is missing");
        println!("skipped: promtool is missing (scripts/tools promtool)");
        return;
    };
    let text = prometheus_text(openmetrics);
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let remarks = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && remarks.is_empty(), "{remarks}\n{text}");
}

/// Converts OpenMetrics to the older text format that `promtool check metrics` reads. There, the
/// names of counters have `_total` also in the lines HELP and TYPE.
fn prometheus_text(openmetrics: &str) -> String {
    let counters: BTreeSet<_> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    openmetrics.lines().map(|line| prometheus_line(line, &counters)).collect()
}

fn prometheus_line(line: &str, counters: &BTreeSet<&str>) -> String {
    let words: Vec<&str> = line.splitn(4, ' ').collect();
    match words[..] {
        ["#", "EOF" | "UNIT", ..] => String::new(),
        ["#", kind, name, rest] if counters.contains(name) => {
            format!("# {kind} {name}_total {rest}\n")
        }
        _ => format!("{line}\n"),
    }
}
