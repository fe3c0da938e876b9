//! An admission policy of the cluster that denies evictions (HTTP 403), as a webhook does: no refusal leads to a
//! deletion.

use serde_json::json;

use crate::kubectl::fed;
use crate::node::netns_of;
use crate::pods::{self, apply, command};
use crate::repair::set;
use crate::scene::{OnDrop, Scene};
use crate::until::until;

const POLICY: &str = "no-evictions";
/// Namespace whose pods may be evicted.
const FREE: &str = "free";
const MESSAGE: &str = "pods may not be evicted here";

#[test]
fn pods_are_evicted_and_those_whose_eviction_is_denied_stay_and_are_reported() {
    let scene = Scene::begin();
    let Scene { node, helm, pods, .. } = &scene;
    pods.start(&[pods::unmeshed("client")]);
    for name in ["stranded", FREE] {
        pods.create(&[pods::stateful(&pods::validated(name, "1s"))]);
        pods.until_stranded(name);
    }
    let free = pods.field(FREE, ".metadata.uid");
    let evict = |more: &[&str]| {
        let path = "/api/v1/namespaces/stranded/pods/stranded-0/eviction?dryRun=All";
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "stranded-0", "namespace": "stranded"},
        });
        let mut create = command(&format!("create --raw {path} -f -"));
        let output = fed(create.args(more), &eviction.to_string());
        String::from_utf8(output.stderr).unwrap()
    };
    // By this text the controller knows that no admission refuses the eviction.
    let no_permission = r#"pods "stranded-0" is forbidden: User "nobody" cannot create"#;
    let refused = evict(&["--as=nobody"]);
    assert!(refused.contains(no_permission), "{refused}");
    let policy = deny_evictions();
    until("the policy is enforced", || evict(&[]).contains(MESSAGE));

    helm.run("install", &[&set("delete", 3)]);
    pods.start(&[pods::stateful(&pods::meshed("running"))]);
    let names = ["stranded", "running"];
    let uids = names.map(|name| pods.field(name, ".metadata.uid"));
    netns_of(&pods.ip("running")).flush_redirect();
    for (name, reason) in
        [("stranded", "LinkerdCNINotConfigured"), ("running", "LinkerdCNIRulesMissing")]
    {
        until("the Event on the pod", || {
            assert_eq!(names.map(|name| pods.field(name, ".metadata.uid")), uids, "deleted");
            let notes = pods::events(name, reason);
            notes.contains("Pod skipped for now") && notes.contains(MESSAGE)
        });
    }
    // The next audits and the validator's next failures find the same pods.
    let lists = || node.requests_of("linkerd-cni-repair-controller/").len();
    let seen = lists();
    until("four more requests of the controller", || lists() >= seen + 4);
    assert_eq!(names.map(|name| pods.field(name, ".metadata.uid")), uids, "the same pods");
    for name in names {
        assert_eq!(pods.field(name, ".metadata.deletionTimestamp"), "", "{name}");
    }
    let requests = node.requests_of("linkerd-cni-repair-controller/");
    assert!(requests.iter().all(|request| request["verb"] != "delete"), "{requests:#?}");

    drop(policy);
    // Where nothing denies it, the pod was evicted, and its replacement has redirect rules.
    pods.until_ready(FREE);
    assert_ne!(pods.field(FREE, ".metadata.uid"), free);
    pods.assert_answers("client", FREE, "proxy-inbound");
    scene.remove();
}

/// Applies a policy and its binding, for all namespaces but one. Dropping the value deletes both.
fn deny_evictions() -> OnDrop<impl FnMut()> {
    let api = "admissionregistration.k8s.io/v1";
    let evictions = json!({
        "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["pods/eviction"], "operations": ["CREATE"],
    });
    let elsewhere = format!("request.namespace == '{FREE}'");
    let never = json!({"expression": elsewhere, "reason": "Forbidden", "message": MESSAGE});
    apply(&json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [evictions]},
            "validations": [never],
        },
    }));
    apply(&json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    }));
    OnDrop(|| {
        let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
        let _ = command(&format!("delete {kinds} {POLICY} --ignore-not-found")).output();
    })
}
