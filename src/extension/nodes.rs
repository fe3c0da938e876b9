//! The table of `linkerd cni nodes`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::agents::{Agent, token_left};
use super::facts::{Facts, readable};
use super::report::Problem;
use crate::agent::status_body::PluginCounts;
use crate::quote::{cut, one_line};

const HEADINGS: [&str; 8] =
    ["NODE", "READY", "VERSION", "NETWORK CONFIG", "TOKEN", "BACKEND", "REDIRECTED", "FAILED"];
const UNKNOWN: &str = "-";

/// Renders one row for each node, and below the table why nodes are not ready.
pub fn table(facts: &Facts) -> Result<String, Problem> {
    let nodes = readable(&facts.nodes, "the nodes")?;
    let agents = readable(&facts.agents, "the agents' pods")?;
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    let mut reasons = Vec::new();
    for node in nodes {
        let name = &node.metadata.name;
        let on_node: Vec<&Agent> = agents.iter().filter(|agent| agent.node() == name).collect();
        if on_node.is_empty() {
            let mut cells = HEADINGS.map(|_| UNKNOWN.to_owned());
            (cells[0], cells[1]) = (one_line(name), "no agent".to_owned());
            rows.push(cells);
        }
        for agent in on_node {
            let why = agent.not_ready(&facts.events);
            rows.push(row(name, agent, why.is_none()).map(|cell| one_line(&cell)));
            let note = agent.body().and_then(|body| body.note.as_ref());
            reasons.extend(why.map(|why| one_line(&format!("{name} is not ready: {why}")) + "\n"));
            reasons.extend(note.map(|note| one_line(&format!("{name}: {note}")) + "\n"));
        }
    }
    let gap = if reasons.is_empty() { "" } else { "\n" };
    Ok(format!("{}{gap}{}", align(&rows), reasons.concat()))
}

fn row(node: &str, agent: &Agent, is_ready: bool) -> [String; 8] {
    let body = agent.body();
    let unknown = || UNKNOWN.to_owned();
    let sum = |counts: fn(&PluginCounts) -> &BTreeMap<String, u64>| {
        let counts = body.map(|body| counts(&body.calls).values().copied());
        counts.map_or_else(unknown, |counts| counts.fold(0, u64::saturating_add).to_string())
    };
    let backends: Vec<String> =
        body.iter().flat_map(|body| body.calls.redirects.keys()).map(|name| cut(name)).collect();
    [
        node.to_owned(),
        if is_ready { "yes" } else { "no" }.to_owned(),
        body.map_or_else(unknown, |body| cut(&body.version)),
        body.and_then(|body| body.conflist.as_deref()).map_or_else(unknown, cut),
        body.and_then(token_left).map_or_else(unknown, token_text),
        if backends.is_empty() { unknown() } else { backends.join(",") },
        sum(|calls| &calls.redirects),
        sum(|calls| &calls.failures),
    ]
}

/// Returns the time that is left in its largest unit, such as `23h left`.
fn token_text(left: Duration) -> String {
    let minutes = left.as_secs() / 60;
    match minutes {
        _ if left.is_zero() => "expired".to_owned(),
        0..120 => format!("{minutes}m left"),
        120..2880 => format!("{}h left", minutes / 60),
        _ => format!("{}d left", minutes / 1440),
    }
}

/// Pads each column to its longest cell, with three blanks in between, as kubectl does.
pub fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("   ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::extension::fake::{AGENTS, Cluster, STATUS_1};

    #[test]
    fn the_table_has_a_row_for_each_node_and_the_reasons_below() {
        let mut cluster = Cluster::healthy();
        insta::assert_snapshot!("healthy", table(&cluster.facts()).unwrap());
        cluster.set(STATUS_1, "/notReady", json!("kubeconfig: waiting for a token"));
        cluster.set(STATUS_1, "/conflist", Value::Null);
        cluster.0.get_mut(AGENTS).unwrap()["items"].as_array_mut().unwrap().pop();
        insta::assert_snapshot!("faults", table(&cluster.facts()).unwrap());
    }

    #[test]
    fn nodes_that_cannot_be_read_are_an_error() {
        let mut cluster = Cluster::healthy();
        cluster.put("/api/v1/nodes", json!(403));
        let error = table(&cluster.facts()).unwrap_err().text;
        assert!(error.starts_with("cannot read the nodes: "), "{error}");
    }
}
