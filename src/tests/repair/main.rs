//! Tests of the repair controller. They run it against a fake API server, and in real network
//! namespaces, which needs root.
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod api;
mod audits;
mod controller;
mod deletions;
mod drift;
mod in_place;
mod inner_interfaces;
mod lists;
mod modes;
mod node;
mod process;
mod refusals;
mod skipped_pods;
mod suspension;
mod unknown;

use serde_json::{Value, json};
use testkit::chart::yaml;
use testkit::{mounts, namespaces, promtool, until, unwritable};

/// Returns a pod whose validator has this container status.
fn pod(name: &str, validator: Value) -> Value {
    let mut validator = validator;
    validator["name"] = json!("linkerd-network-validator");
    let mut pod = yaml(include_str!("pod.yaml"));
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["uid"] = format!("uid-of-{name}").into();
    pod["metadata"]["ownerReferences"][0]["uid"] = format!("owner-of-{name}").into();
    pod["status"]["initContainerStatuses"] = json!([validator]);
    pod
}

/// Returns the status of a container that exited with this code and waits for its restart.
fn ended(code: i32) -> Value {
    json!({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": code}}})
}

/// Returns a pod whose validator has failed because the pod has no redirect rules.
fn stranded(name: &str) -> Value {
    pod(name, ended(95))
}

/// Returns the path of a pod in the API.
fn path(name: &str) -> String {
    format!("/api/v1/namespaces/emojivoto/pods/{name}")
}
