//! Renders the report of `linkerd cni bypass`.

use serde_json::{Value, json};

use super::{BypassReport, ReportedPod};
use crate::quote::one_line;
use crate::verdict::bypass_paths::BypassPath;
use crate::verdict::outcome::Outcome;
use crate::verdict::reason::Reason;

/// Reasons that most pods of most clusters have. The table counts the pods of each reason in one
/// line, and has no row for each pod.
const COMMON_REASONS: [Reason; 5] = [
    Reason::RulesUnknown,
    Reason::Ipv6LinkLocal,
    Reason::ImageUser,
    Reason::SetUserId,
    Reason::RootContainer,
];
const COLUMNS: [&str; 5] = ["POD", "OUTCOME", "REASON", "CAUSE", "WHAT"];

/// Renders a table with a row for each path. Below the table, a line for each common reason counts
/// the pods.
pub fn table(report: &BypassReport) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    for ReportedPod { namespace, name, paths } in &report.pods {
        let pod = one_line(&format!("{namespace}/{name}"));
        for path in paths {
            if !COMMON_REASONS.contains(&path.reason) {
                rows.push(path_row(&pod, path));
            }
        }
    }
    let mut text = String::new();
    let has_rows = rows.len() > 1;
    if has_rows {
        text.push_str(&align(&rows));
        text.push('\n');
    }
    text.push_str(&format!(
        "Of {} meshed pods, {} have a path around the proxy, for {} that is unknown, and {} have \
         none.\n",
        report.pods.len(),
        report.count(Outcome::Wrong),
        report.count(Outcome::Unknown),
        report.count(Outcome::Right),
    ));
    for reason in COMMON_REASONS {
        text.push_str(&common_line(report, reason));
    }
    let udp = Reason::Udp;
    text.push_str(&format!("{}: {}.\n", udp.label(), udp.text()));
    text.push_str(&format!("Not examined: pods with linkerd-init ({}).\n", report.with_init));
    text
}

/// Counts the pods with this reason, and names the first of them as an example. Empty if no pod has
/// the reason.
fn common_line(report: &BypassReport, reason: Reason) -> String {
    let mut found: Vec<(&ReportedPod, &BypassPath)> = Vec::new();
    for pod in &report.pods {
        if let Some(path) = pod.paths.iter().find(|path| path.reason == reason) {
            found.push((pod, path));
        }
    }
    let Some((first_pod, first_path)) = found.first() else { return String::new() };
    let example = describe_example(first_pod, first_path);
    let pods = found.len();
    let label = reason.label();
    let text = reason.text();
    format!("{label} (pods: {pods}, see -o json{example}): {text}.\n")
}

/// Returns the part of a line that names a pod as an example. Empty if the path has no detail.
fn describe_example(pod: &ReportedPod, path: &BypassPath) -> String {
    if path.detail.is_empty() {
        return String::new();
    }
    let detail = one_line(&format!("{}/{}: {}", pod.namespace, pod.name, path.detail));
    format!(", for example {detail}")
}

fn path_row(pod: &str, path: &BypassPath) -> [String; COLUMNS.len()] {
    let cause = match path.cause {
        Some((kind, key)) => format!("{kind}: {key}"),
        None => String::new(),
    };
    let outcome = path.reason.outcome().label().to_owned();
    let reason = path.reason.label().to_owned();
    [pod.to_owned(), outcome, reason, cause, one_line(&path.detail)]
}

/// Pads each column to its longest cell, with three blanks in between, as kubectl does.
fn align(rows: &[[String; COLUMNS.len()]]) -> String {
    let mut widths = [0; COLUMNS.len()];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("   ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Renders every meshed pod, also those without a path.
pub fn json(report: &BypassReport) -> String {
    let all = json!({
        "outcome": report.outcome().label(),
        "pods": report.pods.iter().map(pod_json).collect::<Vec<_>>(),
        "everyPod": [Reason::Udp.label()],
        "podsWithLinkerdInit": report.with_init,
    });
    format!("{all:#}\n")
}

fn pod_json(pod: &ReportedPod) -> Value {
    let paths: Vec<Value> = pod.paths.iter().map(path_json).collect();
    json!({
        "namespace": pod.namespace,
        "name": pod.name,
        "outcome": pod.outcome().label(),
        "bypasses": paths,
    })
}

pub fn path_json(path: &BypassPath) -> Value {
    let cause = path.cause.map(|(kind, key)| json!({"kind": kind, "key": key}));
    json!({
        "reason": path.reason.label(),
        "outcome": path.reason.outcome().label(),
        "what": path.detail,
        "cause": cause,
    })
}
