//! Faults of the chart's objects and of the DaemonSet's pods. One test causes all of them, one after the other, as each
//! installation takes half a minute.

use super::pods::{a_pod_is_stranded, an_add_fails, the_plugin_is_missing};
use super::shown::Shown;
use crate::extension::label;
use crate::fault_page::{FaultPage, Source};
use crate::helm::{Helm, NAMESPACE};
use crate::node::Node;
use crate::pods::{self, Pods, kubectl};
use crate::until::until;

#[test]
fn a_cluster_shows_the_faults_of_pods_and_of_the_installation_as_documented() {
    let node = Node::exclusive();
    let before = node.files();
    the_plugin_is_missing();

    // Those of other tests, which leave the namespace.
    let _ = pods::command(&["delete", "events", "--all", "-n", NAMESPACE]).output();
    let helm = Helm::new();
    let pods = Pods::default();
    pods.create(&[pods::validated("stranded", "1s")]);
    let exit = ".status.initContainerStatuses[0].lastState.terminated.exitCode";
    until("the validator fails", || pods.field("stranded", exit) == "95");
    helm.run("install", &["--set=repairController.enabled=true,repairController.mode=report"]);
    a_pod_is_stranded();
    an_add_fails(&pods);

    let restore = Restore;
    // In this order each fault hides the one before it, and one rollout ends all of them.
    the_plugins_account_is_missing();
    the_image_cannot_be_pulled();
    no_node_matches();
    the_namespace_rejects_the_agents_pods();

    drop((restore, pods));
    helm.remove();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

fn the_plugins_account_is_missing() {
    kubectl(&["delete", "serviceaccount", "linkerd-cni-plugin", "-n", NAMESPACE]);
    Shown::new(FaultPage::new("object-missing"))
        .check("linkerd-cni-plugin ServiceAccount exists")
        .compare();
}

fn the_image_cannot_be_pulled() {
    let spec = r#"{"spec":{"template":{"spec":{"imagePullSecrets":[{"name":"regcred"}],
        "containers":[{"name":"install-cni","image":"registry.invalid/linkerd/cni-plugin:v2.0.0"}]}}}}"#;
    patch(spec);
    let shown = Shown::new(FaultPage::new("image-pull")).event(
        Source::DaemonSetEvent,
        NAMESPACE,
        "FailedToRetrieveImagePullSecret",
        "regcred",
    );
    let shown = shown.cut_after("\"registry.invalid/linkerd/cni-plugin:v2.0.0\"");
    shown.check("Back-off pulling image").compare();
}

fn no_node_matches() {
    patch(r#"{"spec":{"template":{"spec":{"nodeSelector":{"example.com/mesh":"yes"}}}}}"#);
    Shown::new(FaultPage::new("node-out-of-scope")).check("DaemonSet is rolled out").compare();
}

fn the_namespace_rejects_the_agents_pods() {
    label("pod-security.kubernetes.io/enforce=baseline");
    undo();
    Shown::new(FaultPage::new("namespace-label"))
        .check("namespace linkerd-cni admits the agent's pods")
        .event(Source::DaemonSetEvent, NAMESPACE, "FailedCreate", "violates PodSecurity")
        .compare();
}

fn patch(spec: &str) {
    kubectl(&["patch", "daemonset", "linkerd-cni", "-n", NAMESPACE, "-p", spec]);
}

/// Undoes all patches.
fn undo() {
    kubectl(&["rollout", "undo", "daemonset/linkerd-cni", "--to-revision=1", "-n", NAMESPACE]);
}

/// Lets the DaemonSet's pods run again when it is dropped, so that the agent can uninstall.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        label("pod-security.kubernetes.io/enforce=privileged");
        // Without the plugin's account no agent gets ready. A change has the DaemonSet's controller try again at once,
        // instead of after its growing delay.
        for words in [
            "create serviceaccount linkerd-cni-plugin",
            "rollout undo daemonset/linkerd-cni --to-revision=1",
            "annotate daemonset/linkerd-cni --overwrite example.com/restored=yes",
            "rollout status daemonset/linkerd-cni --timeout=90s",
        ] {
            let _ = pods::command(&format!("{words} -n {NAMESPACE}")).output();
        }
    }
}
