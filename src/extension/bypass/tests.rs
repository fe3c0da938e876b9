use serde_json::{Value, json};

use super::*;
use crate::extension::fake::{AGENTS, CONFIG, Cluster, DAEMONSET, entry};

const SHOP: &str = "/api/v1/namespaces/shop";
const PODS: &str = "/api/v1/namespaces/shop/pods";
/// The mode of the first node's repair controller, in [`AGENTS`].
const MODE: &str = "/items/0/spec/containers/1/env/0/value";

/// A cluster that redirects IPv6, with pods of each kind.
fn cluster() -> Cluster {
    let mut cluster = Cluster::healthy().with(include_str!("tests/cluster.yaml"));
    let mut entry = entry();
    entry["linkerd"]["ipv6"] = json!(true);
    cluster.put(CONFIG, json!({"data": {"cni_network_config": entry.to_string()}}));
    cluster
}

fn report(cluster: &Cluster) -> BypassReport {
    fetch(cluster, "linkerd-cni", Some("shop")).unwrap()
}

/// Returns the outcome of the pod `name`, and the reasons of the pod's paths.
fn outcome_and_reasons(report: &BypassReport, name: &str) -> (Outcome, Vec<&'static str>) {
    let pod = report.pods.iter().find(|pod| pod.name == name).unwrap();
    (pod.outcome(), pod.paths.iter().map(|path| path.reason.label()).collect())
}

#[test]
fn table_and_json_name_each_meshed_pod_with_its_paths_and_their_causes() {
    let found = |namespace| fetch(&cluster(), "linkerd-cni", namespace).unwrap();
    insta::assert_snapshot!(table(&found(None)) + "\n" + &json(&found(Some("shop"))));
}

/// A report is right only if each pod is right, wrong if a pod is wrong, and otherwise unknown.
#[test]
fn report_has_the_outcome_of_the_worst_pod() {
    let mut cluster = cluster();
    assert_eq!(report(&cluster).outcome(), Outcome::Wrong);
    let pods: Value = testkit::chart::yaml(include_str!("tests/cluster.yaml"));
    let named = |name: &str| {
        let items = pods["/api/v1/pods"]["items"].as_array().unwrap();
        items.iter().find(|pod| pod["metadata"]["name"] == name).unwrap().clone()
    };
    cluster.put(SHOP, json!({"metadata": {"name": "shop"}}));
    for (items, outcome) in [
        (vec![named("closed"), named("unmeshed")], Outcome::Right),
        (vec![named("closed"), named("image-user")], Outcome::Unknown),
        (vec![named("closed"), named("with-init")], Outcome::Unknown),
        (vec![named("image-user"), named("skips")], Outcome::Wrong),
    ] {
        for path in ["/api/v1/pods", "/api/v1/namespaces/shop/pods"] {
            cluster.put(path, json!({"items": items}));
        }
        assert_eq!(report(&cluster).outcome(), outcome, "{items:?}");
    }
}

/// An object that the user may not read may decide about paths, so the paths are unknown.
#[test]
fn path_is_unknown_if_an_object_cannot_be_read() {
    for (what, paths, reason) in [
        ("the namespace", &[SHOP][..], "unknown"),
        ("the Events of the namespace", &["/api/v1/namespaces/shop/events"], "rules-unknown"),
        ("the Events on nodes", &["/api/v1/namespaces/default/events"], "rules-unknown"),
        ("the agents' pods", &[AGENTS], "rules-unknown"),
        ("the DaemonSet", &[DAEMONSET], "unknown"),
    ] {
        let mut cluster = cluster();
        for path in paths {
            cluster.put(path, json!(403));
        }
        let report = report(&cluster);
        let (outcome, reasons) = outcome_and_reasons(&report, "closed");
        assert!(reasons.contains(&reason), "{what}: {reasons:?}");
        assert_ne!(outcome, Outcome::Right, "{what}");
    }
}

#[test]
fn capabilities_are_reported_if_the_namespace_cannot_be_read() {
    let mut cluster = cluster();
    cluster.put(SHOP, json!(403));
    let (outcome, reasons) = outcome_and_reasons(&report(&cluster), "capable");
    assert_eq!(reasons, ["set-user-id", "net-admin", "unknown"]);
    assert_eq!(outcome, Outcome::Wrong);
}

#[test]
fn fetch_fails_if_pods_or_plugin_entry_cannot_be_read() {
    let error =
        |cluster: &Cluster, namespace| fetch(cluster, "linkerd-cni", namespace).unwrap_err().text;
    let mut cluster = cluster();
    assert_eq!(error(&cluster, Some("a/b")), "\"a/b\" is not the name of a namespace");
    cluster.put("/api/v1/pods", json!(403));
    assert!(error(&cluster, None).starts_with("cannot read the pods: "));
    let mut invalid = entry();
    invalid["linkerd"]["proxy-uid"] = json!("x");
    cluster.put(CONFIG, json!({"data": {"cni_network_config": invalid.to_string()}}));
    assert!(error(&cluster, None).contains("linkerd-cni-config: "));
}

/// In mode `delete`, an audit that finds most pods of a node damaged evicts none of them. On a node
/// without repair controller, or with one that never audits, no rules are compared at all.
#[test]
fn rules_are_unknown_without_an_active_repair_controller() {
    let suspended = json!({"items": [{
        "type": "Warning",
        "reason": "LinkerdCNIRepairsSuspended",
        "reportingComponent": "linkerd-cni-repair-controller",
        "eventTime": "2027-01-15T08:00:00Z",
        "message": "3 of 4 audited pods have missing or changed redirect rules",
        "involvedObject": {"kind": "Node", "name": "node-1", "uid": "node-1"},
    }]});
    let other_node = json!(suspended.to_string().replace("node-1", "node-9"));
    let no_controller = json!([{"name": "install-cni", "ready": true}]);
    let crashing = json!([{"name": "repair-controller", "ready": false}]);
    for (what, path, pointer, value, is_unknown) in [
        ("a suspension", "/api/v1/namespaces/default/events", "", suspended, true),
        ("of another node", "/api/v1/namespaces/default/events", "", other_node, false),
        ("no controller", AGENTS, "/items/0/status/containerStatuses", no_controller, true),
        ("a crashing one", AGENTS, "/items/0/status/containerStatuses", crashing, true),
        ("one that never audits", AGENTS, MODE, json!("report"), true),
        ("no agent", AGENTS, "/items/0/spec/nodeName", json!("node-9"), true),
    ] {
        let mut cluster = cluster();
        if pointer.is_empty() {
            cluster.put(path, value);
        } else {
            cluster.set(path, pointer, value);
        }
        let (_, reasons) = outcome_and_reasons(&report(&cluster), "closed");
        assert_eq!(reasons.contains(&"rules-unknown"), is_unknown, "{what}: {reasons:?}");
        let (_, reasons) = outcome_and_reasons(&report(&cluster), "damaged");
        assert!(reasons.contains(&"rules-missing"), "{what}: {reasons:?}");
    }
}

/// Without the node's copy, the plugin skips pods without an annotation of a proxy. Audits after the
/// start have ended when such a pod starts.
#[test]
fn rules_of_a_pod_that_the_plugin_may_have_skipped_are_unknown() {
    let unwatched = json!([{"name": "LINKERD_CNI_WATCH_PODS", "value": "false"}]);
    let interval = json!([{"name": "LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS", "value": "60"}]);
    let annotation = json!({"linkerd.io/proxy-version": "edge-26.1.1"});
    let (agent, controller) = ("/items/0/spec/containers/0/env", "/items/0/spec/containers/1/env");
    for (name, watches, changes, is_unknown) in [
        ("with the copy", true, vec![], false),
        ("without annotation", false, vec![], true),
        (
            "with annotation",
            false,
            vec![(PODS, "/items/5/metadata/annotations", annotation)],
            false,
        ),
        ("with periodic audits", false, vec![(AGENTS, controller, interval)], false),
    ] {
        let mut cluster = cluster();
        if !watches {
            cluster.set(AGENTS, agent, unwatched.clone());
        }
        for (path, pointer, value) in changes {
            cluster.set(path, pointer, value);
        }
        let (_, reasons) = outcome_and_reasons(&report(&cluster), "closed");
        assert_eq!(reasons.contains(&"rules-unknown"), is_unknown, "{name}: {reasons:?}");
    }
}

#[test]
fn rules_are_missing_if_the_validator_of_the_pod_failed() {
    let (outcome, reasons) = outcome_and_reasons(&report(&cluster()), "stranded");
    assert_eq!(outcome, Outcome::Wrong);
    assert!(reasons.contains(&"rules-missing"), "{reasons:?}");
}

/// With `chained: false` Multus calls the plugin only for pods whose annotation names the plugin.
#[test]
fn pod_without_the_multus_annotation_is_reported_as_not_redirected() {
    let mut cluster = cluster();
    let env = json!([{"name": "LINKERD_CNI_CHAINED", "value": "false"}]);
    cluster.set(DAEMONSET, "/spec/template/spec/containers/0/env", env);
    let report = report(&cluster);
    assert_eq!(outcome_and_reasons(&report, "closed").1, ["not-redirected"]);
    let (_, reasons) = outcome_and_reasons(&report, "attached");
    assert!(!reasons.contains(&"not-redirected"), "{reasons:?}");
}

#[test]
fn cli_page_lists_each_reason_with_meaning_and_remedy() {
    let page = include_str!("../../../docs/cli.md");
    let (_, table) =
        page.split_once("| reason | what bypasses the proxy | close it by |\n").unwrap();
    let mut rows = table.lines().skip(1);
    for reason in Reason::ALL {
        let begin = format!("| `{}` | {} | ", reason.label(), reason.text());
        let row = rows.next().unwrap_or_default();
        let remedy = row.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(" |"));
        let has_remedy = remedy.is_some_and(|remedy| !remedy.trim().is_empty());
        assert!(has_remedy, "docs/cli.md: `{row}` is not `{begin}REMEDY |`");
    }
    assert_eq!(rows.next(), Some(""), "docs/cli.md has a reason that the command does not report");
}
