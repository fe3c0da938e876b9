use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::extension::fake::{
    AGENTS, Cluster, DAEMONSET, EVENTS, NAMESPACE, STATUS_1, distant_deadline,
};
use crate::extension::report::{Format, Severity, is_pending, outcome, render};
use crate::verdict::outcome::Outcome;

/// A change of the healthy cluster. In YAML and JSON, a change is the list of its three fields.
#[derive(Deserialize)]
struct Change {
    path: String,
    /// An empty JSON pointer replaces the whole response, and `null` removes it. The index `-`
    /// adds to an array.
    pointer: String,
    value: Value,
}

impl Change {
    fn apply(self, cluster: &mut Cluster) {
        let Change { path, pointer, value } = self;
        if let Some(array) = pointer.strip_suffix("/-") {
            let array = cluster.0.get_mut(&path).unwrap().pointer_mut(array).unwrap();
            array.as_array_mut().unwrap().push(value);
        } else if !pointer.is_empty() {
            cluster.set(&path, &pointer, value);
        } else if value.is_null() {
            cluster.0.remove(&path);
        } else {
            cluster.put(&path, value);
        }
    }
}

/// The healthy cluster with a list of changes.
fn with(changes: &Value) -> Cluster {
    let mut cluster = Cluster::healthy();
    for change in Vec::<Change>::deserialize(changes).unwrap() {
        change.apply(&mut cluster);
    }
    cluster
}

fn checked(cluster: &Cluster) -> Vec<Check> {
    check_installed_chart(cluster, "linkerd-cni", "linkerd", distant_deadline())
}

/// Renders the reports of clusters with these changes after those of `base`, each below its name
/// and outcome, and whether the checks are retried. Only rows called "no fault" pass every check.
fn rendered(table: &str, base: &Value, run: fn(&Cluster) -> Vec<Check>) -> (String, Vec<Check>) {
    let (mut text, mut all) = (String::new(), Vec::new());
    for (name, changes) in testkit::table::rows::<Vec<Value>>(table) {
        let checks = run(&with(&[base.as_array().unwrap().as_slice(), &changes].concat().into()));
        let passes_all = checks.iter().all(|check| check.result.is_ok());
        assert_eq!(passes_all, name.starts_with("no fault") || changes.is_empty(), "{name}");
        let format = if changes.is_empty() { Format::Table } else { Format::Short };
        let outcome = outcome(&checks).label();
        let retried = if is_pending(&checks) { ", retried" } else { "" };
        let report = render(&checks, format, false);
        let _ = writeln!(text, "## {name} ({outcome}{retried})\n{report}");
        all.extend(checks);
    }
    (text, all)
}

/// Reports of all faults, and the checks in them.
fn reports() -> (String, Vec<Check>) {
    let faults = include_str!("tests/faults.yaml");
    rendered(faults, &json!([]), checked)
}

#[test]
fn a_healthy_cluster_passes_every_check() {
    let checks = checked(&Cluster::healthy());
    assert_eq!(outcome(&checks), Outcome::Right);
    insta::assert_snapshot!(render(&checks, Format::Table, false));
}

#[test]
fn each_fault_is_reported_with_object_cause_and_remedy() {
    insta::assert_snapshot!(reports().0);
}

#[test]
fn missing_chart_fails_one_check_that_names_the_install_command() {
    let mut cluster = Cluster::healthy();
    cluster.0.retain(|path, _| !path.contains("linkerd-cni"));
    cluster.set("/apis/apps/v1/daemonsets", "/items", json!([]));
    let checks = checked(&cluster);
    assert_eq!(checks.len(), 1, "{checks:?}");
    let text = render(&checks, Format::Short, false);
    assert!(text.contains("scripts/install-cni | kubectl apply -f -"), "{text}");
    assert_eq!(outcome(&checks), Outcome::Wrong);
}

#[test]
fn missing_daemonset_fails_the_check_only_if_the_control_plane_uses_cni() {
    let list = "/apis/apps/v1/daemonsets";
    let elsewhere = json!([{"metadata": {"name": "linkerd-cni", "namespace": "other",
        "labels": {"k8s-app": "linkerd-cni"}}}]);
    for (name, values, daemonsets, passes) in [
        ("the control plane does not use it", "cniEnabled: false\n", json!([]), true),
        ("the control plane uses it", "a: b\ncniEnabled: true\n", json!([]), false),
        ("it is in another namespace", "cniEnabled: false\n", elsewhere, false),
    ] {
        let mut cluster = with(&json!([[DAEMONSET, "", null], [list, "/items", daemonsets]]));
        let config = "/api/v1/namespaces/linkerd/configmaps/linkerd-config";
        cluster.put(config, json!({"data": {"values": values}}));
        let checks = checked(&cluster);
        assert_eq!(outcome(&checks) == Outcome::Right, passes, "{name}: {checks:?}");
    }
}

#[test]
fn text_from_the_cluster_cannot_fake_lines_or_control_the_terminal() {
    let lie = json!("\n\u{1b}[2J√ each agent is ready");
    let events = json!({"items": [{"type": "Warning", "involvedObject": {"kind": "DaemonSet", "name": "linkerd-cni"},
        "reason": "x", "message": "\n√ fine\u{1b}[2J"}]});
    for changes in [
        json!([[STATUS_1, "/notReady", lie]]),
        json!([[AGENTS, "/items", []], [EVENTS, "", events]]),
    ] {
        let text = render(&checked(&with(&changes)), Format::Short, false);
        assert!(!text.contains('\u{1b}') && !text.contains("\n√"), "{text}");
    }
}

#[test]
fn hostile_status_neither_stops_the_checks_nor_controls_the_terminal() {
    let cluster = with(&json!([
        [STATUS_1, "/tokenExpires", u64::MAX],
        [STATUS_1, "/version", "\u{1b}[2J\u{202e}"],
        [STATUS_1, "/redirects", {"\u{1b}[2J\u{202e}": u64::MAX, "native": 1}],
    ]));
    for format in [Format::Table, Format::Short, Format::Json] {
        let text = render(&checked(&cluster), format, false);
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("u001b"), "{text}");
    }
    let check = Check::new("x", "y", "\u{1b}a", Severity::Error.fail("\u{1b}b\n\t* c"));
    assert_eq!(check.description, " a");
    assert_eq!(check.result.unwrap_err().text, " b  * c");
    let listed = Severity::Error.fail_if_any("a", &["\u{1b}b\nc".to_owned()]);
    assert_eq!(listed.unwrap_err().text, "a:\n\t*  b c");
}

fn pre_reports() -> (String, Vec<Check>) {
    let daemonsets = "/apis/apps/v1/daemonsets";
    let base = json!([
        [NAMESPACE, "", null],
        [DAEMONSET, "", null],
        [daemonsets, "", {"items": []}],
    ]);
    let obstacles = include_str!("tests/obstacles.yaml");
    rendered(obstacles, &base, |cluster| check_before_install(cluster, "linkerd-cni"))
}

#[test]
fn each_obstacle_to_an_installation_is_reported() {
    insta::assert_snapshot!(pre_reports().0);
}

#[test]
fn each_hint_points_to_a_section_of_the_docs() {
    let docs = include_str!("../../../docs/cli.md");
    let all = [reports().1, pre_reports().1].concat();
    let hints: BTreeSet<&str> = all.iter().map(|check| check.hint).collect();
    assert!(hints.len() > 15, "{hints:?}");
    for hint in hints.into_iter().chain(["kubernetes-api", "upstream"]) {
        assert!(docs.contains(&format!("\n### {hint}\n")), "docs/cli.md has no section {hint}");
    }
}
