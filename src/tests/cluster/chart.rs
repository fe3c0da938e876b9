//! The chart on a real cluster, from its installation to its end: by Helm, and by kubectl with
//! `scripts/install-cni`.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::agent::{DAEMONSET, wait_for_rollout};
use crate::api;
use crate::connections::{
    assert_connections_are_redirected, assert_linkerd_check_passes,
    assert_native_sidecar_is_redirected, assert_new_pods_skip_port_9999,
};
use crate::documented::{Shell, commands_on_page};
use crate::extension::{
    assert_checks_before_installation_pass, assert_healthy_cluster_is_reported_and_pod_explained,
    linkerd_cni,
};
use crate::helm::{Helm, NAMESPACE};
use crate::kubectl::{command, kubectl, kubectl_with_stdin, run_with_stdin};
use crate::node::Node;
use crate::pods;
use crate::scene::Scene;
use crate::until::until;
use testkit::chart::Objects;
use testkit::child::script;
use testkit::repository;

#[test]
fn install_upgrade_and_uninstall_redirect_pods_and_restore_the_node() {
    let scene = Scene::begin();
    let node = &scene.node;
    let helm = &scene.helm;
    let pods = &scene.pods;
    assert_checks_before_installation_pass();

    helm.run("install", &[]);
    assert_eq!(required_network_plugins(), "true");
    assert_linkerd_check_passes();
    assert_connections_are_redirected(pods);
    for name in ["meshed", "unmeshed"] {
        assert_eq!(node.api_requests(name), 0, "API requests for the pod {name}");
    }
    assert_native_sidecar_is_redirected(pods);
    assert_healthy_cluster_is_reported_and_pod_explained(pods);
    assert_helm_test_passes(helm);
    assert_server_accepts_all_ci_values(helm);
    let plugin_rights = ["namespaces get", "pods get", "services get kubernetes"];
    // Rights in the namespace of the release.
    let own_rights =
        ["serviceaccounts/token create linkerd-cni-plugin", "daemonsets.apps get linkerd-cni"];
    let lookup_rights = ["namespaces get", "pods get list watch", "services get kubernetes"];
    let events = "events.events.k8s.io create";
    let default_rights = [&lookup_rights[..], &[events, "events list", "nodes get"]].concat();
    assert_rights("linkerd-cni-plugin", &plugin_rights, &[]);
    assert_rights("linkerd-cni", &default_rights, &own_rights);

    let values = "repairController.mode=delete,startupTaint=example.com/cni,logLevel=debug";
    helm.run("upgrade", &["--set", values, "--set=ignoreInboundPorts=9999"]);
    let repair_rights = [events, "events list", "nodes get patch", "pods/eviction create"];
    let all_rights = [&lookup_rights[..], &repair_rights].concat();
    assert_rights("linkerd-cni-plugin", &plugin_rights, &[]);
    assert_rights("linkerd-cni", &all_rights, &own_rights);
    assert_eq!(node.linkerd_entry()["log_level"], "debug");
    assert_new_pods_skip_port_9999(pods);

    helm.rollback(&["--wait", "--timeout=60s"]);
    assert_rights("linkerd-cni", &default_rights, &own_rights);
    assert_eq!(node.linkerd_entry()["log_level"], "info");
    assert_linkerd_check_passes();
    scene.uninstall();
}

/// Returns the DaemonSet's setting for a bin dir without the primary CNI's plugins.
fn required_network_plugins() -> Value {
    let objects = Objects(vec![api::get(DAEMONSET)]);
    objects.variable("install-cni", "LINKERD_CNI_REQUIRE_NETWORK_PLUGINS")
}

#[test]
fn kubectl_applies_prunes_and_deletes_the_objects_of_install_cni() {
    let node = Node::exclusive();
    let before = node.files();
    assert_not_installed();
    let policy = "networkPolicy.enabled=true";
    let objects = script("install-cni", &["--skip-inbound-ports", "9999", "--set", policy]);
    let fewer_objects = script("install-cni", &["--set", "repairController.enabled=false"]);
    let _applied = Applied(script("install-cni", &[]));
    kubectl_with_stdin("apply -f -", &objects);
    wait_for_rollout();
    assert_linkerd_check_passes();
    let ports = node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"].clone();
    assert_eq!(ports, json!(["4191", "4190", "9999"]));
    let repair_role = "clusterrole.rbac.authorization.k8s.io/linkerd-cni-repair";
    assert!(labelled_objects().contains(repair_role));
    let (passes, report) = linkerd_cni(&["check", "-o", "short"]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, report) = linkerd_cni(&["check", "-o", "short", "--wait=0s", "--as=jane"]);
    let denied = "? linkerd-cni DaemonSet exists\n    cannot read DaemonSet linkerd-cni/linkerd-cni: \
                  daemonsets.apps \"linkerd-cni\" is forbidden: User \"jane\" cannot get";
    assert!(!passes && report.contains(denied), "{report}");
    assert!(report.contains("; grant this right to the user, or choose another user"), "{report}");

    let allowlist = script("install-cni", &["--prune-allowlist"]);
    let prune = format!("apply --prune -l linkerd.io/cni-resource=true {allowlist} -f -");
    kubectl_with_stdin(&prune, &fewer_objects);
    wait_for_rollout();
    let left = labelled_objects();
    let is_pruned = |name: &String| name.contains("repair") || name.contains("networkpolicy");
    assert!(!left.iter().any(is_pruned), "{left:?}");
    assert_linkerd_check_passes();

    let can_run = |text: &str| {
        let missing_kinds = ["network-attachment-definitions", "podmonitors"];
        text.starts_with("kubectl delete ") && !missing_kinds.iter().any(|kind| text.contains(kind))
    };
    for command in commands_on_page("docs/gitops.md", can_run) {
        Shell::new().must(&command);
    }
    assert_eq!(labelled_objects(), BTreeSet::new());
    assert_not_installed();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

fn assert_not_installed() {
    let (passes, report) = linkerd_cni(&["check", "-o", "short", "--wait=0s"]);
    let problem =
        "× linkerd-cni DaemonSet exists\n    DaemonSet linkerd-cni/linkerd-cni does not exist";
    assert!(!passes && report.contains(problem), "{report}");
}

pub fn assert_helm_test_passes(helm: &Helm) {
    let output =
        helm.must(&["test", "linkerd-cni", "-n", "linkerd-cni", "--timeout", "60s", "--logs"]);
    assert!(output.contains("192.0.2.1:20001 was redirected to 4140"), "{output}");
    let pods = pods::list(NAMESPACE);
    assert!(pods.iter().all(|pod| pod["metadata"]["name"] != "test-linkerd-cni"), "{pods:?}");
}

/// Applies the objects for every file in `ci` as a dry run. The server checks more than the schemas
/// do.
fn assert_server_accepts_all_ci_values(helm: &Helm) {
    let chart = repository().join("charts/linkerd2-cni");
    let chart = chart.to_str().unwrap();
    let mut objects = String::new();
    let files = testkit::chart::ci_values();
    for file in &files {
        let file = file.to_str().unwrap();
        let text = helm.must(&["template", "linkerd-cni", chart, "-n", "linkerd-cni", "-f", file]);
        for object in text.split("\n---\n") {
            // This cluster lacks these kinds.
            let missing_kinds =
                ["kind: PodMonitor", "kind: PrometheusRule", "kind: NetworkAttachmentDefinition"];
            if !missing_kinds.iter().any(|kind| object.contains(kind)) {
                objects += &format!("\n---\n{}", object.trim_start_matches("---\n"));
            }
        }
    }
    // A dry run of a pod needs its ServiceAccount, which a dry run does not create. The namespace
    // `monitoring` is that of the dashboard.
    kubectl("create serviceaccount cni-agent -n linkerd-cni");
    kubectl("create namespace monitoring");
    // The field manager is helm, which owns the release's fields. So fields that an object lacks
    // are removed.
    let dry_run = "apply --server-side --field-manager=helm --force-conflicts --dry-run=server --validate=strict -f -";
    let output = kubectl_with_stdin(dry_run, &objects);
    let daemonsets = output.lines().filter(|line| line.starts_with("daemonset.apps/"));
    assert_eq!(daemonsets.count(), files.len(), "{output}");
    kubectl("delete serviceaccount cni-agent -n linkerd-cni");
    kubectl("delete namespace monitoring --wait=false");
}

/// Asserts that an account has exactly these rights: those in every namespace, and those in the
/// namespace of the release.
fn assert_rights(account: &str, in_every_namespace: &[&str], in_own_namespace: &[&str]) {
    for (namespace, expected) in [
        ("default", in_every_namespace.to_vec()),
        ("linkerd-cni", [in_every_namespace, in_own_namespace].concat()),
    ] {
        let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
        // Every account has the rights of this account, which does not exist.
        let common_rights = rights(namespace, "anybody");
        // The API server's cache of roles may be stale for a moment.
        until(&format!("{account} has in {namespace} exactly {expected:?}"), || {
            &rights(namespace, account) - &common_rights == expected
        });
    }
}

/// Returns the rights that `kubectl auth can-i --list` shows. Each has the resource, then verbs and
/// names of objects.
fn rights(namespace: &str, account: &str) -> BTreeSet<String> {
    let user = format!("--as=system:serviceaccount:linkerd-cni:{account}");
    let list = kubectl(&format!("auth can-i --list --no-headers {user} -n {namespace}"));
    let mut rights = BTreeSet::new();
    for line in list.lines() {
        let mut words: Vec<&str> = line.split(['[', ']', ' ']).collect();
        words.retain(|word| !word.is_empty());
        // The first word is the resource.
        words[1..].sort_unstable();
        rights.insert(words.join(" "));
    }
    rights
}

/// Returns the objects with the label of this chart.
fn labelled_objects() -> BTreeSet<String> {
    let kinds = "namespaces,serviceaccounts,configmaps,daemonsets,networkpolicies,roles,rolebindings,clusterroles,clusterrolebindings";
    let label = "linkerd.io/cni-resource=true";
    let names = kubectl(&format!("get {kinds} --all-namespaces -l {label} -o name"));
    names.lines().map(str::to_owned).collect()
}

/// A manifest that was applied. Dropping the value deletes its objects, also after a failure.
pub struct Applied(pub String);

impl Applied {
    pub fn new(manifest: impl Into<String>) -> Applied {
        let applied = Applied(manifest.into());
        kubectl_with_stdin("apply -f -", &applied.0);
        applied
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        let args = format!("delete --ignore-not-found --timeout=60s -n {NAMESPACE} -f -");
        let output = run_with_stdin(&mut command(&args), &self.0);
        // A second panic would end the whole test program.
        assert!(output.status.success() || thread::panicking(), "kubectl {args}: {output:?}");
    }
}
