//! Helm takes over the objects that `linkerd install-cni | kubectl apply -f -` created, as
//! docs/migration.md says.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::chart::Objects;

use crate::agent::{DAEMONSET, wait_for_rollout};
use crate::api;
use crate::burst;
use crate::chart::Applied;
use crate::documented::{Shell, commands_on_page};
use crate::helm::{Helm, NAMESPACE};
use crate::kubectl::{command, kubectl_with_stdin};
use crate::node::Node;
use crate::scene::Scene;
use crate::until::until_within;
use crate::upstream::{self, Program};

const WAIT: Duration = Duration::from_secs(60);
/// Without it, Helm 4 applies on the server, where the fields belong to kubectl.
const FLAG: &str = " --server-side=false";

#[test]
fn helm_takes_over_the_objects_that_kubectl_applied() {
    let scene = Scene::begin();
    let node = &scene.node;
    let helm = &scene.helm;
    let before = &scene.before;
    let shell = Shell::new();
    let commands = commands_on_page("docs/migration.md", |text| text.contains("--take-ownership"));
    assert_eq!(commands.len(), 1, "{commands:?}");
    let documented = &commands[0];
    assert!(documented.contains(FLAG), "{documented}");

    let _applied = apply_upstream(node, helm);
    burst::start_validated_pods_during("helm install --take-ownership", || {
        shell.must(documented);
        wait_for_rollout();
    });
    assert_taken_over(node);
    assert!(
        agent_container()["lifecycle"]["preStop"].is_object(),
        "upstream's hook stays, as the page says"
    );
    for patch in commands_on_page("docs/migration.md", |text| text.starts_with("kubectl patch ")) {
        shell.must(&patch);
    }
    assert_eq!(agent_container()["lifecycle"], Value::Null);
    helm.run("upgrade", &["--set", "logLevel=debug"]);
    helm.remove();
    assert_eq!(node.files(), *before);

    let _applied = apply_upstream(node, helm);
    let output = shell.run(&documented.replace(FLAG, ""));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("kubectl-client-side-apply"), "{error}");
    assert!(node.is_chained(), "the agents run unchanged");
    shell.must(&documented.replace("helm install ", "helm upgrade --install "));
    wait_for_rollout();
    assert_taken_over(node);
    helm.remove();

    let _applied = apply_upstream(node, helm);
    shell.must(&documented.replace(FLAG, "").replace("helm install ", "helm3 install "));
    wait_for_rollout();
    assert_taken_over(node);
    scene.remove();
}

/// Applies the objects of upstream's chart with kubectl. Dropping the returned value deletes them.
fn apply_upstream(node: &Node, helm: &Helm) -> Applied {
    let chart = tempfile::tempdir().unwrap();
    upstream::write_chart(chart.path(), Program::OurAgent);
    let version = concat!("image.version=v", env!("CARGO_PKG_VERSION"));
    let path = chart.path().to_str().unwrap();
    let manifests =
        helm.must(&["template", "linkerd-cni", path, "-n", NAMESPACE, "--set", version]);
    // Other tests leave the namespace.
    let _ = command(&format!("create namespace {NAMESPACE}")).output();
    kubectl_with_stdin(&format!("apply -n {NAMESPACE} -f -"), &manifests);
    let applied = Applied(manifests);
    until_within(WAIT, "upstream's entry is in the conflist", || node.entry().is_some());
    applied
}

fn assert_taken_over(node: &Node) {
    assert_eq!(node.linkerd_entry()["linkerd"]["iptables-mode"], "auto");
    let capabilities = &agent_container()["securityContext"]["capabilities"];
    assert_eq!(capabilities["drop"], json!(["ALL"]));
    let role = api::get("/apis/rbac.authorization.k8s.io/v1/clusterroles/linkerd-cni");
    let rules = role["rules"].as_array().unwrap();
    let verbs: Vec<&Value> = rules.iter().map(|rule| &rule["verbs"]).collect();
    assert_eq!(json!(verbs), json!([["get"], ["get"], ["get"]]));
}

/// Returns the agent's container in the DaemonSet.
fn agent_container() -> Value {
    Objects(vec![api::get(DAEMONSET)]).container("install-cni").clone()
}
