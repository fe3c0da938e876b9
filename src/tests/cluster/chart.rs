//! The chart on a real cluster, from its installation to its end: by Helm, and by kubectl with
//! `scripts/install-cni`.

use std::collections::BTreeSet;
use std::thread;

use serde_json::json;

use crate::agent::wait_for_rollout;
use crate::connections::{
    assert_connections_are_redirected, assert_linkerd_check_passes,
    assert_native_sidecar_is_redirected, assert_new_pods_skip_port_9999,
};
use crate::documented::{Shell, on_page};
use crate::extension::{
    cni, linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod,
    the_namespace_passes_the_checks_before_an_installation,
};
use crate::helm::{Helm, NAMESPACE};
use crate::kubectl::{command, field, kubectl, kubectl_with_stdin, run_with_stdin};
use crate::node::Node;
use crate::scene::Scene;
use crate::until::until;
use testkit::child::script;
use testkit::repository;

#[test]
fn install_upgrade_and_uninstall_redirect_pods_and_restore_the_node() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;
    the_namespace_passes_the_checks_before_an_installation();

    helm.run("install", &[]);
    assert_eq!(required_network_plugins(), "true");
    assert_linkerd_check_passes();
    assert_connections_are_redirected(pods);
    for name in ["meshed", "unmeshed"] {
        assert_eq!(node.api_requests(name), 0, "API requests for the pod {name}");
    }
    assert_native_sidecar_is_redirected(pods);
    linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod(pods);
    passes_its_own_test(helm);
    the_api_server_accepts_every_use_of_the_chart(helm);
    let plugin = ["namespaces get", "pods get", "services get kubernetes"];
    let agent =
        ["serviceaccounts/token create linkerd-cni-plugin", "daemonsets.apps get linkerd-cni"];
    let more = ["namespaces get", "pods get list watch", "services get kubernetes"];
    let events = "events.events.k8s.io create";
    let everywhere = [&more[..], &[events, "nodes get"]].concat();
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &everywhere, &agent);

    let values = "repairController.mode=delete,startupTaint=example.com/cni,logLevel=debug";
    helm.run("upgrade", &["--set", values, "--set=ignoreInboundPorts=9999"]);
    let repair = [events, "nodes get patch", "pods/eviction create"];
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &[more, repair].concat(), &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "debug");
    assert_new_pods_skip_port_9999(pods);

    helm.rollback(&["--wait", "--timeout=60s"]);
    assert_rights("linkerd-cni", &everywhere, &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "info");
    assert_linkerd_check_passes();
    scene.uninstall();
}

/// The DaemonSet's setting for a bin dir without the primary CNI's plugins.
fn required_network_plugins() -> String {
    let variable = "?(@.name==\"LINKERD_CNI_REQUIRE_NETWORK_PLUGINS\")";
    let path = format!(".spec.template.spec.containers[0].env[{variable}].value");
    field("daemonset/linkerd-cni -n linkerd-cni", &path)
}

#[test]
fn kubectl_applies_prunes_and_deletes_what_install_cni_prints() {
    let node = Node::exclusive();
    let before = node.files();
    let check = |more: &[&str]| cni(&[&["check", "-o", "short"], more].concat());
    let is_not_installed = || {
        let (passes, report) = check(&["--wait=0s"]);
        let missing =
            "× linkerd-cni DaemonSet exists\n    DaemonSet linkerd-cni/linkerd-cni does not exist";
        assert!(!passes && report.contains(missing), "{report}");
    };
    is_not_installed();
    let policy = "networkPolicy.enabled=true";
    let objects = script("install-cni", &["--skip-inbound-ports", "9999", "--set", policy]);
    let fewer = script("install-cni", &["--set", "repairController.enabled=false"]);
    let _applied = Applied(script("install-cni", &[]));
    kubectl_with_stdin("apply -f -", &objects);
    wait_for_rollout();
    assert_linkerd_check_passes();
    let ports = node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"].clone();
    assert_eq!(ports, json!(["4191", "4190", "9999"]));
    assert!(labelled().contains("clusterrole.rbac.authorization.k8s.io/linkerd-cni-repair"));
    let (passes, report) = check(&[]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, report) = check(&["--wait=0s", "--as=jane"]);
    let denied = "? linkerd-cni DaemonSet exists\n    cannot read DaemonSet linkerd-cni/linkerd-cni: \
                  daemonsets.apps \"linkerd-cni\" is forbidden: User \"jane\" cannot get";
    assert!(!passes && report.contains(denied), "{report}");
    assert!(report.contains("; grant this right to the user, or choose another user"), "{report}");

    let allowed = script("install-cni", &["--prune-allowlist"]);
    kubectl_with_stdin(
        &format!("apply --prune -l linkerd.io/cni-resource=true {allowed} -f -"),
        &fewer,
    );
    wait_for_rollout();
    let left = labelled();
    let is_pruned = |name: &String| name.contains("repair") || name.contains("networkpolicy");
    assert!(!left.iter().any(is_pruned), "{left:?}");
    assert_linkerd_check_passes();

    let is_run = |text: &str| {
        let lacks = ["network-attachment-definitions", "podmonitors"];
        text.starts_with("kubectl delete ") && !lacks.iter().any(|kind| text.contains(kind))
    };
    for command in on_page("docs/gitops.md", is_run) {
        Shell::new().must(&command);
    }
    assert_eq!(labelled(), BTreeSet::new());
    is_not_installed();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

pub fn passes_its_own_test(helm: &Helm) {
    let printed =
        helm.must(&["test", "linkerd-cni", "-n", "linkerd-cni", "--timeout", "60s", "--logs"]);
    assert!(printed.contains("192.0.2.1:20001 was redirected to 4140"), "{printed}");
    let pods = kubectl("get pods -n linkerd-cni -o name");
    assert!(!pods.contains("test-linkerd-cni"), "{pods}");
}

/// Applies the objects for every file in `ci` as a dry run: the server checks more than the schemas
/// do.
fn the_api_server_accepts_every_use_of_the_chart(helm: &Helm) {
    let chart = repository().join("charts/linkerd2-cni");
    let mut all = String::new();
    let files = testkit::chart::ci_values();
    for file in &files {
        let [chart, file] = [&chart, file].map(|path| path.to_str().unwrap());
        let text = helm.must(&["template", "linkerd-cni", chart, "-n", "linkerd-cni", "-f", file]);
        for object in text.split("\n---\n") {
            // This cluster lacks these kinds.
            let foreign =
                ["kind: PodMonitor", "kind: PrometheusRule", "kind: NetworkAttachmentDefinition"];
            if !foreign.iter().any(|kind| object.contains(kind)) {
                all += &format!("\n---\n{}", object.trim_start_matches("---\n"));
            }
        }
    }
    // A dry run of a pod needs its ServiceAccount, which a dry run does not create. The namespace
    // is the dashboard's.
    kubectl("create serviceaccount cni-agent -n linkerd-cni");
    kubectl("create namespace monitoring");
    // As helm, which owns the release's fields, so that fields that are missing in a use are
    // removed.
    let dry = "apply --server-side --field-manager=helm --force-conflicts --dry-run=server --validate=strict -f -";
    let printed = kubectl_with_stdin(dry, &all);
    let daemonsets = printed.lines().filter(|line| line.starts_with("daemonset.apps/"));
    assert_eq!(daemonsets.count(), files.len(), "{printed}");
    kubectl("delete serviceaccount cni-agent -n linkerd-cni");
    kubectl("delete namespace monitoring --wait=false");
}

fn assert_rights(account: &str, everywhere: &[&str], here: &[&str]) {
    for (namespace, wanted) in
        [("default", everywhere.to_vec()), ("linkerd-cni", [everywhere, here].concat())]
    {
        let wanted: BTreeSet<String> = wanted.into_iter().map(str::to_owned).collect();
        // The API server's cache of roles may be stale for a moment.
        until(&format!("{account} has in {namespace} exactly {wanted:?}"), || {
            rights(account, namespace) == wanted
        });
    }
}

/// The rights that `kubectl auth can-i --list` shows, except those that every account has: the
/// resource, then verbs and names of objects.
fn rights(account: &str, namespace: &str) -> BTreeSet<String> {
    let rights_of = |account: &str| -> BTreeSet<String> {
        let user = format!("--as=system:serviceaccount:linkerd-cni:{account}");
        let list = kubectl(&format!("auth can-i --list --no-headers {user} -n {namespace}"));
        let right = |line: &str| {
            let words = line.split(['[', ']', ' ']).filter(|word| !word.is_empty());
            let mut words: Vec<&str> = words.collect();
            words[1..].sort_unstable();
            words.join(" ")
        };
        list.lines().map(right).collect()
    };
    &rights_of(account) - &rights_of("anybody")
}

fn labelled() -> BTreeSet<String> {
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
