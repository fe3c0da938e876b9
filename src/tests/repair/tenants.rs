//! Namespaces of several tenants: the pods of one do not hold back the repair of another's.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Api;
use crate::controller::Controller;
use crate::stranded;
use crate::until::{until, until_within};

fn stranded_in(namespace: &str, name: &str, created: &str) -> Value {
    let mut pod = stranded(name);
    pod["metadata"]["namespace"] = json!(namespace);
    pod["metadata"]["creationTimestamp"] = json!(created);
    pod
}

#[test]
fn a_namespace_with_many_stranded_pods_does_not_use_up_the_repair_budget_of_others() {
    let api = Api::start();
    let old = "2026-01-01T00:00:00Z";
    let many = (0..8).map(|number| stranded_in("many", &format!("web-{number}"), old));
    api.state().pods = many.chain([stranded_in("few", "web", old)]).collect();
    let controller = Controller::with(&api, &["--rate=4"]);
    until("three pods are deleted", || api.deleted().len() >= 3);
    let few = "/api/v1/namespaces/few/pods/web".to_owned();
    assert!(api.deleted()[..3].contains(&few), "{:?}", api.deleted());
    // The other pods of the namespace wait, although the node's budget has one repair left.
    controller.counts("budget_waits_total", 1);
    controller.logs("The repair budget is used up");
    assert_eq!(api.deleted().len(), 3, "{:?}", api.deleted());
    // A new pod of another namespace does not wait behind them.
    api.modify(&stranded_in("new", "web", old));
    until_within(Duration::from_secs(20), "the pod of the third namespace is deleted", || {
        api.deleted().len() == 4
    });
    assert_eq!(api.deleted()[3], "/api/v1/namespaces/new/pods/web");
}

#[test]
fn a_pod_that_claims_the_owner_of_another_namespaces_pods_does_not_hold_back_their_repair() {
    let (api, controller) = Controller::watched();
    let owned = |namespace: &str, created: &str| {
        let mut pod = stranded_in(namespace, "web", created);
        pod["metadata"]["uid"] = json!(format!("uid-in-{namespace}"));
        pod["metadata"]["ownerReferences"] = json!([{"uid": "replica-set", "controller": true}]);
        pod
    };
    api.modify(&owned("tenant", "2026-01-01T00:00:00Z"));
    controller.counts("pods_deleted_total", 1);
    api.modify(&owned("victim", "2999-01-01T00:00:00Z"));
    until("the pod is deleted or held", || {
        api.deleted().len() == 2 || controller.metric("pods_held_total") > 0
    });
    assert_eq!(controller.metric("pods_held_total"), 0);
    assert_eq!(api.deleted()[1], "/api/v1/namespaces/victim/pods/web");
}
