//! The admission policies on a real API server: what the ServiceAccount of agent and repair
//! controller may change. Two nodes that exist only as objects stand for the caller's node and
//! another one.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::table;

use crate::chart::Applied;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::{kubectl_with_stdin, run_with_stdin};
use crate::node::Node;
use crate::pods::{command, field, kubectl, until_account};
use crate::quickstart::delete_release_namespace;
use crate::scene::OnDrop;
use crate::until::until;

const TAINT: &str = "startup-taint.cluster-autoscaler.kubernetes.io/linkerd-cni";
const OWN: &str = "policy-own";
const OTHER: &str = "policy-other";
const OBJECTS: &str = include_str!("admission_policy.yaml");
/// Kinds of the chart that the test applies. The DaemonSet is not needed.
const KINDS: &str = "ClusterRole ClusterRoleBinding Role RoleBinding ValidatingAdmissionPolicy \
     ValidatingAdmissionPolicyBinding";

#[test]
fn admission_policies_limit_the_account_to_its_node_and_short_tokens() {
    let _node = Node::exclusive();
    let _objects = create_objects();
    let chart = apply_chart("delete", &format!("startupTaint={TAINT}"), &json!([]));
    let account = Account::new("--bound-object-kind=Pod --bound-object-name=agent");

    reset_objects();
    until_refused_by("linkerd-cni-node", || {
        account.patch_node(OTHER, &json!({"spec": {"taints": []}}), &["--dry-run=server"])
    });
    until_refused_by("linkerd-cni-repair", || account.evict(OTHER, &uid(OTHER), "?dryRun=All"));
    assert_only_the_startup_taint_of_its_node_can_be_removed(&account);
    assert_only_pods_of_its_node_can_be_evicted(&account);
    until_refused_by("linkerd-cni-token", || account.token(&["--duration=86401s"]));
    assert_tokens_last_a_day_at_most(&account);
    assert_token_without_node_is_refused();
    // The audiences of the API server, which a token gets by default.
    let audiences = audiences(&account.token(&[]).unwrap());
    drop(chart);

    reset_objects();
    let _chart = apply_chart("report", "startupTaint=", &audiences);
    until_refused_by("linkerd-cni-token", || account.token(&["--audience=vault"]));
    assert_tokens_have_only_these_audiences(&account, &audiences);
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

/// A row of `admission_policy_refused.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedPatch {
    node: String,
    patch: Value,
    message: String,
}

fn assert_only_the_startup_taint_of_its_node_can_be_removed(account: &Account) {
    let refused_patches = include_str!("admission_policy_refused.yaml");
    for (_name, row) in table::rows::<RefusedPatch>(refused_patches) {
        let patch = account.patch_node(&row.node, &row.patch, &[]);
        assert_refused("linkerd-cni-node", patch, &row.message);
    }
    // Other taints, which the control plane adds to a node without kubelet, have to stay.
    until("the startup taint is removed", || {
        let mut taints = taints(OWN);
        taints.retain(|taint| taint["key"] != TAINT);
        account.patch_node(OWN, &json!({"spec": {"taints": taints}}), &[]).is_ok()
    });
    let has_taint = |key: &str| taints(OWN).iter().any(|taint| taint["key"] == key);
    assert!(has_taint("kept") && !has_taint(TAINT), "{:?}", taints(OWN));
}

fn assert_only_pods_of_its_node_can_be_evicted(account: &Account) {
    let without_node = Account::new("");
    let other_node = "on node policy-own may not evict pod policy-other on node";
    let precondition = "only with its UID as precondition";
    let no_node = "the token names no node";
    for (_name, (account, pod, uid, message)) in table::named([
        ("a pod on another node", (account, OTHER, uid(OTHER), other_node)),
        // The next pod of a name may be on another node.
        ("no UID", (account, OWN, String::new(), precondition)),
        ("the UID of another pod", (account, OWN, uid(OTHER), precondition)),
        ("a token without node", (&without_node, OWN, uid(OWN), no_node)),
        ("a token without node, no pod", (&without_node, "missing", uid(OWN), no_node)),
    ]) {
        assert_refused("linkerd-cni-repair", account.evict(pod, &uid, ""), message);
    }
    // The account may not delete pods, because a deletion ignores disruption budgets.
    let delete = account.run(&["delete", "pod", OWN, "-n", NAMESPACE, "--wait=false"], "");
    let error = delete.unwrap_err();
    // The controller recognizes a missing permission by this text. The text of a rejection by
    // admission differs.
    assert!(error.contains(&format!(r#"pods "{OWN}" is forbidden: User ""#)), "{error}");
    assert!(error.contains("cannot delete resource"), "{error}");
    account.evict(OWN, &uid(OWN), "").unwrap();
    assert_ne!(deletion_time(OWN), "");
    assert_eq!(deletion_time(OTHER), "");
}

fn uid(pod: &str) -> String {
    field(&format!("pod {pod} -n {NAMESPACE}"), ".metadata.uid")
}

fn assert_tokens_last_a_day_at_most(account: &Account) {
    for seconds in ["86401", "31536000", "4294967296"] {
        let token = account.token(&[&format!("--duration={seconds}s")]);
        assert_refused("linkerd-cni-token", token, "create tokens for at most 86400 s");
    }
    // Without the value `tokenAudiences`, all audiences are allowed.
    assert_eq!(audiences(&account.token(&["--audience=vault"]).unwrap()), json!(["vault"]));
    // The agent requests this lifetime.
    account.token(&["--duration=86400s"]).unwrap();
}

fn assert_tokens_have_only_these_audiences(account: &Account, allowed: &Value) {
    let allowed_audience = format!("--audience={}", allowed[0].as_str().unwrap());
    let other_audience = "--audience=vault";
    for args in [&[other_audience][..], &[&allowed_audience, other_audience]] {
        let result = account.token(args);
        assert!(result.as_ref().is_err_and(|error| error.contains("vault")), "{result:?}");
        let message = "may not create tokens for the audiences";
        assert_refused("linkerd-cni-token", result, message);
    }
    for args in ["--duration=86400s", &allowed_audience] {
        assert_eq!(audiences(&account.token(&[args]).unwrap()), *allowed);
    }
}

/// Returns the audiences of a token.
fn audiences(token: &str) -> Value {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["aud"].take()
}

fn assert_token_without_node_is_refused() {
    let account = Account::new("");
    let patch = account.patch_node(OWN, &json!({"spec": {"taints": []}}), &[]);
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

/// Creates the nodes and pods of the test. Dropping the returned value deletes them.
fn create_objects() -> OnDrop<impl FnMut()> {
    delete_release_namespace();
    let objects = OnDrop(|| {
        let delete = "delete --ignore-not-found --force --grace-period=0 -f -";
        run_with_stdin(&mut command(delete), OBJECTS);
    });
    kubectl(&format!("create namespace {NAMESPACE}"));
    until_account(NAMESPACE);
    reset_objects();
    objects
}

/// Creates the objects again, as a test may have changed or deleted them.
fn reset_objects() {
    let force = "--ignore-not-found --force --grace-period=0";
    kubectl(&format!("delete pod {OWN} {OTHER} -n {NAMESPACE} {force}"));
    kubectl_with_stdin("apply -f -", OBJECTS);
}

fn apply_chart(mode: &str, value: &str, audiences: &Value) -> Applied {
    let helm = Helm::new();
    let value = format!("--set={value}");
    let repair = format!("--set=repairController.enabled=true,repairController.mode={mode}");
    let chart = ["template", "linkerd-cni", CHART, "-n", NAMESPACE];
    let audiences = format!("--set-json=admissionPolicy.tokenAudiences={audiences}");
    let more = ["--kube-version=1.31.0", &value, &repair, &audiences];
    let text = helm.must(&[&chart[..], &more].concat());
    let has_needed_kind = |document: &&str| {
        KINDS.split(' ').any(|kind| document.contains(&format!("\nkind: {kind}\n")))
    };
    let documents: Vec<&str> = text.split("\n---\n").filter(has_needed_kind).collect();
    Applied::new(documents.join("\n---\n"))
}

/// A kubeconfig with a token of the ServiceAccount `linkerd-cni`.
struct Account(NamedTempFile);

impl Account {
    /// Creates a token. `options` may bind it to a pod, as kubelet does. A token that is bound to
    /// no pod names no node.
    fn new(options: &str) -> Account {
        let token = kubectl(&format!("create token linkerd-cni -n {NAMESPACE} {options}"));
        let view = kubectl("config view --raw --minify -o json");
        let mut config: Value = serde_json::from_str(&view).unwrap();
        // The administrator's certificate would win over the token.
        config["users"][0]["user"] = json!({"token": token.trim()});
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(config.to_string().as_bytes()).unwrap();
        Account(file)
    }

    fn run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let output = run_with_stdin(command("").args(args).env("KUBECONFIG", self.0.path()), input);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn token(&self, more: &[&str]) -> Result<String, String> {
        let create = ["create", "token", "linkerd-cni-plugin", "-n", NAMESPACE];
        self.run(&[&create[..], more].concat(), "")
    }

    fn patch_node(&self, name: &str, patch: &Value, more: &[&str]) -> Result<String, String> {
        let patch = patch.to_string();
        let command = ["patch", "node", name, "--type=merge", "-p", &patch];
        self.run(&[&command[..], more].concat(), "")
    }

    fn evict(&self, pod: &str, uid: &str, query: &str) -> Result<String, String> {
        let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction"});
        eviction["metadata"] = json!({"name": pod, "namespace": NAMESPACE});
        if !uid.is_empty() {
            eviction["deleteOptions"] = json!({"preconditions": {"uid": uid}});
        }
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction{query}");
        self.run(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())
    }
}
