//! An admission policy of the cluster that denies evictions (HTTP 403), as a webhook does: no refusal leads to a
//! deletion.

use serde_json::json;

use crate::chart::Applied;
use crate::kubectl::fed;
use crate::node::netns_of;
use crate::pods::{self, command};
use crate::repair::set;
use crate::scene::Scene;
use crate::until::until;

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
    let policy = Applied::new(include_str!("denied_evictions.yaml"));
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
