use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::extension::fake::{
    AGENTS, CONFIG, Cluster, DAEMONSET, EVENTS, NAMESPACE, REVIEWS, STATUS_1, agent, daemonset,
    entry, later, namespace, now, status,
};
use crate::extension::report::{Format, is_success, render};

/// A change of the healthy cluster: path, JSON pointer and value. An empty pointer replaces the whole
/// response, and `null` removes it.
type Change = (&'static str, &'static str, Value);

fn with(changes: &[Change]) -> Cluster {
    let mut cluster = Cluster::healthy();
    for (path, pointer, value) in changes {
        match (pointer.is_empty(), value) {
            (true, Value::Null) => drop(cluster.0.remove(*path)),
            (true, value) => cluster.put(path, value.clone()),
            (false, value) => cluster.set(path, pointer, value.clone()),
        }
    }
    cluster
}

fn checked(cluster: &Cluster) -> Vec<Check> {
    installed(cluster, "linkerd-cni", "linkerd", later())
}

/// Renders the reports of clusters with these changes after those of `base`, each below its name.
fn rendered(
    cases: Vec<(&str, Vec<Change>)>,
    base: &[Change],
    run: fn(&Cluster) -> Vec<Check>,
) -> (String, Vec<Check>) {
    let (mut text, mut all) = (String::new(), Vec::new());
    for (name, changes) in cases {
        let checks = run(&with(&[base, &changes].concat()));
        let format = if changes.is_empty() { Format::Table } else { Format::Short };
        let _ = writeln!(text, "## {name}\n{}", render(&checks, format, false));
        all.extend(checks);
    }
    (text, all)
}

/// Reports of all faults, and the checks in them.
fn reports() -> (String, Vec<Check>) {
    let rejected = json!({"items": [{"involvedObject": {"kind": "DaemonSet", "name": "linkerd-cni"},
        "reason": "FailedCreate", "message": "pods is forbidden: violates PodSecurity"}]});
    let stranded = json!({"items": [{"metadata": {"name": "web", "namespace": "shop",
        "labels": {"linkerd.io/control-plane-ns": "linkerd"}}, "spec": {"nodeName": "node-1",
        "containers": [{"name": "linkerd-proxy"}]}, "status": {"phase": "Pending",
        "initContainerStatuses": [{"name": "linkerd-network-validator", "ready": false,
            "state": {"terminated": {"exitCode": 95}}}]}}]});
    let cilium = json!({"items": [{"metadata": {"namespace": "kube-system"},
        "data": {"cni-exclusive": "true", "kube-proxy-replacement": "true"}}]});
    let taint = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]);
    let account = "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin";
    let mut contention = status();
    contention["problems"] = json!({"kubeconfig": "unrelated"});
    contention["contended"] =
        json!(["network config: x keeps being overwritten by another writer: stop that writer"]);
    let mut other = daemonset();
    other["metadata"]["namespace"] = json!("kube-system");
    let unkept = json!({"published": 0, "kept": false, "problem": "HTTP 403: pods is forbidden"});
    let mut upstream = daemonset();
    let container = &mut upstream["spec"]["template"]["spec"]["containers"][0];
    container["ports"] = Value::Null;
    container["env"] = Value::Null;
    let no_agents = (AGENTS, "/items", json!([]));
    let events = (EVENTS, "", rejected);
    let tainted = ("/api/v1/nodes", "/items/1/spec/taints", taint);
    let one = |name, path, pointer, value| (name, vec![(path, pointer, value)]);
    let cases = vec![
        one("no DaemonSet", DAEMONSET, "", Value::Null),
        one("no right to read the DaemonSet", DAEMONSET, "", json!(403)),
        one("no ServiceAccount of the plugin", account, "", Value::Null),
        one("no ConfigMap", CONFIG, "", Value::Null),
        one(
            "invalid plugin entry",
            CONFIG,
            "/data/cni_network_config",
            json!("{\"linkerd\":{\"ipv6\":7}}"),
        ),
        one("namespace enforces baseline", NAMESPACE, "", namespace("baseline")),
        one("rollout is not processed", DAEMONSET, "/metadata/generation", json!(3)),
        one("rollout is not finished", DAEMONSET, "/status/updatedNumberScheduled", json!(1)),
        one("no node in scope", DAEMONSET, "/status/desiredNumberScheduled", json!(0)),
        ("node without agent", vec![no_agents.clone()]),
        ("node without agent, with the Event of the DaemonSet", vec![no_agents, events.clone()]),
        (
            "tainted node without agent",
            vec![(AGENTS, "/items", json!([agent(1)])), tainted.clone()],
        ),
        one("upstream's agents", DAEMONSET, "", upstream),
        one("agents cannot be listed", AGENTS, "", json!(403)),
        ("no fault: an old Event", vec![events]),
        ("no fault: a tainted node with an agent", vec![tainted]),
        one("agent not ready", STATUS_1, "/notReady", json!("kubeconfig: waiting for a token")),
        one("no status", STATUS_1, "", Value::Null),
        one("another version", STATUS_1, "/version", json!("1.9.0")),
        one("no conflist", STATUS_1, "/conflist", Value::Null),
        one("token expired", STATUS_1, "/tokenExpires", json!(now() - 1)),
        one(
            "denied token request",
            STATUS_1,
            "/problems",
            json!({"TokenRequest": "HTTP 403: denied"}),
        ),
        one("contention and another problem", STATUS_1, "", contention),
        one("pods that cannot be watched", STATUS_1, "/podCopy", unkept),
        one("failed plugin calls", STATUS_1, "/failures", json!({"101": 2})),
        one("containers with the proxy's user", STATUS_1, "/podCopy/bypasses/proxy-user", json!(2)),
        one("IPv6 is not redirected", STATUS_1, "/podCopy/bypasses/ipv6", json!(2)),
        one(
            "another agent",
            "/apis/apps/v1/daemonsets",
            "",
            json!({"items": [daemonset(), other]}),
        ),
        one("Cilium", "/api/v1/configmaps", "", cilium),
        one("stranded pod", "/api/v1/pods", "", stranded),
    ];
    rendered(cases, &[], checked)
}

#[test]
fn a_healthy_cluster_passes_every_check() {
    let checks = checked(&Cluster::healthy());
    assert!(is_success(&checks));
    insta::assert_snapshot!(render(&checks, Format::Table, false));
}

#[test]
fn each_fault_is_reported_with_object_cause_and_remedy() {
    insta::assert_snapshot!(reports().0);
}

#[test]
fn injected_pods_without_multus_annotation_are_listed_where_the_plugin_is_not_chained() {
    let pod = |name: &str, networks: Option<&str>, spec: Value| {
        let annotations = networks.map(|text| json!({"k8s.v1.cni.cncf.io/networks": text}));
        let mut pod = json!({"spec": {"containers": [{"name": "linkerd-proxy"}]}});
        pod["metadata"] = json!({"name": name, "namespace": "shop", "annotations": annotations});
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        pod
    };
    let attached = [
        pod("a", Some("default/linkerd-cni"), json!({})),
        pod("b", Some("x/y, linkerd-cni@eth1"), json!({})),
        pod("c", Some(r#"[{"name": "linkerd-cni"}]"#), json!({})),
        // Pods that do not need the plugin.
        pod("d", None, json!({"hostNetwork": true})),
        pod("e", None, json!({"initContainers": [{"name": "linkerd-init"}]})),
        pod("f", None, json!({"containers": [{"name": "app"}]})),
    ];
    let sidecar = json!({"containers": [], "initContainers": [{"name": "linkerd-proxy"}]});
    let mut all = attached.to_vec();
    all.extend([
        pod("g", None, json!({})),
        pod("h", Some("default/linkerd-cni-2"), sidecar),
        pod("i", Some(r#"[{"name": "other"}]"#), json!({})),
    ]);
    let multus = |chained: &str, pods: &[Value]| {
        let env = json!([{"name": "LINKERD_CNI_CHAINED", "value": chained}]);
        let cluster = with(&[
            (DAEMONSET, "/spec/template/spec/containers/0/env", env),
            ("/api/v1/pods", "", json!({"items": pods})),
        ]);
        let checks = checked(&cluster);
        let found: Vec<_> = checks.into_iter().filter(|check| check.hint == "multus").collect();
        found.into_iter().map(|check| check.verdict.err().map(|problem| problem.text)).collect()
    };
    let none: Vec<Option<String>> = multus("true", &all);
    assert!(none.is_empty(), "{none:?}");
    assert_eq!(multus("false", &attached), [None]);
    let listed = multus("false", &all)[0].clone().unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let listed = names.map(|name| listed.contains(&format!("shop/{name}")));
    assert_eq!(listed, [false, false, false, false, false, false, true, true, true]);
}

#[test]
fn several_faults_of_one_agent_are_told_apart() {
    let pending = json!({"containerStatuses": [{"name": "install-cni",
        "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    let pod = json!({"kind": "Pod", "uid": "uid-1"});
    // The newer Event has nothing to do with the start.
    let mount = json!({"items": [
        {"involvedObject": pod, "reason": "FailedMount", "message": "hostPath is not a directory"},
        {"involvedObject": pod, "reason": "MissingClusterDNS", "message": "x", "lastTimestamp": "2"},
    ]});
    let cluster = with(&[
        (STATUS_1, "", Value::Null),
        (AGENTS, "/items/0/status", pending),
        (EVENTS, "", mount),
    ]);
    let agent = &cluster.facts().agents.unwrap()[0];
    let why = agent.not_ready(&cluster.facts().events).unwrap();
    assert_eq!(
        why,
        "container install-cni: ContainerCreating: FailedMount: hostPath is not a directory"
    );
    let unscheduled = json!({"conditions": [{"type": "PodScheduled", "status": "False",
        "message": "0/1 nodes are available"}]});
    let cluster = with(&[(STATUS_1, "", Value::Null), (AGENTS, "/items/0/status", unscheduled)]);
    let agent = &cluster.facts().agents.unwrap()[0];
    assert_eq!(agent.not_ready(&[]).unwrap(), "not scheduled: 0/1 nodes are available");
}

#[test]
fn a_chart_that_is_not_installed_is_one_failure_with_the_command_that_installs_it() {
    let mut cluster = Cluster::healthy();
    cluster.0.retain(|path, _| !path.contains("linkerd-cni"));
    let checks = checked(&cluster);
    assert_eq!(checks.len(), 1, "{checks:?}");
    let text = render(&checks, Format::Short, false);
    assert!(text.contains("scripts/install-cni | kubectl apply -f -"), "{text}");
    assert!(!is_success(&checks));
}

#[test]
fn a_cluster_that_does_not_use_the_plugin_passes_and_one_that_does_fails() {
    for (values, passes) in [("cniEnabled: false\n", true), ("a: b\ncniEnabled: true\n", false)] {
        let mut cluster = with(&[(DAEMONSET, "", Value::Null)]);
        let config = "/api/v1/namespaces/linkerd/configmaps/linkerd-config";
        cluster.put(config, json!({"data": {"values": values}}));
        let checks = checked(&cluster);
        assert_eq!(is_success(&checks), passes, "{checks:?}");
    }
}

#[test]
fn text_from_the_cluster_cannot_fake_lines_or_control_the_terminal() {
    let lie = json!("\n\u{1b}[2J√ each agent is ready");
    let events = json!({"items": [{"involvedObject": {"kind": "DaemonSet", "name": "linkerd-cni"},
        "reason": "x", "message": "\n√ fine\u{1b}[2J"}]});
    for changes in [
        vec![(STATUS_1, "/notReady", lie)],
        vec![(AGENTS, "/items", json!([])), (EVENTS, "", events)],
    ] {
        let text = render(&checked(&with(&changes)), Format::Short, false);
        assert!(!text.contains('\u{1b}') && !text.contains("\n√"), "{text}");
    }
}

#[test]
fn a_hostile_agent_neither_stops_the_checks_nor_writes_to_the_terminal() {
    let cluster = with(&[
        (STATUS_1, "/tokenExpires", json!(u64::MAX)),
        (STATUS_1, "/version", json!("\u{1b}[2J\u{202e}")),
        (STATUS_1, "/redirects", json!({"\u{1b}[2J\u{202e}": u64::MAX, "native": 1})),
    ]);
    for format in [Format::Table, Format::Short, Format::Json] {
        let text = render(&checked(&cluster), format, false);
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("u001b"), "{text}");
    }
    let table = crate::extension::nodes::table(&cluster.facts()).unwrap();
    assert!(!table.contains(['\u{1b}', '\u{202e}']), "{table}");
    let check = Check::new("x", "y", "\u{1b}a", Severity::Error.because("\u{1b}b\n\t* c"));
    assert_eq!(check.description, " a");
    assert_eq!(check.verdict.unwrap_err().text, " b  * c");
    let listed = Severity::Error.if_any("a", &["\u{1b}b\nc".to_owned()]);
    assert_eq!(listed.unwrap_err().text, "a:\n\t*  b c");
}

fn pre_reports() -> (String, Vec<Check>) {
    let old = json!({"gitVersion": "v1.30.9-gke.1"});
    let unlabeled = json!({"metadata": {}});
    let cilium = json!({"items": [{"metadata": {"namespace": "kube-system"}, "data": {}}]});
    let none = json!({"items": []});
    let daemonsets = "/apis/apps/v1/daemonsets";
    let mut elsewhere = daemonset();
    elsewhere["metadata"]["namespace"] = json!("kube-system");
    let cases = vec![
        ("ready to install", vec![]),
        ("old Kubernetes", vec![("/version", "", old)]),
        ("unknown version", vec![("/version", "", json!({"gitVersion": "x"}))]),
        ("no rights", vec![(REVIEWS, "", json!({"status": {"allowed": false}}))]),
        ("rights cannot be read", vec![(REVIEWS, "", json!(403))]),
        ("namespace without label", vec![(NAMESPACE, "", unlabeled)]),
        ("another agent", vec![(daemonsets, "", json!({"items": [elsewhere]}))]),
        ("installed already", vec![(daemonsets, "", json!({"items": [daemonset()]}))]),
        ("Cilium", vec![("/api/v1/configmaps", "", cilium)]),
    ];
    let base = [(NAMESPACE, "", Value::Null), (daemonsets, "", none)];
    rendered(cases, &base, |cluster| before_install(cluster, "linkerd-cni"))
}

#[test]
fn each_obstacle_to_an_installation_is_reported() {
    insta::assert_snapshot!(pre_reports().0);
}

#[test]
fn the_oldest_supported_kubernetes_is_the_charts_kube_version() {
    let chart = include_str!("../../../charts/linkerd2-cni/Chart.yaml");
    let (major, minor) = super::pre::OLDEST_KUBERNETES;
    assert!(chart.contains(&format!("kubeVersion: \">={major}.{minor}.0-0\"")), "{chart}");
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

#[test]
fn the_plugin_entry_of_the_fake_cluster_is_complete() {
    let data = json!({"cni_network_config": entry().to_string()});
    assert!(plugin_entry(&json!({"data": data})).is_ok());
}
