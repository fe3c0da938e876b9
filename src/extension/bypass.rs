//! The report of `linkerd cni bypass`: the paths on which traffic of meshed pods bypasses the proxy.
//! Pods, namespaces and plugin entry are read as they are now.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::explain::Lookup;
use super::facts::{self, readable};
use super::objects::{event_time, text};
use super::report::{Problem, Severity};
use super::requests::{Api, for_each_item, get_list};
use crate::cni::Error as CniError;
use crate::cni::args::is_name;
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::skip::SkipReason;
use crate::quote::{one_line, quote};
use crate::verdict::bypass_paths::{BypassPath, Reason, read_paths};

/// Selects the repair controller's Events on running pods.
const EVENTS: &str = "fieldSelector=reason%3DLinkerdCNIRulesMissing";

type Paths = Result<Vec<BypassPath>, CniError>;

#[derive(Debug, Default)]
pub struct Report {
    /// Namespace and name of each pod, and its paths.
    pods: Vec<([String; 2], Paths)>,
    /// Number of pods whose rules `linkerd-init` installs.
    with_init: usize,
}

/// Reads the pods of `namespace`, or of all, and finds their paths around the proxy.
/// Fails if an object cannot be read, with its name and the remedy.
pub fn fetch(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: Option<&str>,
) -> Result<Report, Problem> {
    if let Some(text) = namespace.filter(|text| !is_name(text)) {
        return Severity::Error.because(format!("{} is not the name of a namespace", quote(text)));
    }
    let config = facts::config(api, cni_namespace)?;
    let parent = namespace.map_or_else(|| "/api/v1".to_owned(), namespace_path);
    let events = get_list(api, &format!("{parent}/events"), EVENTS);
    let damaged = damaged(readable(&events, "the Events")?);
    let (mut lookup, mut report) = (Lookup::new(api), Report::default());
    let add = |pod: Pod| {
        if pod.status.has_ended() {
            return;
        }
        let names = [pod.metadata.namespace.clone(), pod.metadata.name.clone()];
        let note = damaged.get(pod.metadata.uid.as_str());
        match read_paths(&config, pod, &mut lookup) {
            Ok(Decision::Skip(reason)) => {
                report.with_init += usize::from(reason == SkipReason::ProxyInit);
            }
            Ok(Decision::Redirect(mut found)) => {
                found.extend(note.map(|note| BypassPath::new(Reason::RulesMissing, note)));
                report.pods.push((names, Ok(found)));
            }
            Err(error) => report.pods.push((names, Err(error))),
        }
    };
    readable(&for_each_item(api, &format!("{parent}/pods"), "", add), "the pods")?;
    Ok(report)
}

/// Returns the note of the newest Event on each pod, by UID, unless it is that of a repair.
fn damaged(events: &[Value]) -> BTreeMap<&str, &str> {
    let mut events: Vec<&Value> = events.iter().collect();
    events.sort_by_key(|event| event_time(event));
    let newest = events.into_iter().map(|event| (text(&event["involvedObject"]["uid"]), event));
    let newest: BTreeMap<&str, &Value> = newest.collect();
    let unrepaired = newest.into_iter().filter(|(_, event)| event["type"] == "Warning");
    unrepaired.map(|(uid, event)| (uid, text(&event["message"]))).collect()
}

/// Renders a row for each path, and below the table what holds for many pods.
pub fn table(report: &Report) -> String {
    let mut rows = vec![["POD", "REASON", "CAUSE", "WHAT"].map(str::to_owned)];
    let (mut with_paths, mut roots) = (0, 0);
    for (names, found) in &report.pods {
        let name = one_line(&names.join("/"));
        let mut row = |reason: &str, cause: String, what: &str| {
            rows.push([name.clone(), reason.to_owned(), cause, one_line(what)]);
        };
        match found {
            Err(error) => row("unknown", String::new(), &error.msg),
            Ok(found) => {
                let (common, own): (Vec<_>, Vec<&BypassPath>) =
                    found.iter().partition(|bypass| bypass.reason == Reason::RootContainer);
                roots += common.len();
                with_paths += usize::from(!own.is_empty());
                for BypassPath { reason, detail, cause } in own {
                    let cause = cause.map(|(kind, key)| format!("{kind}: {key}"));
                    row(reason.label(), cause.unwrap_or_default(), detail);
                }
            }
        }
    }
    let mut text = if rows.len() > 1 { align(&rows) + "\n" } else { String::new() };
    let [root, udp] = [Reason::RootContainer, Reason::Udp];
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{with_paths} of {} meshed pods have a path around the proxy, besides those that follow.\n\
         {} (pods: {roots}, see -o json): {}.\n{}: {}.\n\
         Not examined: pods with linkerd-init ({}).",
        report.pods.len(),
        root.label(),
        root.text(),
        udp.label(),
        udp.text(),
        report.with_init,
    );
    text
}

/// Pads each column to its longest cell, with three blanks in between, as kubectl does.
fn align(rows: &[[String; 4]]) -> String {
    let mut widths = [0; 4];
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
pub fn json(report: &Report) -> String {
    let path = |BypassPath { reason, detail, cause }: &BypassPath| {
        let cause = cause.map(|(kind, key)| json!({"kind": kind, "key": key}));
        json!({"reason": reason.label(), "what": detail, "cause": cause})
    };
    let pods = report.pods.iter().map(|([namespace, name], found)| match found {
        Ok(found) => {
            let paths: Vec<Value> = found.iter().map(path).collect();
            json!({"namespace": namespace, "name": name, "bypasses": paths})
        }
        Err(error) => json!({"namespace": namespace, "name": name, "error": error.msg}),
    });
    let (pods, every) = (pods.collect::<Vec<_>>(), [Reason::Udp.label()]);
    let all = json!({"pods": pods, "everyPod": every, "podsWithLinkerdInit": report.with_init});
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::fake::{CONFIG, Cluster, entry};

    fn cluster() -> Cluster {
        Cluster::healthy().with(include_str!("bypass.yaml"))
    }

    #[test]
    fn table_and_json_name_each_meshed_pod_with_its_paths_and_their_causes() {
        let found = |namespace| fetch(&cluster(), "linkerd-cni", namespace).unwrap();
        insta::assert_snapshot!(table(&found(None)) + "\n" + &json(&found(Some("shop"))));
    }

    #[test]
    fn pods_or_a_plugin_entry_that_cannot_be_read_are_an_error() {
        let error = |cluster: &Cluster, namespace| {
            fetch(cluster, "linkerd-cni", namespace).unwrap_err().text
        };
        let mut cluster = cluster();
        assert_eq!(error(&cluster, Some("a/b")), "\"a/b\" is not the name of a namespace");
        cluster.put("/api/v1/pods", json!(403));
        assert!(error(&cluster, None).starts_with("cannot read the pods: "));
        cluster.put("/api/v1/namespaces/shop/events", json!(403));
        assert!(error(&cluster, Some("shop")).starts_with("cannot read the Events: "));
        let mut invalid = entry();
        invalid["linkerd"]["proxy-uid"] = json!("x");
        cluster.put(CONFIG, json!({"data": {"cni_network_config": invalid.to_string()}}));
        assert!(error(&cluster, None).contains("linkerd-cni-config: "));
    }

    #[test]
    fn the_page_has_each_reason_with_its_meaning() {
        let page = include_str!("../../docs/cli.md");
        let rows: String = Reason::ALL
            .iter()
            .map(|reason| format!("| `{}` | {} |\n", reason.label(), reason.text()))
            .collect();
        assert!(page.contains(&rows), "docs/cli.md lacks this table of reasons:\n{rows}");
    }
}
