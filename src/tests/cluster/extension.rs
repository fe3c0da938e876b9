//! `linkerd cni` on a real cluster. `catalogue` has what it says of faults.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::helm::NAMESPACE;
use crate::node::netns_of;
use crate::pods::{self, Pods, kubectl};

/// Runs `linkerd cni` and prints its output. Returns whether it succeeded, and the output.
pub fn cni(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli")).args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "", "{args:?}");
    println!("$ linkerd cni {}\n{text}", args.join(" "));
    (output.status.success(), text)
}

pub fn the_namespace_passes_the_checks_before_an_installation() {
    // Other tests leave the namespace, without this label.
    let _ = pods::command(&format!("create namespace {NAMESPACE}")).output();
    label("pod-security.kubernetes.io/enforce=privileged");
    let (passes, report) = cni(&["check", "--pre", "--wait=0s"]);
    assert!(passes && !report.contains('‼'), "{report}");
}

pub fn linkerd_cni_reports_a_healthy_cluster_and_explains_a_pod(pods: &Pods) {
    let (passes, report) = cni(&["check"]);
    assert!(passes && !report.contains('‼'), "{report}");
    let (passes, json) = cni(&["check", "--output=json", "--as-group=[]", "--proxy=false"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(passes && json["success"] == true, "{json}");
    let (passes, explained) = cni(&["explain", "meshed", "-n", "meshed"]);
    assert!(passes);
    let listed = netns_of(&pods.ip("meshed")).rules();
    let comments = |text: &str| -> BTreeSet<String> {
        let parts = text.split("comment \"").skip(1);
        parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())).collect()
    };
    assert_eq!(comments(&explained), comments(&listed), "{explained}\n{listed}");
}

pub fn label(label: &str) {
    kubectl(&format!("label --overwrite namespace {NAMESPACE} {label}"));
}
