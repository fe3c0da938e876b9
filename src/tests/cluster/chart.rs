//! The chart on a real cluster, from its installation to its end: by Helm, and by kubectl with `scripts/install-cni`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::rolled_out;
use crate::connections::{
    a_native_sidecar_passes_the_validator_and_proxies,
    connections_go_through_the_proxy_where_they_should, linkerd_check_finds_what_it_looks_up,
    pods_started_after_an_upgrade_follow_it,
};
use crate::documented::{Shell, on_page};
use crate::extension::{
    cni, linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod,
    the_namespace_passes_the_checks_before_an_installation,
};
use crate::helm::{Helm, NAMESPACE};
use crate::kubectl::{command, fed, kubectl, piped};
use crate::node::Node;
use crate::scene::Scene;
use testkit::repository;

#[test]
fn install_upgrade_and_uninstall_redirect_pods_and_restore_the_node() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;
    the_namespace_passes_the_checks_before_an_installation();

    let start = Instant::now();
    helm.run("install", &[]);
    println!("ready after {:.1?}", start.elapsed());
    assert_eq!(required_network_plugins(), "true");
    linkerd_check_finds_what_it_looks_up();
    connections_go_through_the_proxy_where_they_should(pods);
    for name in ["meshed", "unmeshed"] {
        assert_eq!(node.api_requests(name), 0, "API requests for the pod {name}");
    }
    a_native_sidecar_passes_the_validator_and_proxies(pods);
    linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod(pods);
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
    helm.run("upgrade", &["--set", more, "--set=ignoreInboundPorts=9999"]);
    let repair = ["/nodes patch", "/pods/eviction create"];
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &[&everywhere[..], &repair].concat(), &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "debug");
    pods_started_after_an_upgrade_follow_it(pods);

    helm.rollback(&["--wait", "--timeout=60s"]);
    assert_rights("linkerd-cni", &everywhere, &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "info");
    linkerd_check_finds_what_it_looks_up();
    scene.uninstall();
}

/// The DaemonSet's setting for a bin dir without the primary CNI's plugins.
pub fn required_network_plugins() -> String {
    let env = "{.spec.template.spec.containers[0].env[?(@.name==\"LINKERD_CNI_REQUIRE_NETWORK_PLUGINS\")].value}";
    let output = format!("jsonpath={env}");
    kubectl(&format!("get daemonset/linkerd-cni -n linkerd-cni -o {output}"))
}

#[test]
fn kubectl_applies_prunes_and_deletes_what_install_cni_prints() {
    let node = Node::exclusive();
    let before = node.files();
    let check = |more: &[&str]| cni(&[&["check", "-o", "short"], more].concat());
    let is_not_installed = || {
        let (passes, report) = check(&["--wait=0s"]);
        assert!(!passes && report.contains("× the chart is installed\n    no object"), "{report}");
    };
    is_not_installed();
    let policy = "networkPolicy.enabled=true";
    let objects = install_cni(&["--skip-inbound-ports", "9999", "--set", policy]);
    let fewer = install_cni(&["--set", "repairController.enabled=false"]);
    let _applied = Applied(install_cni(&[]));
    piped("apply -f -", &objects);
    rolled_out();
    linkerd_check_finds_what_it_looks_up();
    let ports = node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"].clone();
    assert_eq!(ports, json!(["4191", "4190", "9999"]));
    assert!(labelled().contains("clusterrole.rbac.authorization.k8s.io/linkerd-cni-repair"));
    let (passes, report) = check(&[]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, report) = check(&["--wait=0s", "--as=jane"]);
    let denied = "× linkerd-cni DaemonSet exists\n    cannot read DaemonSet linkerd-cni/linkerd-cni: \
                  daemonsets.apps \"linkerd-cni\" is forbidden: User \"jane\" cannot get";
    assert!(!passes && report.contains(denied), "{report}");
    assert!(report.contains("; grant this right to the user, or choose another user"), "{report}");

    let allowed = install_cni(&["--prune-allowlist"]);
    let label = ["apply", "--prune", "-l", "linkerd.io/cni-resource=true"];
    let prune: Vec<_> = label.into_iter().chain(allowed.lines()).chain(["-f", "-"]).collect();
    piped(&prune, &fewer);
    rolled_out();
    let left = labelled();
    let is_pruned = |name: &String| name.contains("repair") || name.contains("networkpolicy");
    assert!(!left.iter().any(is_pruned), "{left:?}");
    linkerd_check_finds_what_it_looks_up();

    for command in on_page("docs/gitops.md", |text| text.starts_with("kubectl delete ")) {
        Shell::new().must(&command);
    }
    assert_eq!(labelled(), BTreeSet::new());
    is_not_installed();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

/// Runs `helm test`. Its pod is deleted afterwards.
pub fn passes_its_own_test(helm: &Helm) {
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

fn install_cni(flags: &[&str]) -> String {
    let script =
        Command::new(repository().join("scripts/install-cni")).args(flags).output().unwrap();
    let error = String::from_utf8_lossy(&script.stderr);
    assert!(script.status.success(), "install-cni {flags:?}: {error}");
    String::from_utf8(script.stdout).unwrap()
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
