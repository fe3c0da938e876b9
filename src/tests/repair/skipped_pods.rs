//! Tests which pods are audited and repaired: pods that the plugin skips, and pods whose proxy was
//! not added by the injector. Needs root.

use serde_json::{Value, json};

use crate::api::Answer;
use crate::node::{Node, entry, running, waiting};
use crate::until::until;

/// Returns plugin entries with which the plugin installs no rules in the pod `web-1`.
fn entries_without_rules() -> [Value; 2] {
    let mut excluded = entry("auto");
    excluded["linkerd"]["exclude-namespaces"] = json!(["emojivoto"]);
    let mut agent = entry("auto");
    agent["linkerd"]["agent-namespace"] = json!("emojivoto");
    agent["linkerd"]["agent-daemonset"] = json!("web");
    [excluded, agent]
}

#[test]
fn pods_that_the_plugin_skips_are_not_audited() {
    for entry in entries_without_rules() {
        let node = Node::with(&running());
        node.chain(&entry);
        node.api.state().evict = Answer::Status(201);
        let controller = node.auditing(&["--mode=delete"]);
        controller.until_metric_reaches("audits_total", 2);
        for metric in ["audit_pods_incomplete_total", "audit_errors_total"] {
            assert_eq!(controller.metric(metric), 0, "{metric} {entry}");
        }
        assert_eq!(controller.metric("pods_deleted_total"), 0, "{entry}");
    }
}

/// Returns the pod without the injector's label, as if its author had added the proxy.
fn hand_made(mut pod: Value, annotations: Value) -> Value {
    pod["metadata"]["labels"] = json!({});
    pod["metadata"]["annotations"] = annotations;
    pod
}

#[test]
fn pod_with_a_proxy_is_audited_and_repaired_with_any_labels_and_annotations() {
    let annotated = json!({"config.linkerd.io/proxy-uid": "2102"});
    let disabled = json!({"linkerd.io/inject": "disabled"});
    for annotations in [annotated, json!({}), disabled] {
        for pod in [running(), waiting(), partly_running()] {
            let node = Node::with(&hand_made(pod, annotations.clone()));
            let controller = node.auditing(&[]);
            until("two audits or a repair", || {
                controller.metric("audits_total") >= 2 || !node.ruleset().is_empty()
            });
            controller.until_metric_is("pods_repaired_total", 1);
            assert!(node.ruleset().contains("redirect to :4140"), "{annotations}");
        }
    }
}

/// Returns the pod while one of its containers cannot start, so that its phase stays Pending. The
/// debug container of `kubectl debug --profile=restricted` is an example if its image runs as root.
fn partly_running() -> Value {
    let mut pod = running();
    pod["status"]["phase"] = json!("Pending");
    pod["status"]["containerStatuses"] = json!([
        {"name": "debugger", "state": {"waiting": {"reason": "CreateContainerConfigError"}}},
        {"name": "linkerd-proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
    ]);
    pod
}

#[test]
fn mode_delete_only_reports_a_pod_whose_replacement_may_start_without_rules_again() {
    for pod in [waiting(), running()] {
        let node = Node::with(&hand_made(pod, json!({})));
        node.api.state().evict = Answer::Status(201);
        let controller = node.auditing(&["--mode=delete"]);
        controller.until_metric_is("pods_skipped_total", 1);
        controller.until_logged("the pod has no annotation of a proxy");
        controller.until_metric_reaches("audits_total", 2);
        assert!(node.changes().is_empty(), "{:?}", node.changes());
    }
}

#[test]
fn mode_delete_deletes_a_copy_of_kubectl_debug_only_with_delete_unmanaged() {
    let mut copy = hand_made(running(), json!({}));
    copy["metadata"]["ownerReferences"] = json!([]);
    for delete_unmanaged in [false, true] {
        let node = Node::with(&copy);
        node.api.state().evict = Answer::Status(201);
        let arguments = ["--audit-seconds=1", "--mode=delete", "--delete-unmanaged"];
        let controller = node.controller(&arguments[..2 + usize::from(delete_unmanaged)]);
        let (expected, other) = if delete_unmanaged {
            ("pods_deleted_total", "pods_skipped_total")
        } else {
            ("pods_skipped_total", "pods_deleted_total")
        };
        controller.until_metric_reaches(expected, 1);
        assert_eq!(controller.metric(other), 0, "delete_unmanaged {delete_unmanaged}");
    }
}

#[test]
fn mode_report_also_reports_a_pod_without_annotations_of_linkerd() {
    let node = Node::with(&hand_made(waiting(), json!({})));
    let controller = node.controller(&["--mode=report"]);
    controller.until_metric_reaches("pods_reported_total", 1);
    assert_eq!(controller.metric("pods_skipped_total"), 0);
}

#[test]
fn stranded_pod_that_needs_no_rules_is_reported_in_every_mode() {
    let mut proxy_init = waiting();
    let validator = json!({"name": "linkerd-network-validator"});
    proxy_init["spec"]["initContainers"] = json!([{"name": "linkerd-init"}, validator]);
    let mut no_proxy = waiting();
    no_proxy["spec"]["containers"] = json!([{"name": "app"}]);
    let remedy = "remove the init container linkerd-network-validator";
    let [excluded, agent] = entries_without_rules();
    for (mode, entry, pod, remedy) in [
        ("delete", entry("auto"), proxy_init, remedy),
        ("in-place", entry("auto"), no_proxy, remedy),
        ("delete", excluded.clone(), waiting(), ""),
        ("in-place", agent, waiting(), ""),
        ("report", excluded, waiting(), ""),
    ] {
        let node = Node::with(&pod);
        node.chain(&entry);
        let controller = node.controller(&[&format!("--mode={mode}")]);
        controller.until_metric_is("pods_skipped_total", 1);
        until("an event", || node.events().len() == 1);
        let event = &node.events()[0];
        assert_eq!(event["action"], "Skipping", "{mode} {entry}");
        let note = event["note"].as_str().unwrap();
        let reason = "Pod skipped for now: the plugin installs no redirect rules in this pod (";
        assert!(note.starts_with(reason) && note.contains(remedy), "{mode} {entry}: {note}");
        controller.until_logged(note);
        assert!(node.changes().is_empty(), "{mode} {entry}: {:?}", node.changes());
        assert_eq!(node.ruleset(), "", "{mode} {entry}");
    }
}
