//! An admission policy of the cluster that denies evictions (HTTP 403), as a webhook does: no refusal leads to a
//! deletion.

use std::time::Duration;

use serde_json::json;

use crate::chart::pipe;
use crate::helm::Helm;
use crate::node::{Node, netns_of};
use crate::pods::{self, Pods, apply, command, kubectl};
use crate::until::{until, until_within};

const POLICY: &str = "no-evictions";
const MESSAGE: &str = "pods may not be evicted here";

#[test]
fn running_and_stranded_pods_whose_eviction_is_denied_stay_and_are_reported() {
    let node = Node::exclusive();
    let before = node.files();
    let helm = Helm::with_local_repository();
    let pods = Pods::default();
    pods.create(&[pods::stateful(&pods::validated("stranded", "1s"))]);
    let exit = ".status.initContainerStatuses[0].lastState.terminated.exitCode";
    until("the validator fails", || pods.field("stranded", exit) == "95");
    let evict = |more: &[&str]| {
        let path = "/api/v1/namespaces/stranded/pods/stranded-0/eviction?dryRun=All";
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "stranded-0", "namespace": "stranded"},
        });
        let create = ["create", "--raw", path, "-f", "-"];
        let stderr = pipe(&[&create[..], more].concat(), &eviction.to_string()).stderr;
        String::from_utf8(stderr).unwrap()
    };
    // By this text the controller knows that no admission refuses the eviction.
    let no_permission = r#"pods "stranded-0" is forbidden: User "nobody" cannot create"#;
    let refused = evict(&["--as=nobody"]);
    assert!(refused.contains(no_permission), "{refused}");
    let policy = Policy::apply();
    until("the policy is enforced", || evict(&[]).contains(MESSAGE));

    helm.run(
        "install",
        &["--set=repairController.enabled=true,repairController.mode=delete,\
           repairController.auditIntervalSeconds=3"],
    );
    pods.start(&[pods::stateful(&pods::meshed("running"))]);
    let names = ["stranded", "running"];
    let uids = names.map(|name| pods.field(name, ".metadata.uid"));
    let chain = ["nft", "flush", "chain", "ip", "linkerd-cni", "PROXY_INIT_REDIRECT"];
    netns_of(&pods.ip("running")).must(&chain);
    for (name, reason) in [("stranded", "NotConfigured"), ("running", "RulesMissing")] {
        until("the Event on the pod", || {
            assert_eq!(names.map(|name| pods.field(name, ".metadata.uid")), uids, "deleted");
            let selector = format!("reason=LinkerdCNI{reason}");
            let events = ["get", "events", "-n", name, "--field-selector", &selector];
            let notes = kubectl(&[&events[..], &["-o", "jsonpath={.items[*].message}"]].concat());
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
    until_within(Duration::from_secs(240), "both pods are replaced", || {
        let now = names.map(|name| pods.field(name, ".metadata.uid"));
        now.iter().zip(&uids).all(|(now, before)| !now.is_empty() && now != before)
    });
    drop(pods);
    helm.remove();
    assert_eq!(node.files(), before, "uninstalling leaves the node's files");
}

/// The policy with its binding, deleted with the value.
struct Policy;

impl Policy {
    fn apply() -> Policy {
        let api = "admissionregistration.k8s.io/v1";
        let policy = Policy;
        apply(&json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods/eviction"], "operations": ["CREATE"],
                }]},
                "validations": [{
                    "expression": "false", "reason": "Forbidden",
                    "message": MESSAGE,
                }],
            },
        }));
        apply(&json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        }));
        policy
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let objects = [
            "validatingadmissionpolicybinding,validatingadmissionpolicy",
            POLICY,
            "--ignore-not-found",
        ];
        let _ = command(&[&["delete"][..], &objects].concat()).output();
    }
}
