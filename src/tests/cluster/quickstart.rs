//! `scripts/quickstart` on a cluster that has an upstream release, and on an empty cluster.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::agent::clean;
use crate::helm::{Helm, NAMESPACE};
use crate::node::Node;
use crate::pods::kubectl;
use crate::until::until;

const KUBECONFIG: &str = "/var/lib/linkerd2-cni-cluster/admin.kubeconfig";

/// Runs the script and returns whether it succeeded, and its output. There is no docker engine, so that the script
/// uses this machine's cluster if --context is not set.
fn quickstart(arguments: &[&str]) -> (bool, String) {
    let begin = Instant::now();
    let without_engine = tempfile::tempdir().unwrap();
    testkit::write_program(without_engine.path().join("docker"), "#!/bin/sh\nexit 1\n");
    let path = std::env::var("PATH").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/quickstart");
    let mut command = Command::new(script);
    // With the variables of `cargo test`, every package of the image would be compiled again.
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
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    println!("{:>6.1?} quickstart {arguments:?}\n{printed}", begin.elapsed());
    (output.status.success(), printed)
}

/// Every object with its version, except kinds of objects that Kubernetes updates all the time.
fn objects() -> BTreeSet<String> {
    let kinds = kubectl("api-resources --verbs=list -o name");
    let changing = ["events", "leases", "nodes", "componentstatuses"];
    let kinds: Vec<_> =
        kinds.lines().filter(|kind| !changing.contains(&kind.split('.').next().unwrap())).collect();
    let line = "{.kind} {.metadata.namespace} {.metadata.name} {.metadata.resourceVersion}";
    let path = format!("jsonpath={{range .items[*]}}{line}{{\"\\n\"}}{{end}}");
    let objects = kubectl(&["get", &kinds.join(","), "--all-namespaces", "-o", &path]);
    objects.lines().map(str::to_owned).collect()
}

/// Deletes the namespace that other tests leave, and waits until no namespace of theirs is being deleted.
pub fn delete_release_namespace() {
    kubectl(&format!("delete namespace {NAMESPACE} --ignore-not-found --timeout=60s"));
    until("no namespace is being deleted", || {
        let phases = "jsonpath={.items[*].status.phase}";
        !kubectl(&format!("get namespaces -o {phases}")).contains("Terminating")
    });
}

/// The cluster's namespaces, without that of the test `idle`, which runs beside the others.
fn namespaces() -> BTreeSet<String> {
    let names = kubectl("get namespaces -o name");
    names.lines().filter(|name| *name != "namespace/idle").map(str::to_owned).collect()
}

#[test]
fn quickstart_changes_nothing_where_an_upstream_release_is() {
    let node = Node::exclusive();
    delete_release_namespace();
    let untouched = node.files();
    let helm = Helm::new();
    helm.install_upstream();
    kubectl("rollout status -n linkerd-cni ds/linkerd-cni");
    until("the plugin is chained", || node.is_chained());
    let mut before = (objects(), node.files());
    until("no object changes", || {
        let now = (objects(), node.files());
        let at_rest = now == before;
        before = now;
        at_rest
    });

    let context = ["--context", "one-node"];
    let image = ["--image", "example.com/cni-plugin:v1"];
    for arguments in [&[][..], &[context, image].concat()] {
        let (success, printed) = quickstart(arguments);
        assert!(!success, "{printed}");
        for found in [
            "helm release linkerd-cni in namespace linkerd-cni",
            "DaemonSet linkerd-cni in namespace linkerd-cni",
            "Namespace linkerd-cni",
            "ClusterRole linkerd-cni",
            "ConfigMap linkerd-cni-config",
            "helm uninstall linkerd-cni -n linkerd-cni",
        ] {
            assert!(printed.contains(found), "{found}: {printed}");
        }
        assert_eq!((objects(), node.files()), before, "{arguments:?}");
    }
    for arguments in [&["--down"][..], &["--down", "--context", "one-node"]] {
        let (success, printed) = quickstart(arguments);
        assert!(success, "{printed}");
        assert!(printed.contains("nothing that quickstart created"), "{printed}");
        assert_eq!((objects(), node.files()), before, "{arguments:?}");
    }
    // An agent of upstream's chart has no proof of an uninstall.
    helm.uninstall();
    clean(&node, &untouched);
}

#[test]
fn quickstart_runs_twice_and_down_leaves_the_cluster_as_it_was() {
    let node = Node::exclusive();
    delete_release_namespace();
    let before = (namespaces(), node.files());
    for _ in 0..2 {
        let (success, printed) = quickstart(&[]);
        assert!(success && printed.contains("proxy-outbound"), "{printed}");
    }
    // The same cluster, selected by its context, with an image that is already on the node.
    let version = concat!("cr.l5d.io/linkerd/cni-plugin:v", env!("CARGO_PKG_VERSION"));
    let (success, printed) = quickstart(&["--context", "one-node", "--image", version]);
    assert!(success && printed.contains("helm test"), "{printed}");

    // A namespace of quickstart's stays if it holds objects of others.
    let theirs = ["configmap", "theirs", "-n", "linkerd2-cni-quickstart"];
    kubectl(&[&["create"], &theirs[..]].concat());
    let (success, printed) = quickstart(&["--down", "--context", "one-node"]);
    assert!(success && printed.contains("ConfigMap theirs"), "{printed}");
    kubectl(&[&["delete"], &theirs[..]].concat());

    let (success, printed) = quickstart(&["--down"]);
    assert!(success && printed.contains("Removed"), "{printed}");
    assert_eq!((namespaces(), node.files()), before);
    let (success, printed) = quickstart(&["--down"]);
    assert!(success && printed.contains("nothing that quickstart created"), "{printed}");
}
