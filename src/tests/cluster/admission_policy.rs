//! The admission policies on a real API server: what the ServiceAccount of agent and repair controller may change.
//! Two nodes that exist only as objects stand for the caller's node and another one.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::chart::yaml;
use testkit::child::must;

use crate::chart::Applied;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::{fed, piped};
use crate::node::Node;
use crate::pods::{command, field, kubectl, until_account};
use crate::quickstart::delete_release_namespace;
use crate::scene::OnDrop;
use crate::until::until;

const TAINT: &str = "startup-taint.cluster-autoscaler.kubernetes.io/linkerd-cni";
const OWN: &str = "policy-own";
const OTHER: &str = "policy-other";
const READER: &str = "policy-reader";
/// Kinds of the chart that the test applies. The DaemonSet is not needed.
const KINDS: [&str; 6] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

#[test]
fn the_admission_policies_limit_the_account_to_its_own_node_and_to_tokens_of_a_day() {
    let _node = Node::exclusive();
    let _objects = objects();
    let chart = apply_chart("delete", &format!("startupTaint={TAINT}"), &json!([]));
    let account = Account::of_pod("agent");

    reset();
    until_refused_by("linkerd-cni-node", || {
        account.patch(OTHER, &json!({"spec": {"taints": []}}), &["--dry-run=server"])
    });
    until_refused_by("linkerd-cni-repair", || account.evict(OTHER, &uid(OTHER), "?dryRun=All"));
    nodes_lose_only_the_startup_taint_on_the_own_node(&account);
    pods_are_evicted_only_on_the_own_node(&account);
    until_refused_by("linkerd-cni-token", || account.token(&["--duration=86401s"]));
    let audiences = tokens_last_a_day_at_most(&account);
    a_token_without_a_node_is_refused();
    drop(chart);

    reset();
    let _chart = apply_chart("label", "nodeCondition=true", &audiences);
    until_refused_by("linkerd-cni-token", || account.token(&["--audience=vault"]));
    tokens_are_for_the_given_audiences_only(&account, &audiences);
    let other = conditions(&json!({"type": "linkerd-cni.linkerd.io/Ready", "status": "True"}));
    until_refused_by("linkerd-cni-node", || account.patch(OTHER, &other, &STATUS));
    only_the_condition_changes_on_the_own_node(&account);
    until_refused_by("linkerd-cni-repair", || {
        account.label(OTHER, "linkerd.io/cni-stranded=true", &["--dry-run=server"])
    });
    pods_get_only_the_label_on_the_own_node(&account);
}

/// Waits until the API server enforces the policy, some seconds after its creation.
fn until_refused_by(policy: &str, request: impl Fn() -> Result<String, String>) {
    let policy = format!("ValidatingAdmissionPolicy '{policy}'");
    until("the policy is enforced", || request().is_err_and(|error| error.contains(&policy)));
}

fn assert_refused(policy: &str, request: Result<String, String>, message: &str) {
    let refused = request.expect_err(message);
    assert!(refused.contains(message) && refused.contains(policy), "{refused}");
}

fn assert_patches_refused(account: &Account, of: &str, more: &[&str]) {
    for case in yaml(include_str!("admission_policy_refused.yaml"))[of].as_array().unwrap() {
        let [node, message] = [0, 2].map(|index| case[index].as_str().unwrap());
        assert_refused("linkerd-cni-node", account.patch(node, &case[1], more), message);
    }
}

fn nodes_lose_only_the_startup_taint_on_the_own_node(account: &Account) {
    assert_patches_refused(account, "taint", &[]);
    // Other taints, which the control plane adds to a node without kubelet, have to stay.
    until("the startup taint is removed", || {
        let mut taints = taints(OWN);
        taints.retain(|taint| taint["key"] != TAINT);
        account.patch(OWN, &json!({"spec": {"taints": taints}}), &[]).is_ok()
    });
    let has = |key: &str| taints(OWN).iter().any(|taint| taint["key"] == key);
    assert!(has("kept") && !has(TAINT), "{:?}", taints(OWN));
}

/// A merge patch of the list of conditions by type.
const STATUS: [&str; 2] = ["--subresource=status", "--type=strategic"];

fn conditions(condition: &Value) -> Value {
    json!({"status": {"conditions": [condition]}})
}

fn only_the_condition_changes_on_the_own_node(account: &Account) {
    let ready = conditions(&json!({"type": "Ready", "status": "True"})).to_string();
    must(command("patch node").args([OWN, "-p", &ready]).args(STATUS));
    let own = |status: Option<&str>| {
        let kind = "linkerd-cni.linkerd.io/Ready";
        let removed = json!({"type": kind, "$patch": "delete"});
        conditions(&status.map_or(removed, |status| json!({"type": kind, "status": status})))
    };
    assert_patches_refused(account, "condition", &STATUS);
    let refused = account.patch(OWN, &json!({"spec": {"taints": []}}), &[]).unwrap_err();
    assert!(refused.contains("Forbidden") && !refused.contains("linkerd-cni-node"), "{refused}");
    for status in [Some("True"), Some("False"), None] {
        account.patch(OWN, &own(status), &STATUS).unwrap();
    }
}

fn pods_are_evicted_only_on_the_own_node(account: &Account) {
    let without_node = Account::without_node();
    for (account, pod, uid, message) in [
        (account, OTHER, uid(OTHER), "on node policy-own may not evict pod policy-other on node"),
        // The next pod of a name may be on another node.
        (account, OWN, String::new(), "only with its UID as precondition"),
        (account, OWN, uid(OTHER), "only with its UID as precondition"),
        (&without_node, OWN, uid(OWN), "the token names no node"),
        (&without_node, "missing", uid(OWN), "the token names no node"),
    ] {
        assert_refused("linkerd-cni-repair", account.evict(pod, &uid, ""), message);
    }
    // No deletion leads past the disruption budgets.
    let delete = account.run(&["delete", "pod", OWN, "-n", NAMESPACE, "--wait=false"], "");
    // By this text the controller knows that it is a missing permission and no admission that refuses.
    let forbidden = format!(r#"pods "{OWN}" is forbidden: User ""#);
    let refused = delete.unwrap_err();
    let texts = [&*forbidden, "cannot delete resource"];
    assert!(texts.iter().all(|text| refused.contains(text)), "{refused}");
    account.evict(OWN, &uid(OWN), "").unwrap();
    assert_ne!(deletion_time(OWN), "");
    assert_eq!(deletion_time(OTHER), "");
}

fn uid(pod: &str) -> String {
    field(&format!("pod {pod} -n {NAMESPACE}"), ".metadata.uid")
}

fn pods_get_only_the_label_on_the_own_node(account: &Account) {
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": "a"}]);
    let patch_pod = |patch: Value| {
        let patch = patch.to_string();
        account.run(&["patch", "pod", OWN, "-n", NAMESPACE, "--type=merge", "-p", &patch], "")
    };
    for (refused, message) in [
        (account.label(OTHER, "linkerd.io/cni-stranded=true", &[]), "a pod on node policy-other"),
        (account.label(OWN, "linkerd.io/cni-stranded=false", &[]), "only to true"),
        (account.label(OWN, "app=other", &[]), "not change: app"),
        (patch_pod(json!({"metadata": {"annotations": {"a": "b"}}})), "not change: annotations"),
        (patch_pod(json!({"metadata": {"ownerReferences": owner}})), "ownerReferences"),
        (
            patch_pod(json!({"spec": {"containers": [{"name": "app", "image": "other"}]}})),
            "not change: containers",
        ),
    ] {
        assert_refused("linkerd-cni-repair", refused, message);
    }
    account.label(OWN, "linkerd.io/cni-stranded=true", &[]).unwrap();
}

/// Returns the audiences of the API server, which a token gets by default.
fn tokens_last_a_day_at_most(account: &Account) -> Value {
    for seconds in ["86401", "31536000", "4294967296"] {
        let token = account.token(&[&format!("--duration={seconds}s")]);
        assert_refused("linkerd-cni-token", token, "create tokens for at most 86400 s");
    }
    // What is left without `tokenAudiences`.
    assert_eq!(audiences(&account.token(&["--audience=vault"]).unwrap()), json!(["vault"]));
    // The lifetime that the agent requests.
    audiences(&account.token(&["--duration=86400s"]).unwrap())
}

fn tokens_are_for_the_given_audiences_only(account: &Account, given: &Value) {
    let both = [&format!("--audience={}", given[0].as_str().unwrap()), "--audience=vault"];
    for more in [&both[1..], &both] {
        let refused = account.token(more);
        assert!(refused.as_ref().is_err_and(|error| error.contains("vault")), "{refused:?}");
        let message = "may not create tokens for the audiences";
        assert_refused("linkerd-cni-token", refused, message);
    }
    for more in [&["--duration=86400s"], &both[..1]] {
        assert_eq!(audiences(&account.token(more).unwrap()), *given);
    }
}

fn audiences(token: &str) -> Value {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["aud"].take()
}

fn a_token_without_a_node_is_refused() {
    let account = Account::without_node();
    let patch = account.patch(OWN, &json!({"spec": {"taints": []}}), &[]);
    let message = "the token names no node";
    assert_refused("linkerd-cni-token", account.token(&[]), message);
    assert_refused("linkerd-cni-node", patch, message);
}

fn taints(node: &str) -> Vec<Value> {
    serde_json::from_str(&field(&format!("node {node}"), ".spec.taints")).unwrap()
}

fn deletion_time(pod: &str) -> String {
    field(&format!("pod {pod} -n {NAMESPACE}"), ".metadata.deletionTimestamp")
}

/// Creates the accounts, nodes and pods. Dropping the value deletes them.
fn objects() -> OnDrop<impl FnMut()> {
    delete_release_namespace();
    let objects = OnDrop(|| {
        let force = "--ignore-not-found --force --grace-period=0";
        for what in [
            &format!("pod agent {OWN} {OTHER} -n {NAMESPACE}"),
            &format!("node {OWN} {OTHER}"),
            &format!("serviceaccount linkerd-cni linkerd-cni-plugin -n {NAMESPACE}"),
            &format!("clusterrole,clusterrolebinding {READER}"),
        ] {
            let _ = command(&format!("delete {what} {force}")).output();
        }
    });
    let account = format!("--serviceaccount={NAMESPACE}:linkerd-cni");
    for what in [
        &format!("namespace {NAMESPACE}"),
        &format!("serviceaccount linkerd-cni -n {NAMESPACE}"),
        &format!("serviceaccount linkerd-cni-plugin -n {NAMESPACE}"),
        // kubectl reads the subresource before it patches it. The agent reads the Node.
        &format!("clusterrole {READER} --verb=get --resource=nodes/status"),
        &format!("clusterrolebinding {READER} --clusterrole={READER} {account}"),
    ] {
        kubectl(&format!("create {what}"));
    }
    until_account(NAMESPACE);
    reset();
    objects
}

/// Creates the nodes and pods that are missing, and restores the nodes' taints.
fn reset() {
    let force = "--ignore-not-found --force --grace-period=0";
    kubectl(&format!("delete pod {OWN} {OTHER} -n {NAMESPACE} {force}"));
    piped("apply -f -", include_str!("admission_policy.yaml"));
}

/// Applies the chart's permissions and policies. Dropping the value deletes them.
fn apply_chart(mode: &str, value: &str, audiences: &Value) -> Applied {
    let helm = Helm::new();
    let value = format!("--set={value}");
    let repair = format!("--set=repairController.enabled=true,repairController.mode={mode}");
    let chart = ["template", "linkerd-cni", CHART, "-n", NAMESPACE];
    let audiences = format!("--set-json=admissionPolicy.tokenAudiences={audiences}");
    let more = ["--kube-version=1.31.0", &value, &repair, &audiences];
    let text = helm.must(&[&chart[..], &more].concat());
    let is_wanted =
        |document: &&str| KINDS.iter().any(|kind| document.contains(&format!("\nkind: {kind}\n")));
    let wanted: Vec<&str> = text.split("\n---\n").filter(is_wanted).collect();
    Applied::new(wanted.join("\n---\n"))
}

/// A kubeconfig with a token of the ServiceAccount `linkerd-cni`.
struct Account(NamedTempFile);

impl Account {
    /// A token that is bound to the pod, as the token that kubelet mounts in the pod.
    fn of_pod(pod: &str) -> Account {
        let bound = format!("--bound-object-kind=Pod --bound-object-name={pod}");
        Account::with_token(&kubectl(&format!("create token linkerd-cni -n {NAMESPACE} {bound}")))
    }

    /// A token that is bound to no pod, and so names no node.
    fn without_node() -> Account {
        Account::with_token(&kubectl(&format!("create token linkerd-cni -n {NAMESPACE}")))
    }

    fn with_token(token: &str) -> Account {
        let view = kubectl("config view --raw --minify -o json");
        let mut config: Value = serde_json::from_str(&view).unwrap();
        // The administrator's certificate would win over the token.
        config["users"][0]["user"] = json!({"token": token.trim()});
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.to_string().as_bytes()).unwrap();
        Account(file)
    }

    /// Runs kubectl with the token. Returns its output, or its error.
    fn run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let output = fed(command("").args(args).env("KUBECONFIG", self.0.path()), input);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn token(&self, more: &[&str]) -> Result<String, String> {
        let create = ["create", "token", "linkerd-cni-plugin", "-n", NAMESPACE];
        self.run(&[&create[..], more].concat(), "")
    }

    fn patch(&self, node: &str, patch: &Value, more: &[&str]) -> Result<String, String> {
        let patch = patch.to_string();
        self.run(&[&["patch", "node", node, "--type=merge", "-p", &patch], more].concat(), "")
    }

    fn label(&self, pod: &str, label: &str, more: &[&str]) -> Result<String, String> {
        let command = ["label", "pod", pod, label, "-n", NAMESPACE, "--overwrite"];
        self.run(&[&command[..], more].concat(), "")
    }

    fn evict(&self, pod: &str, uid: &str, query: &str) -> Result<String, String> {
        let preconditions =
            if uid.is_empty() { json!({}) } else { json!({"preconditions": {"uid": uid}}) };
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": NAMESPACE},
            "deleteOptions": preconditions,
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction{query}");
        self.run(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())
    }
}
