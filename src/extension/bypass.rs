//! The report of `linkerd cni bypass`: the paths on which traffic of meshed pods bypasses the proxy.
//! Pods, namespaces and plugin entry are read as they are now.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::api::{Api, list};
use super::explain::{Lookup, existing_config};
use super::nodes::align;
use super::objects::{event_time, text};
use crate::cni::Error as CniError;
use crate::cni::args::is_name;
use crate::config::bypass::{Bypass, Reason};
use crate::kube::object_reader::namespace_path;
use crate::kube::types::Pod;
use crate::pod::Decision;
use crate::pod::skip::SkipReason;
use crate::quote::{one_line, quote};

/// Selects the repair controller's Events on running pods.
const EVENTS: &str = "fieldSelector=reason%3DLinkerdCNIRulesMissing";

/// Paths around the proxy, or why they are unknown.
type Paths = Result<Vec<Bypass>, CniError>;

/// The meshed pods of a namespace or the cluster.
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
) -> Result<Report, String> {
    if let Some(text) = namespace.filter(|text| !is_name(text)) {
        return Err(format!("{} is not the name of a namespace", quote(text)));
    }
    let config = existing_config(api, cni_namespace)?;
    let parent = namespace.map_or_else(|| "/api/v1".to_owned(), namespace_path);
    let unlisted = |what| move |why| format!("cannot list the {what}: {why}");
    let pods: Vec<Pod> = list(api, &format!("{parent}/pods"), "").map_err(unlisted("pods"))?;
    let events = list(api, &format!("{parent}/events"), EVENTS).map_err(unlisted("Events"))?;
    let damaged = damaged(events);
    let mut lookup = Lookup::new(api);
    let mut report = Report::default();
    for pod in pods.into_iter().filter(|pod| !pod.status.has_ended()) {
        let metadata = &pod.metadata;
        let names = [metadata.namespace.clone(), metadata.name.clone()];
        let note = damaged.get(&metadata.uid);
        match config.bypasses_of(pod, &mut lookup) {
            Ok(Decision::Skip(reason)) => {
                report.with_init += usize::from(reason == SkipReason::ProxyInit);
            }
            Ok(Decision::Redirect(mut found)) => {
                found.extend(note.map(|note| Bypass::new(Reason::RulesMissing, note)));
                report.pods.push((names, Ok(found)));
            }
            Err(error) => report.pods.push((names, Err(error))),
        }
    }
    Ok(report)
}

/// Returns the note of the newest Event on each pod, by UID, unless it is that of a repair.
fn damaged(mut events: Vec<Value>) -> BTreeMap<String, String> {
    events.sort_by(|a, b| event_time(a).cmp(event_time(b)));
    let newest: BTreeMap<&str, &Value> =
        events.iter().map(|event| (text(&event["involvedObject"]["uid"]), event)).collect();
    let unrepaired = newest.into_iter().filter(|(_, event)| event["type"] == "Warning");
    unrepaired.map(|(uid, event)| (uid.to_owned(), text(&event["message"]).to_owned())).collect()
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
                let (common, own): (Vec<_>, Vec<&Bypass>) =
                    found.iter().partition(|bypass| bypass.reason == Reason::RootContainer);
                roots += common.len();
                with_paths += usize::from(!own.is_empty());
                for Bypass { reason, detail, cause } in own {
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

/// Renders every meshed pod, also those without a path.
pub fn json(report: &Report) -> String {
    let path = |Bypass { reason, detail, cause }: &Bypass| {
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

    fn pod(name: &str, uid: &str, spec: Value) -> Value {
        let metadata = json!({"name": name, "namespace": "shop", "uid": uid, "annotations": {}});
        json!({"metadata": metadata, "spec": spec, "status": {"podIPs": [{"ip": "10.1.0.7"}]}})
    }

    /// A spec of which only this container is not closed.
    fn spec(context: Value) -> Value {
        let proxy = json!({"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}});
        json!({"containers": [{"name": "app", "securityContext": context}, proxy]})
    }

    fn closed() -> Value {
        spec(json!({"runAsUser": 1000}))
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::healthy();
        let mut skipped = pod("skips", "1", spec(json!({"runAsUser": 2102})));
        skipped["metadata"]["annotations"]["config.linkerd.io/skip-outbound-ports"] =
            json!("25,80-90");
        let mut invalid = pod("invalid", "2", closed());
        invalid["metadata"]["annotations"]["config.linkerd.io/skip-subnets"] = json!("x");
        let mut with_init = pod("with-init", "3", closed());
        with_init["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
        let mut finished = pod("finished", "4", spec(json!({"privileged": true})));
        finished["status"]["phase"] = json!("Succeeded");
        let unmeshed =
            json!({"containers": [{"name": "app", "securityContext": {"privileged": true}}]});
        let pods = [
            skipped,
            invalid,
            with_init,
            finished,
            pod("unmeshed", "5", unmeshed),
            pod("closed", "6", closed()),
            pod("damaged", "7", closed()),
            pod("repaired", "8", closed()),
            pod("root", "9", spec(json!({}))),
        ];
        let event = |uid: &str, kind: &str, time: &str| {
            json!({"type": kind, "reason": "LinkerdCNIRulesMissing", "eventTime": time,
                "message": "rules were\nmissing", "involvedObject": {"kind": "Pod", "uid": uid}})
        };
        let events = [
            event("8", "Normal", "2027-01-15T08:00:01Z"),
            event("8", "Warning", "2027-01-15T08:00:00Z"),
            event("7", "Normal", "2027-01-15T08:00:00Z"),
            event("7", "Warning", "2027-01-15T08:00:01Z"),
        ];
        let of_namespace = json!({"config.linkerd.io/skip-inbound-subnets": "10.0.0.0/8"});
        let namespace = json!({"metadata": {"name": "shop", "annotations": of_namespace}});
        for parent in ["/api/v1", "/api/v1/namespaces/shop"] {
            cluster.put(&format!("{parent}/pods"), json!({"items": pods}));
            cluster.put(&format!("{parent}/events"), json!({"items": events}));
        }
        cluster.put("/api/v1/namespaces/shop", namespace);
        cluster
    }

    #[test]
    fn the_table_has_a_row_for_each_path_of_each_meshed_pod() {
        insta::assert_snapshot!(table(&fetch(&cluster(), "linkerd-cni", None).unwrap()), @r#"
        POD             REASON                 CAUSE                                               WHAT
        shop/skips      proxy-user                                                                 app
        shop/skips      skip-outbound-ports    pod: config.linkerd.io/skip-outbound-ports          25, 80-90
        shop/skips      skip-inbound-subnets   namespace: config.linkerd.io/skip-inbound-subnets   10.0.0.0/8
        shop/invalid    unknown                                                                    annotation config.linkerd.io/skip-subnets: "x": "x" is not a subnet: expected a CIDR such as 10.0.0.0/8 or fd00::/8
        shop/closed     skip-inbound-subnets   namespace: config.linkerd.io/skip-inbound-subnets   10.0.0.0/8
        shop/damaged    skip-inbound-subnets   namespace: config.linkerd.io/skip-inbound-subnets   10.0.0.0/8
        shop/damaged    rules-missing                                                              rules were missing
        shop/repaired   skip-inbound-subnets   namespace: config.linkerd.io/skip-inbound-subnets   10.0.0.0/8
        shop/root       skip-inbound-subnets   namespace: config.linkerd.io/skip-inbound-subnets   10.0.0.0/8

        5 of 6 meshed pods have a path around the proxy, besides those that follow.
        root-container (pods: 1, see -o json): Outbound connections of containers that may run as root and do not drop all capabilities: they can become the proxy's user, or send packets past the rules under a runtime that gives them `NET_RAW`, such as containerd.
        udp: UDP and other protocols of every pod: only TCP is redirected.
        Not examined: pods with linkerd-init (1).
        "#);
    }

    #[test]
    fn the_json_names_every_meshed_pod_with_its_reasons_and_their_causes() {
        let mut cluster = cluster();
        cluster.put("/api/v1/namespaces/shop", json!({"metadata": {"name": "shop"}}));
        let text = json(&fetch(&cluster, "linkerd-cni", Some("shop")).unwrap());
        let report: Value = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = report["pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["skips", "invalid", "closed", "damaged", "repaired", "root"]);
        assert_eq!(
            report["pods"][0]["bypasses"],
            json!([
                {"reason": "proxy-user", "what": "app", "cause": null},
                {"reason": "skip-outbound-ports", "what": "25, 80-90",
                    "cause": {"kind": "pod", "key": "config.linkerd.io/skip-outbound-ports"}},
            ])
        );
        let error = report["pods"][1]["error"].as_str().unwrap();
        assert!(error.contains("\"x\" is not a subnet"), "{error}");
        assert_eq!(report["pods"][2]["bypasses"], json!([]));
        assert_eq!(report["pods"][5]["bypasses"][0]["reason"], "root-container");
        assert_eq!(report["everyPod"], json!(["udp"]));
        assert_eq!(report["podsWithLinkerdInit"], 1);
    }

    #[test]
    fn pods_or_a_plugin_entry_that_cannot_be_read_are_an_error() {
        let error =
            |cluster: &Cluster, namespace| fetch(cluster, "linkerd-cni", namespace).unwrap_err();
        let mut cluster = cluster();
        assert_eq!(error(&cluster, Some("a/b")), "\"a/b\" is not the name of a namespace");
        cluster.put("/api/v1/pods", json!(403));
        assert!(error(&cluster, None).starts_with("cannot list the pods: "));
        cluster.put("/api/v1/namespaces/shop/events", json!(403));
        assert!(error(&cluster, Some("shop")).starts_with("cannot list the Events: "));
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
