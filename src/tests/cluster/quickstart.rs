//! `scripts/quickstart` on an empty cluster, and on one that has an upstream release.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::api;
use crate::helm::NAMESPACE;
use crate::kubectl::kubectl;
use crate::node::Node;
use crate::pods::namespace_path;
use crate::until::until;

const KUBECONFIG: &str = "/var/lib/linkerd2-cni-cluster/admin.kubeconfig";

/// Runs `scripts/quickstart`. Returns whether it succeeds, and its output. The script finds no
/// docker engine, so it uses this machine's cluster if --context is not set.
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
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    println!("{:>6.1?} quickstart {arguments:?}\n{printed}", begin.elapsed());
    (output.status.success(), printed)
}

/// Deletes the namespace that other tests leave, and waits until no namespace of theirs is being
/// deleted.
pub fn delete_release_namespace() {
    let path = namespace_path(NAMESPACE);
    if !api::admin().is_missing(&path) {
        api::delete(&path);
    }
    until("no namespace is being deleted", || {
        api::list("/api/v1/namespaces").iter().all(|one| one["status"]["phase"] != "Terminating")
    });
}

fn namespaces() -> BTreeSet<String> {
    let namespaces = api::list("/api/v1/namespaces");
    namespaces.iter().map(|one| one["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Asserts that quickstart refuses a cluster that has an upstream release.
/// `chart-tests/quickstart.rs` shows that it changes nothing then, and that `--down` does not
/// remove the release.
pub fn assert_quickstart_refuses_upstream_release() {
    let (success, printed) = quickstart(&[]);
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
}

#[test]
fn quickstart_succeeds_twice_and_down_restores_the_cluster() {
    let node = Node::exclusive();
    delete_release_namespace();
    let before = (namespaces(), node.files());
    let (success, printed) = quickstart(&[]);
    assert!(success && printed.contains("proxy-outbound"), "{printed}");
    // The same cluster, selected by its context, with an image that is already on the node.
    let version = concat!("cr.l5d.io/linkerd/cni-plugin:v", env!("CARGO_PKG_VERSION"));
    let (success, printed) = quickstart(&["--context", "one-node", "--image", version]);
    assert!(success && printed.contains("helm test"), "{printed}");

    // A namespace of quickstart stays if it has objects that quickstart did not create.
    let foreign_object = "configmap theirs -n linkerd2-cni-quickstart";
    kubectl(&format!("create {foreign_object}"));
    let (success, printed) = quickstart(&["--down", "--context", "one-node"]);
    assert!(success && printed.contains("ConfigMap theirs"), "{printed}");
    kubectl(&format!("delete {foreign_object}"));

    let (success, printed) = quickstart(&["--down"]);
    assert!(success && printed.contains("Removed"), "{printed}");
    assert_eq!((namespaces(), node.files()), before);
    let (success, printed) = quickstart(&["--down"]);
    assert!(success && printed.contains("nothing that quickstart created"), "{printed}");
}
