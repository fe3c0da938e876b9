//! Mode `delete` and the controllers that own pods: a pod without one is not deleted.

use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::controller::Controller;
use crate::modes::changed;
use crate::until::until;
use crate::{path, stranded};

/// A stranded pod with these owners.
fn owned_by(name: &str, owners: Value) -> Value {
    changed(name, "/metadata/ownerReferences", owners)
}

#[test]
fn mode_delete_leaves_a_pod_without_a_controller_and_reports_the_pod_once() {
    let api = Api::start();
    api.state().evict = Answer::Status(201);
    let controller = Controller::watching(&api);
    let unowned = owned_by("unowned", json!([]));
    let owned = owned_by("owned", json!([{"uid": "a", "controller": false}, {"uid": "b"}]));
    for pod in [&unowned, &owned, &unowned, &owned] {
        api.modify(pod);
    }
    // The queue keeps its order: when the next pod is evicted, the others are finished.
    api.modify(&stranded("web-1"));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.evictions(), [path("web-1") + "/eviction"]);
    assert!(api.deleted().is_empty());
    assert_eq!(controller.metric("pods_skipped_total"), 2);
    controller.logs("WARN Pod skipped for now: the pod has no controller that would replace it");
    until("an Event on each pod", || api.events().len() == 3);
    for (event, name) in api.events().iter().zip(["unowned", "owned"]) {
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["action"], "Skipping");
        assert_eq!(event["regarding"]["name"], name);
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("repairController.deleteUnmanaged=true"), "{note}");
    }
    // A new StatefulSet adopts the pods of a deleted one.
    let mut adopted = unowned;
    adopted["metadata"]["ownerReferences"] = json!([{"uid": "new", "controller": true}]);
    api.modify(&adopted);
    controller.counts("pods_deleted_total", 2);
}

#[test]
fn mode_delete_deletes_a_pod_without_a_controller_if_the_chart_asks_for_it() {
    let api = Api::start();
    let controller = Controller::with(&api, &["--delete-unmanaged"]);
    api.modify(&owned_by("unowned", json!([])));
    controller.counts("pods_deleted_total", 1);
    assert_eq!(api.deleted(), [path("unowned")]);
}

#[test]
fn mode_delete_leaves_the_mirror_pod_of_a_static_pod_and_reports_it_once() {
    for arguments in [&[][..], &["--delete-unmanaged"]] {
        let api = Api::start();
        let controller = Controller::with(&api, arguments);
        let node = json!([{"kind": "Node", "uid": "node-1", "controller": true}]);
        for _ in 0..2 {
            api.modify(&owned_by("static", node.clone()));
        }
        // The queue keeps its order: when the next pod is deleted, the first is finished.
        api.modify(&stranded("web-1"));
        controller.counts("pods_deleted_total", 1);
        assert_eq!(api.deleted(), [path("web-1")]);
        until("an Event on each pod", || api.events().len() == 2);
        let note = api.events()[0]["note"].as_str().unwrap().to_owned();
        assert!(note.starts_with("Pod skipped: it is a static pod"), "{note}");
    }
}

#[test]
fn a_pod_that_lost_its_controller_meanwhile_is_not_deleted() {
    let api = Api::start();
    let mut orphan = owned_by("web-0", json!([]));
    orphan["metadata"]["resourceVersion"] = json!("105");
    api.knows(&orphan);
    api.state().delete = Answer::Status(409);
    let controller = Controller::watching(&api);
    api.modify(&stranded("web-0"));
    controller.counts("pods_skipped_total", 1);
    assert_eq!(api.deleted(), [path("web-0")], "no second try");
}
