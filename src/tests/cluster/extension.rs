//! `linkerd cni` on a real cluster. `catalogue` has its texts about faults.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::helm::NAMESPACE;
use crate::kubectl::{command, kubectl};
use crate::node::netns_of;
use crate::pods::Pods;

/// Runs `linkerd cni` and prints its output. Returns whether it succeeded, and the output.
pub fn linkerd_cni(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli")).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "", "{args:?}");
    println!("$ linkerd cni {}\n{text}", args.join(" "));
    (output.status.success(), text)
}

pub fn assert_checks_before_installation_pass() {
    // Other tests leave the namespace, without this label.
    let _ = command(&format!("create namespace {NAMESPACE}")).output();
    label("pod-security.kubernetes.io/enforce=privileged");
    let (passes, report) = linkerd_cni(&["check", "--pre", "--wait=0s"]);
    assert!(passes && !report.contains('‼'), "{report}");
}

/// Asserts that `check` finds no problem, and that `explain` names the rules in the netns of the
/// pod `meshed`.
pub fn assert_healthy_cluster_is_reported_and_pod_explained(pods: &Pods) {
    let (passes, report) = linkerd_cni(&["check"]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, json) = linkerd_cni(&["check", "--output=json", "--as-group=[]", "--proxy=false"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(passes && json["success"] == true, "{json}");
    let (passes, explanation) = linkerd_cni(&["explain", "meshed", "-n", "meshed"]);
    assert!(passes);
    let rules = netns_of(&pods.ip("meshed")).rules();
    assert_eq!(comments(&explanation), comments(&rules), "{explanation}\n{rules}");
}

/// Returns the comments of the rules in a text.
fn comments(text: &str) -> BTreeSet<String> {
    let mut comments = BTreeSet::new();
    for part in text.split("comment \"").skip(1) {
        if let Some((comment, _)) = part.split_once('"') {
            comments.insert(comment.to_owned());
        }
    }
    comments
}

/// Sets a label of the release's namespace.
pub fn label(label: &str) {
    kubectl(&format!("label --overwrite namespace {NAMESPACE} {label}"));
}
