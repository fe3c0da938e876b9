//! Runs the built repair controller against a fake API server, and in real network
//! namespaces, which needs root.
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod api;
mod audits;
mod compare;
mod controller;
mod deletions;
mod drift;
mod in_place;
mod lists;
mod modes;
mod node;
mod process;
mod refusals;
mod skipped_pods;

use serde_json::{Value, json};
use testkit::{mounts, namespaces, promtool, until, unwritable};

fn pod(name: &str, validator: Value) -> Value {
    let mut validator = validator;
    validator["name"] = json!("linkerd-network-validator");
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "emojivoto",
            "name": name,
            "uid": format!("uid-of-{name}"),
            "resourceVersion": "101",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"linkerd.io/proxy-version": "edge-1"},
            "labels": {"linkerd.io/control-plane-ns": "linkerd"},
            "ownerReferences": [{"uid": format!("owner-of-{name}"), "controller": true}],
        },
        "spec": {
            "nodeName": "node-1",
            "initContainers": [{"name": "linkerd-network-validator"}],
        },
        "status": {"phase": "Pending", "initContainerStatuses": [validator]},
    })
}

fn ended(code: i32) -> Value {
    json!({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": code}}})
}

fn stranded(name: &str) -> Value {
    pod(name, ended(95))
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/emojivoto/pods/{name}")
}
