//! `scripts/quickstart` on a cluster that others use, and on an empty one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::helm::Helm;
use crate::node::Node;
use crate::pods::kubectl;
use crate::until::until;

const KUBECONFIG: &str = "/var/lib/linkerd2-cni-cluster/admin.kubeconfig";

/// Runs the script; whether it succeeded, and what it printed. No docker engine is found, so that
/// without --context it uses this machine's cluster.
#[allow(clippy::print_stdout, reason = "shows where a test's time goes")]
fn quickstart(arguments: &[&str]) -> (bool, String) {
    let begin = Instant::now();
    let without_engine = tempfile::tempdir().unwrap();
    let docker = without_engine.path().join("docker");
    fs::write(&docker, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&docker, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/quickstart");
    let mut command = Command::new(script);
    // What `cargo test` sets would have every package compiled anew for the image.
    for (name, _) in std::env::vars() {
        if (name.starts_with("CARGO") && name != "CARGO_HOME") || name == "LD_LIBRARY_PATH" {
            command.env_remove(name);
        }
    }
    let output = command
        .args(arguments)
        .env("PATH", format!("{}:{path}", without_engine.path().display()))
        .env("KUBECONFIG", KUBECONFIG)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    println!("{:>6.1?} quickstart {arguments:?}\n{said}", begin.elapsed());
    (output.status.success(), said)
}

/// Every object with its version, without those that change by themselves.
fn objects() -> BTreeSet<String> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let changing = ["events", "leases", "nodes", "componentstatuses"];
    let kinds: Vec<_> =
        kinds.lines().filter(|kind| !changing.contains(&kind.split('.').next().unwrap())).collect();
    let line = "{.kind} {.metadata.namespace} {.metadata.name} {.metadata.resourceVersion}";
    let path = format!("jsonpath={{range .items[*]}}{line}{{\"\\n\"}}{{end}}");
    let objects = kubectl(&["get", &kinds.join(","), "--all-namespaces", "-o", &path]);
    objects.lines().map(str::to_owned).collect()
}

fn namespaces() -> BTreeSet<String> {
    let names = kubectl(&["get", "namespaces", "-o", "name"]);
    names.lines().map(str::to_owned).collect()
}

#[test]
fn quickstart_changes_nothing_where_an_upstream_release_is() {
    let node = Node::here();
    let untouched = node.files();
    let helm = Helm::with_local_repository();
    helm.install_upstream();
    kubectl(&["rollout", "status", "-n", "linkerd-cni", "ds/linkerd-cni"]);
    until("the plugin is chained", || node.is_chained());
    let mut before = (objects(), node.files());
    until("the cluster is at rest", || {
        let now = (objects(), node.files());
        let at_rest = now == before;
        before = now;
        at_rest
    });

    let context = ["--context", "one-node"];
    let image = ["--image", "example.com/cni-plugin:v1"];
    for arguments in [&[][..], &[context, image].concat()] {
        let (success, said) = quickstart(arguments);
        assert!(!success, "{said}");
        for found in [
            "helm release linkerd-cni in namespace linkerd-cni",
            "DaemonSet linkerd-cni in namespace linkerd-cni",
            "Namespace linkerd-cni",
            "ClusterRole linkerd-cni",
            "ConfigMap linkerd-cni-config",
            "helm uninstall linkerd-cni -n linkerd-cni",
        ] {
            assert!(said.contains(found), "{found}: {said}");
        }
        assert_eq!((objects(), node.files()), before, "{arguments:?}");
    }
    for arguments in [&["--down"][..], &["--down", "--context", "one-node"]] {
        let (success, said) = quickstart(arguments);
        assert!(success, "{said}");
        assert!(said.contains("nothing that quickstart made"), "{said}");
        assert_eq!((objects(), node.files()), before, "{arguments:?}");
    }
    helm.uninstall();
    assert_eq!(node.files(), untouched, "uninstalling leaves the node's files");
}

#[test]
fn quickstart_runs_twice_and_down_leaves_the_cluster_as_it_was() {
    let node = Node::here();
    let before = (namespaces(), node.files());
    for _ in 0..2 {
        let (success, said) = quickstart(&[]);
        assert!(success && said.contains("proxy-outbound"), "{said}");
    }
    // The same cluster by its context, with an image that its node has.
    let version = concat!("cr.l5d.io/linkerd/cni-plugin:v", env!("CARGO_PKG_VERSION"));
    let (success, said) = quickstart(&["--context", "one-node", "--image", version]);
    assert!(success && said.contains("helm test"), "{said}");

    // What others put into a namespace of quickstart's is kept, and the namespace with it.
    let theirs = ["configmap", "theirs", "-n", "linkerd2-cni-quickstart"];
    kubectl(&[&["create"], &theirs[..]].concat());
    let (success, said) = quickstart(&["--down", "--context", "one-node"]);
    assert!(success && said.contains("ConfigMap theirs"), "{said}");
    kubectl(&[&["delete"], &theirs[..]].concat());

    let (success, said) = quickstart(&["--down"]);
    assert!(success && said.contains("Removed"), "{said}");
    assert_eq!((namespaces(), node.files()), before);
    let (success, said) = quickstart(&["--down"]);
    assert!(success && said.contains("nothing that quickstart made"), "{said}");
}
