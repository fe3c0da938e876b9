//! The report of `linkerd cni bypass`: the paths on which traffic of meshed pods bypasses the
//! proxy. Pods, namespaces and plugin entry are read as they are now.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::examined_pod::{CachedLookup, ExaminedPod, examine};
use super::facts::{self, readable};
use super::objects::{event_time, text};
use super::report::{Problem, Severity};
use super::requests::{Api, for_each_item, get_list};
use crate::cni::Error as CniError;
use crate::cni::args::is_name;
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::skip::SkipReason;
use crate::quote::{one_line, quote};
use crate::verdict::Verdict;
use crate::verdict::bypass_paths::{BypassPath, Reason};

/// Selects the repair controller's Events on running pods.
const EVENTS: &str = "fieldSelector=reason%3DLinkerdCNIRulesMissing";

#[derive(Debug, Default)]
pub struct BypassReport {
    /// The meshed pods.
    pods: Vec<ReportedPod>,
    /// Number of pods whose rules `linkerd-init` installs.
    with_init: usize,
}

#[derive(Debug)]
struct ReportedPod {
    namespace: String,
    name: String,
    /// The error: why no facts about the pod are known.
    paths: Result<Vec<BypassPath>, CniError>,
}

/// Reads the pods of `namespace`, or of all, and finds their paths around the proxy.
/// Fails if an object cannot be read, with its name and the remedy.
pub fn fetch(
    api: &dyn Api,
    cni_namespace: &str,
    namespace: Option<&str>,
) -> Result<BypassReport, Problem> {
    if let Some(text) = namespace
        && !is_name(text)
    {
        return Severity::Error.because(format!("{} is not the name of a namespace", quote(text)));
    }
    let config = facts::read_config(api, cni_namespace)?;
    let parent = match namespace {
        Some(namespace) => namespace_path(namespace),
        None => "/api/v1".to_owned(),
    };
    let events = get_list(api, &format!("{parent}/events"), EVENTS);
    let damaged = damaged_pods(readable(&events, "the Events")?);
    let mut lookup = CachedLookup::new(api);
    let mut report = BypassReport::default();
    let pods = for_each_item(api, &format!("{parent}/pods"), "", |pod: Pod| {
        if !pod.status.has_ended() {
            let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            let damage = damaged.get(pod.metadata.uid.as_str()).copied();
            let examined = examine(&config, pod, &mut lookup);
            match examined.unmeshed {
                None => {
                    let paths = reported_paths(examined, damage);
                    report.pods.push(ReportedPod { namespace, name, paths });
                }
                Some(SkipReason::ProxyInit) => report.with_init += 1,
                Some(_) => {}
            }
        }
    });
    readable(&pods, "the pods")?;
    Ok(report)
}

/// Returns the paths on which connections of a meshed pod bypass the proxy, or why the paths are
/// unknown. `damage` is the repair controller's report that rules are missing.
fn reported_paths(pod: ExaminedPod, damage: Option<&str>) -> Result<Vec<BypassPath>, CniError> {
    if let Verdict::Failed(error) = pod.verdict
        && pod.paths.is_empty()
    {
        return Err(error);
    }
    let mut paths = pod.paths;
    if let Some(note) = damage {
        paths.push(BypassPath::new(Reason::RulesMissing, note));
    }
    Ok(paths)
}

/// Returns the note of the newest Event on each pod, by UID, unless that Event reports a repair.
fn damaged_pods(events: &[Value]) -> BTreeMap<&str, &str> {
    let mut oldest_first: Vec<&Value> = events.iter().collect();
    oldest_first.sort_by_key(|event| event_time(event));
    let mut damaged = BTreeMap::new();
    for event in oldest_first {
        let uid = text(&event["involvedObject"]["uid"]);
        if event["type"] == "Warning" {
            damaged.insert(uid, text(&event["message"]));
        } else {
            damaged.remove(uid);
        }
    }
    damaged
}

/// Renders a row for each path, and below the table what holds for many pods.
pub fn table(report: &BypassReport) -> String {
    let mut rows = vec![["POD", "REASON", "CAUSE", "WHAT"].map(str::to_owned)];
    let mut pods_with_paths = 0;
    let mut pods_with_root = 0;
    for ReportedPod { namespace, name, paths } in &report.pods {
        let pod = one_line(&format!("{namespace}/{name}"));
        let paths = match paths {
            Ok(paths) => paths,
            Err(error) => {
                let unknown = Reason::Unknown.label().to_owned();
                rows.push([pod, unknown, String::new(), one_line(&error.msg)]);
                continue;
            }
        };
        let mut has_path = false;
        for path in paths {
            if path.reason == Reason::RootContainer {
                pods_with_root += 1;
            } else {
                has_path |= path.reason != Reason::Unknown;
                rows.push(path_row(&pod, path));
            }
        }
        pods_with_paths += usize::from(has_path);
    }
    let rows = if rows.len() > 1 { align(&rows) + "\n" } else { String::new() };
    let [root, udp] = [Reason::RootContainer, Reason::Udp];
    format!(
        "{rows}{pods_with_paths} of {} meshed pods have a path around the proxy, besides those \
         that follow.\n\
         {} (pods: {pods_with_root}, see -o json): {}.\n{}: {}.\n\
         Not examined: pods with linkerd-init ({}).\n",
        report.pods.len(),
        root.label(),
        root.text(),
        udp.label(),
        udp.text(),
        report.with_init,
    )
}

fn path_row(pod: &str, path: &BypassPath) -> [String; 4] {
    let cause = match path.cause {
        Some((kind, key)) => format!("{kind}: {key}"),
        None => String::new(),
    };
    [pod.to_owned(), path.reason.label().to_owned(), cause, one_line(&path.detail)]
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
pub fn json(report: &BypassReport) -> String {
    let mut pods = Vec::new();
    for ReportedPod { namespace, name, paths } in &report.pods {
        pods.push(match paths {
            Ok(paths) => {
                let paths: Vec<Value> = paths.iter().map(path_json).collect();
                json!({"namespace": namespace, "name": name, "bypasses": paths})
            }
            Err(error) => json!({"namespace": namespace, "name": name, "error": error.msg}),
        });
    }
    let every_pod = [Reason::Udp.label()];
    let all = json!({"pods": pods, "everyPod": every_pod, "podsWithLinkerdInit": report.with_init});
    format!("{all:#}\n")
}

fn path_json(path: &BypassPath) -> Value {
    let cause = path.cause.map(|(kind, key)| json!({"kind": kind, "key": key}));
    json!({"reason": path.reason.label(), "what": path.detail, "cause": cause})
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
