//! The chart on a real API server: what it grants, its life as a release, and how people get to it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::helm::Helm;
use crate::linkerd_check_finds_what_it_looks_up;
use crate::node::Node;
use crate::pods::kubectl;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_release_has_the_rights_it_needs_through_upgrade_rollback_and_uninstall() {
    let node = Node::here();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);
    passes_its_own_test(&helm);
    the_api_server_takes_every_use_of_the_chart(&helm);
    let plugin = ["/namespaces get", "/pods get", "/services=kubernetes get"];
    let agent = [
        "/serviceaccounts/token=linkerd-cni-plugin create",
        "apps/daemonsets=linkerd-cni get",
        "events.k8s.io/events create",
    ];
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &plugin, &agent);

    let more = "repairController.enabled=true,startupTaint=example.com/cni,logLevel=debug";
    helm.run("upgrade", &["--set", more]);
    let repair = [
        "/nodes get,patch",
        "/pods delete",
        "/pods list,watch",
        "/pods/eviction create",
        "events.k8s.io/events create",
    ];
    assert_rights("linkerd-cni-plugin", &plugin, &[]);
    assert_rights("linkerd-cni", &[&plugin[..], &repair].concat(), &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "debug");

    let release = ["linkerd-cni", "-n", "linkerd-cni"];
    let waiting = ["--wait", "--timeout", "60s"];
    helm.must(&[&["rollback"], &release[..], &["1"], &waiting].concat());
    assert_rights("linkerd-cni", &plugin, &agent);
    assert_eq!(node.linkerd_entry()["log_level"], "info");
    linkerd_check_finds_what_it_looks_up();
    passes_its_own_test(&helm);

    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

#[test]
fn a_release_of_linkerd2s_chart_is_upgraded_to_ours() {
    let node = Node::here();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let theirs = tempfile::tempdir().unwrap();
    let chart = upstreams_chart(theirs.path());
    // Their image cannot be had here; ours takes what theirs is told.
    let version = concat!("image.version=v", env!("CARGO_PKG_VERSION"));
    let mut install = vec!["install", "linkerd-cni", chart.to_str().unwrap()];
    install.extend(["-n", "linkerd-cni", "--create-namespace", "--set", version]);
    helm.must(&install);
    // Their pod is ready before it has done anything, so look at the node.
    kubectl_rollout();
    until_chained(&node);

    // No value of ours is there, and none of theirs may go.
    helm.run("upgrade", &["--reuse-values"]);
    let entry = node.linkerd_entry();
    assert_eq!(entry["linkerd"]["iptables-mode"], "nft", "{entry}");
    assert!(entry["linkerd"].get("pod-detection").is_none(), "{entry}");
    linkerd_check_finds_what_it_looks_up();

    helm.run("upgrade", &["--reset-then-reuse-values"]);
    let entry = node.linkerd_entry();
    assert_eq!(entry["linkerd"]["iptables-mode"], "auto", "{entry}");
    assert_eq!(entry["linkerd"]["pod-detection"], "annotations", "{entry}");
    linkerd_check_finds_what_it_looks_up();
    passes_its_own_test(&helm);

    helm.uninstall();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

#[test]
fn kubectl_applies_prunes_and_deletes_what_install_cni_prints() {
    let node = Node::here();
    let before = node.files();
    let repair = "repairController.enabled=true,networkPolicy.enabled=true";
    let objects = install_cni(&["--skip-inbound-ports", "9999", "--set", repair]);
    let applied = Applied;
    piped(&["apply", "-f", "-"], &objects);
    kubectl_rollout();
    linkerd_check_finds_what_it_looks_up();
    let ports = node.linkerd_entry()["linkerd"]["inbound-ports-to-ignore"].clone();
    assert_eq!(ports, json!(["4191", "4190", "9999"]));
    assert!(ours().contains("clusterrole.rbac.authorization.k8s.io/linkerd-cni-repair"));

    let allowed = install_cni(&["--prune-allowlist"]);
    let label = ["apply", "--prune", "-l", "linkerd.io/cni-resource=true"];
    let prune: Vec<_> = label
        .into_iter()
        .chain(allowed.lines())
        .chain(["-f", "-"])
        .collect();
    piped(&prune, &install_cni(&[]));
    kubectl_rollout();
    let left = ours();
    assert!(!left.iter().any(|name| name.contains("repair")), "{left:?}");
    assert!(
        !left.iter().any(|name| name.contains("networkpolicy")),
        "{left:?}"
    );
    linkerd_check_finds_what_it_looks_up();

    drop(applied);
    assert_eq!(ours(), BTreeSet::new());
    assert_eq!(node.files(), before, "deleting leaves the node's files");
}

/// What `install-cni` printed is in the cluster; dropping it deletes that, also after a failure.
struct Applied;

impl Drop for Applied {
    fn drop(&mut self) {
        piped(&["delete", "--timeout=60s", "-f", "-"], &install_cni(&[]));
    }
}

/// `helm test`, whose pod is there for no longer than that.
fn passes_its_own_test(helm: &Helm) {
    let said = helm.must(&[
        "test",
        "linkerd-cni",
        "-n",
        "linkerd-cni",
        "--timeout",
        "60s",
        "--logs",
    ]);
    assert!(
        said.contains("192.0.2.1:20001 was redirected to 4140"),
        "{said}"
    );
    let pods = kubectl(&["get", "pods", "-n", "linkerd-cni", "-o", "name"]);
    assert!(!pods.contains("test-linkerd-cni"), "{pods}");
}

/// All files in `ci` at once, as a dry run on the server, which knows what no schema does.
fn the_api_server_takes_every_use_of_the_chart(helm: &Helm) {
    let chart = repository().join("charts/linkerd2-cni");
    let mut all = String::new();
    let mut files = 0;
    for file in fs::read_dir(chart.join("ci")).unwrap() {
        let file = file.unwrap().path();
        let [chart, file] = [&chart, &file].map(|path| path.to_str().unwrap());
        let text = helm.must(&[
            "template",
            "linkerd-cni",
            chart,
            "-n",
            "linkerd-cni",
            "-f",
            file,
        ]);
        for object in text.split("\n---\n") {
            // Kinds of others, which this cluster lacks.
            let foreign = ["kind: PodMonitor", "kind: NetworkAttachmentDefinition"];
            if !foreign.iter().any(|kind| object.contains(kind)) {
                all += &format!("\n---\n{}", object.trim_start_matches("---\n"));
            }
        }
        files += 1;
    }
    // As the manager of the release's fields, so that those which a use lacks go.
    let dry = "apply --server-side --field-manager=helm --force-conflicts --dry-run=server --validate=strict -f -";
    let said = piped(&dry.split(' ').collect::<Vec<_>>(), &all);
    let daemonsets = said
        .lines()
        .filter(|line| line.starts_with("daemonset.apps/"));
    assert_eq!(daemonsets.count(), files, "{said}");
}

/// What the API server lets the account do everywhere, and besides in the release's namespace:
/// these and nothing more.
fn assert_rights(account: &str, everywhere: &[&str], here: &[&str]) {
    let sorted = |rights: &[&str]| rights.iter().map(|right| (*right).to_owned()).collect();
    let elsewhere: BTreeSet<String> = sorted(everywhere);
    assert_eq!(
        rights(account, "default"),
        elsewhere,
        "{account}, everywhere"
    );
    let all: BTreeSet<String> = sorted(&[everywhere, here].concat());
    assert_eq!(
        rights(account, "linkerd-cni"),
        all,
        "{account}, in linkerd-cni"
    );
}

/// As `kubectl auth can-i --list`, but for what every account may do.
fn rights(account: &str, namespace: &str) -> BTreeSet<String> {
    let of = |account: &str| -> BTreeSet<String> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        });
        let user = format!("--as=system:serviceaccount:linkerd-cni:{account}");
        let answer = piped(
            &["create", &user, "-o", "json", "-f", "-"],
            &review.to_string(),
        );
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let rules = answer["status"]["resourceRules"].as_array().unwrap();
        // A rule for a path of the API server would be one for all resources.
        let paths = answer["status"]["nonResourceRules"].as_array().unwrap();
        rules.iter().chain(paths).map(describe).collect()
    };
    let anybody = of("anybody");
    &of(account) - &anybody
}

/// "group/resource=name verb,verb"
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
    let (group, resource) = (
        words("apiGroups"),
        words("resources") + &words("nonResourceURLs"),
    );
    format!("{group}/{resource}{name} {}", words("verbs"))
}

/// What kubectl prunes by.
fn ours() -> BTreeSet<String> {
    let kinds = "namespaces,serviceaccounts,configmaps,daemonsets,networkpolicies,roles,rolebindings,clusterroles,clusterrolebindings";
    let label = "linkerd.io/cni-resource=true";
    let names = kubectl(&["get", kinds, "--all-namespaces", "-l", label, "-o", "name"]);
    names.lines().map(str::to_owned).collect()
}

fn install_cni(flags: &[&str]) -> String {
    let script = Command::new(repository().join("scripts/install-cni"))
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&script.stderr);
    assert!(script.status.success(), "install-cni {flags:?}: {said}");
    String::from_utf8(script.stdout).unwrap()
}

fn kubectl_rollout() {
    let rollout = [
        "rollout",
        "status",
        "daemonset/linkerd-cni",
        "-n",
        "linkerd-cni",
    ];
    kubectl(&[&rollout[..], &["--timeout=60s"]].concat());
}

fn until_chained(node: &Node) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !node.is_chained() {
        assert!(std::time::Instant::now() < deadline, "{:?}", node.files());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// kubectl with something to read. Its output; panics with what it said if it fails.
fn piped(args: &[&str], text: &str) -> String {
    let mut child = Command::new("kubectl")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text = text.to_owned();
    // It may answer before it has read all.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// A chart of linkerd2's shape: its values, object names, rights and pod, in words of our own.
fn upstreams_chart(directory: &Path) -> PathBuf {
    let chart = directory.join("linkerd2-cni");
    fs::create_dir_all(chart.join("templates")).unwrap();
    let values = fs::read_to_string(repository().join("chart-tests/values/upstream.yaml")).unwrap();
    // Helm adds this to a release whose chart has a subchart, as theirs.
    let values = values + "\npartials: {global: {}}\n";
    fs::write(chart.join("values.yaml"), values).unwrap();
    let metadata = json!({"apiVersion": "v2", "name": "linkerd2-cni", "version": "2026.8.3"});
    fs::write(chart.join("Chart.yaml"), metadata.to_string()).unwrap();
    let labels = json!({"linkerd.io/cni-resource": "true"});
    let meta = |name: &str| json!({"name": name, "namespace": "linkerd-cni", "labels": labels});
    let cluster_meta = json!({"name": "linkerd-cni", "labels": labels});
    let role = "rbac.authorization.k8s.io";
    let config = json!({
        "name": "linkerd-cni", "type": "linkerd-cni", "log_level": "info",
        "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
        "linkerd": {
            "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102,
            "ports-to-redirect": [], "inbound-ports-to-ignore": ["4191", "4190"], "simulate": false,
            "use-wait-flag": false, "iptables-mode": "nft", "ipv6": false,
        },
    });
    let objects = [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta("linkerd-cni")}),
        json!({
            "apiVersion": format!("{role}/v1"), "kind": "ClusterRole", "metadata": cluster_meta,
            "rules": [{
                "apiGroups": [""], "resources": ["pods", "nodes", "namespaces", "services"],
                "verbs": ["list", "get", "watch"],
            }],
        }),
        json!({
            "apiVersion": format!("{role}/v1"), "kind": "ClusterRoleBinding", "metadata": cluster_meta,
            "roleRef": {"apiGroup": role, "kind": "ClusterRole", "name": "linkerd-cni"},
            "subjects": [{"kind": "ServiceAccount", "name": "linkerd-cni", "namespace": "linkerd-cni"}],
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("linkerd-cni-config"),
            "data": {
                "dest_cni_net_dir": "/etc/cni/net.d", "dest_cni_bin_dir": "/opt/cni/bin",
                "cni_network_config": config.to_string(),
            },
        }),
        upstreams_daemonset(meta("linkerd-cni")),
    ];
    for (index, object) in objects.iter().enumerate() {
        let path = chart.join(format!("templates/{index}.yaml"));
        fs::write(path, object.to_string()).unwrap();
    }
    chart
}

fn upstreams_daemonset(mut metadata: Value) -> Value {
    metadata["labels"]["k8s-app"] = json!("linkerd-cni");
    let variable = |name: &str, key: &str| {
        let source = json!({"configMapKeyRef": {"name": "linkerd-cni-config", "key": key}});
        json!({"name": name, "valueFrom": source})
    };
    let volumes = ["/opt/cni/bin", "/etc/cni/net.d"];
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {"k8s-app": "linkerd-cni"}},
            "template": {
                "metadata": {
                    "labels": {"k8s-app": "linkerd-cni", "linkerd.io/cni-resource": "true"},
                    "annotations": {"linkerd.io/inject": "disabled"},
                },
                "spec": {
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "serviceAccountName": "linkerd-cni",
                    "containers": [{
                        "name": "install-cni",
                        "image": "{{ .Values.image.name }}:{{ .Values.image.version }}",
                        "env": [
                            variable("DEST_CNI_NET_DIR", "dest_cni_net_dir"),
                            variable("DEST_CNI_BIN_DIR", "dest_cni_bin_dir"),
                            variable("CNI_NETWORK_CONFIG", "cni_network_config"),
                            {"name": "SLEEP", "value": "true"},
                        ],
                        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "kill -15 1; sleep 15s"]}}},
                        "volumeMounts": [
                            {"name": "cni-bin-dir", "mountPath": format!("/host{}", volumes[0])},
                            {"name": "cni-net-dir", "mountPath": format!("/host{}", volumes[1])},
                            {"name": "linkerd-tmp-dir", "mountPath": "/tmp"},
                        ],
                        "securityContext": {"readOnlyRootFilesystem": true, "privileged": false},
                    }],
                    "volumes": [
                        {"name": "cni-bin-dir", "hostPath": {"path": volumes[0]}},
                        {"name": "cni-net-dir", "hostPath": {"path": volumes[1]}},
                        {"name": "linkerd-tmp-dir", "emptyDir": {}},
                    ],
                },
            },
        },
    })
}
