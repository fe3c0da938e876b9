//! The chart on a real API server: granted rights, upgrades and rollbacks, and `scripts/install-cni`.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::burst;
use crate::connections::linkerd_check_finds_what_it_looks_up;
use crate::helm::{Helm, NAMESPACE};
use crate::kubectl::{command, fed, kubectl, piped};
use crate::node::Node;
use crate::scene::Scene;
use crate::until::until;
use testkit::repository;

#[test]
fn a_release_has_the_rights_it_needs_through_upgrade_rollback_and_uninstall() {
    let scene = Scene::installed(&[]);
    let Scene { node, helm, .. } = &scene;
    assert_eq!(required_network_plugins(), "true");
    passes_its_own_test(helm);
    the_api_server_accepts_every_use_of_the_chart(helm);
    let plugin = ["/namespaces get", "/pods get", "/services=kubernetes get"];
    let agent =
        ["/serviceaccounts/token=linkerd-cni-plugin create", "apps/daemonsets=linkerd-cni get"];
    let more = ["/nodes get", "/pods list,watch", "events.k8s.io/events create"];
    let everywhere = [&plugin[..], &more].concat();
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &everywhere, &agent);

    let more = "repairController.mode=delete,startupTaint=example.com/cni,logLevel=debug";
    helm.run("upgrade", &["--set", more]);
    let repair = ["/nodes patch", "/pods/eviction create"];
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &[&everywhere[..], &repair].concat(), &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "debug");

    let release = ["linkerd-cni", "-n", "linkerd-cni"];
    let waiting = ["--wait", "--timeout", "60s"];
    helm.must(&[&["rollback"], &release[..], &["1"], &waiting].concat());
    assert_rights("linkerd-cni", &everywhere, &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "info");
    linkerd_check_finds_what_it_looks_up();
    scene.remove();
}

#[test]
fn a_release_of_upstreams_chart_is_upgraded_to_this_chart_without_a_bare_pod() {
    let scene = Scene::begin();
    let Scene { node, helm, .. } = &scene;
    helm.install_upstream();
    // Upstream's pod is ready before it has chained the plugin.
    kubectl_rollout();
    until("upstream's plugin entry is in the conflist", || node.is_chained());

    // Upstream's agent has the plugin removed at its end, so the first try of a pod may fail.
    burst::with_retries("helm upgrade from upstream's chart", || {
        helm.run("upgrade", &["--reset-then-reuse-values"]);
    });
    let entry = node.linkerd_entry();
    assert_eq!(entry["linkerd"]["iptables-mode"], "auto", "{entry}");
    assert_eq!(required_network_plugins(), "false", "the bin dir is known");
    linkerd_check_finds_what_it_looks_up();
    passes_its_own_test(helm);

    helm.run("upgrade", &["--reset-then-reuse-values"]);
    assert_eq!(required_network_plugins(), "false", "an annotation keeps the setting");
    scene.remove();
}

/// The DaemonSet's setting for a bin dir without the primary CNI's plugins.
fn required_network_plugins() -> String {
    let env = "{.spec.template.spec.containers[0].env[?(@.name==\"LINKERD_CNI_REQUIRE_NETWORK_PLUGINS\")].value}";
    let output = format!("jsonpath={env}");
    kubectl(&format!("get daemonset/linkerd-cni -n linkerd-cni -o {output}"))
}

#[test]
fn kubectl_applies_prunes_and_deletes_what_install_cni_prints() {
    let node = Node::exclusive();
    let before = node.files();
    let policy = "networkPolicy.enabled=true";
    let objects = install_cni(&["--skip-inbound-ports", "9999", "--set", policy]);
    let fewer = install_cni(&["--set", "repairController.enabled=false"]);
    let applied = Applied(install_cni(&[]));
    piped("apply -f -", &objects);
    kubectl_rollout();
    linkerd_check_finds_what_it_looks_up();
    let ports = node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"].clone();
    assert_eq!(ports, json!(["4191", "4190", "9999"]));
    assert!(labelled().contains("clusterrole.rbac.authorization.k8s.io/linkerd-cni-repair"));

    let allowed = install_cni(&["--prune-allowlist"]);
    let label = ["apply", "--prune", "-l", "linkerd.io/cni-resource=true"];
    let prune: Vec<_> = label.into_iter().chain(allowed.lines()).chain(["-f", "-"]).collect();
    piped(&prune, &fewer);
    kubectl_rollout();
    let left = labelled();
    assert!(!left.iter().any(|name| name.contains("repair")), "{left:?}");
    assert!(!left.iter().any(|name| name.contains("networkpolicy")), "{left:?}");
    linkerd_check_finds_what_it_looks_up();

    let log = "logs --follow --since=1s daemonset/linkerd-cni -n linkerd-cni";
    let log = Command::new("kubectl")
        .args(log.split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(applied);
    assert_eq!(labelled(), BTreeSet::new());
    let log = log.wait_with_output().unwrap().stdout;
    let log = String::from_utf8_lossy(&log);
    assert_eq!(node.files(), before, "deleting leaves files: {log}");
}

/// Runs `helm test`. Its pod is deleted afterwards.
fn passes_its_own_test(helm: &Helm) {
    let printed =
        helm.must(&["test", "linkerd-cni", "-n", "linkerd-cni", "--timeout", "60s", "--logs"]);
    assert!(printed.contains("192.0.2.1:20001 was redirected to 4140"), "{printed}");
    let pods = kubectl("get pods -n linkerd-cni -o name");
    assert!(!pods.contains("test-linkerd-cni"), "{pods}");
}

/// Applies the objects for every file in `ci` as a dry run: the server checks more than the schemas do.
fn the_api_server_accepts_every_use_of_the_chart(helm: &Helm) {
    let chart = repository().join("charts/linkerd2-cni");
    let mut all = String::new();
    let mut files = 0;
    for file in fs::read_dir(chart.join("ci")).unwrap() {
        let file = file.unwrap().path();
        let [chart, file] = [&chart, &file].map(|path| path.to_str().unwrap());
        let text = helm.must(&["template", "linkerd-cni", chart, "-n", "linkerd-cni", "-f", file]);
        for object in text.split("\n---\n") {
            // This cluster lacks these kinds.
            let foreign =
                ["kind: PodMonitor", "kind: PrometheusRule", "kind: NetworkAttachmentDefinition"];
            if !foreign.iter().any(|kind| object.contains(kind)) {
                all += &format!("\n---\n{}", object.trim_start_matches("---\n"));
            }
        }
        files += 1;
    }
    // A dry run of a pod needs its ServiceAccount, which a dry run does not create.
    let account = ["serviceaccount", "cni-agent", "-n", "linkerd-cni"];
    kubectl(&[&["create"], &account[..]].concat());
    // Of the dashboard.
    kubectl("create namespace monitoring");
    // As helm, which owns the release's fields, so that fields that are missing in a use are removed.
    let dry = "apply --server-side --field-manager=helm --force-conflicts --dry-run=server --validate=strict -f -";
    let printed = piped(dry, &all);
    let daemonsets = printed.lines().filter(|line| line.starts_with("daemonset.apps/"));
    assert_eq!(daemonsets.count(), files, "{printed}");
    kubectl(&[&["delete"], &account[..]].concat());
    kubectl("delete namespace monitoring --wait=false");
}

/// Asserts the exact rights of an account: `everywhere` in all namespaces, and also `here` in the release's namespace.
fn assert_rights(account: &str, everywhere: &[&str], here: &[&str]) {
    for (namespace, wanted) in
        [("default", everywhere.to_vec()), ("linkerd-cni", [everywhere, here].concat())]
    {
        let wanted: BTreeSet<String> = wanted.into_iter().map(str::to_owned).collect();
        // The API server's cache of roles may be stale for a moment.
        let deadline = Instant::now() + Duration::from_secs(60);
        let found = loop {
            let found = rights(account, namespace);
            if found == wanted || Instant::now() > deadline {
                break found;
            }
            thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(found, wanted, "{account} in {namespace}");
    }
}

/// The rights that `kubectl auth can-i --list` shows, except those that every account has.
fn rights(account: &str, namespace: &str) -> BTreeSet<String> {
    let of = |account: &str| -> BTreeSet<String> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        });
        let user = format!("--as=system:serviceaccount:linkerd-cni:{account}");
        let create = format!("create --validate=false {user} -o json -f -");
        let review = piped(&create, &review.to_string());
        let review: Value = serde_json::from_str(&review).unwrap();
        let rules = review["status"]["resourceRules"].as_array().unwrap();
        // Rights to paths of the API server count too.
        let paths = review["status"]["nonResourceRules"].as_array().unwrap();
        rules.iter().chain(paths).map(describe).collect()
    };
    let anybody = of("anybody");
    &of(account) - &anybody
}

/// Describes a rule as "group/resource=name verb,verb".
fn describe(rule: &Value) -> String {
    let words = |key: &str| {
        let words = rule[key].as_array().into_iter().flatten();
        let words: Vec<_> = words.map(|word| word.as_str().unwrap()).collect();
        words.join(",")
    };
    let name = match words("resourceNames") {
        name if name.is_empty() => name,
        name => format!("={name}"),
    };
    let (group, resource) = (words("apiGroups"), words("resources") + &words("nonResourceURLs"));
    format!("{group}/{resource}{name} {}", words("verbs"))
}

/// The objects with the label by which kubectl prunes.
fn labelled() -> BTreeSet<String> {
    let kinds = "namespaces,serviceaccounts,configmaps,daemonsets,networkpolicies,roles,rolebindings,clusterroles,clusterrolebindings";
    let label = "linkerd.io/cni-resource=true";
    let names = kubectl(&format!("get {kinds} --all-namespaces -l {label} -o name"));
    names.lines().map(str::to_owned).collect()
}

pub fn install_cni(flags: &[&str]) -> String {
    let script =
        Command::new(repository().join("scripts/install-cni")).args(flags).output().unwrap();
    let error = String::from_utf8_lossy(&script.stderr);
    assert!(script.status.success(), "install-cni {flags:?}: {error}");
    String::from_utf8(script.stdout).unwrap()
}

fn kubectl_rollout() {
    kubectl("rollout status daemonset/linkerd-cni -n linkerd-cni --timeout=60s");
}

/// A manifest that was applied. Dropping the value deletes its objects, also after a failure.
pub struct Applied(pub String);

impl Drop for Applied {
    fn drop(&mut self) {
        let args = format!("delete --ignore-not-found --timeout=60s -n {NAMESPACE} -f -");
        let output = fed(&mut command(&args), &self.0);
        // A second panic would end the whole test program.
        assert!(output.status.success() || thread::panicking(), "kubectl {args}: {output:?}");
    }
}
