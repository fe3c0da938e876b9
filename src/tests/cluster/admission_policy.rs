//! The admission policies on a real API server: what the ServiceAccount of agent and repair
//! controller may change. Two nodes that exist only as objects stand for the caller's node and
//! another one.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::table;

use crate::api::{self, Api, Error};
use crate::chart::Applied;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::{command, kubectl, kubectl_with_stdin, run_with_stdin};
use crate::node::Node;
use crate::pods;
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
    let account = Account::bound_to_pod("agent");

    reset_objects();
    until_refused_by("linkerd-cni-node", || {
        account.patch_node(&format!("{OTHER}?dryRun=All"), &json!({"spec": {"taints": []}}))
    });
    until_refused_by("linkerd-cni-repair", || account.evict(OTHER, &uid(OTHER), "?dryRun=All"));
    assert_only_the_startup_taint_of_its_node_can_be_removed(&account);
    assert_only_pods_of_its_node_can_be_evicted(&account);
    until_refused_by("linkerd-cni-token", || account.token(json!({"expirationSeconds": 86_401})));
    assert_tokens_last_a_day_at_most(&account);
    assert_token_without_node_is_refused();
    // The audiences of the API server, which a token gets by default.
    let audiences = audiences(&account.token(json!({})).unwrap());
    drop(chart);

    reset_objects();
    let _chart = apply_chart("report", "startupTaint=", &audiences);
    until_refused_by("linkerd-cni-token", || account.token(json!({"audiences": ["vault"]})));
    assert_tokens_have_only_these_audiences(&account, &audiences);
}

/// Waits until the API server enforces the policy, some seconds after its creation.
fn until_refused_by(policy: &str, request: impl Fn() -> Result<Value, Error>) {
    let policy = format!("ValidatingAdmissionPolicy '{policy}'");
    until("the policy is enforced", || request().is_err_and(|error| error.text.contains(&policy)));
}

fn assert_refused(policy: &str, request: Result<Value, Error>, message: &str) {
    let refused = request.expect_err(message).text;
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
        let patch = account.patch_node(&row.node, &row.patch);
        assert_refused("linkerd-cni-node", patch, &row.message);
    }
    // Other taints, which the control plane adds to a node without kubelet, have to stay.
    until("the startup taint is removed", || {
        let mut taints = taints(OWN);
        taints.retain(|taint| taint["key"] != TAINT);
        account.patch_node(OWN, &json!({"spec": {"taints": taints}})).is_ok()
    });
    let has_taint = |key: &str| taints(OWN).iter().any(|taint| taint["key"] == key);
    assert!(has_taint("kept") && !has_taint(TAINT), "{:?}", taints(OWN));
}

fn assert_only_pods_of_its_node_can_be_evicted(account: &Account) {
    let without_node = Account::without_node();
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
    let error = account.0.delete(&pod_path(OWN)).unwrap_err().text;
    // The controller recognizes a missing permission by this text. The text of a rejection by
    // admission differs.
    assert!(error.contains(&format!(r#"pods "{OWN}" is forbidden: User ""#)), "{error}");
    assert!(error.contains("cannot delete resource"), "{error}");
    account.evict(OWN, &uid(OWN), "").unwrap();
    assert_ne!(metadata(OWN)["deletionTimestamp"], Value::Null);
    assert_eq!(metadata(OTHER)["deletionTimestamp"], Value::Null);
}

fn pod_path(pod: &str) -> String {
    format!("{}/{pod}", pods::path(NAMESPACE))
}

fn metadata(pod: &str) -> Value {
    api::get(&pod_path(pod))["metadata"].take()
}

fn uid(pod: &str) -> String {
    metadata(pod)["uid"].as_str().unwrap().to_owned()
}

fn assert_tokens_last_a_day_at_most(account: &Account) {
    for seconds in [86_401, 31_536_000, 4_294_967_296_u64] {
        let token = account.token(json!({"expirationSeconds": seconds}));
        assert_refused("linkerd-cni-token", token, "create tokens for at most 86400 s");
    }
    // Without the value `tokenAudiences`, all audiences are allowed.
    let vault = account.token(json!({"audiences": ["vault"]})).unwrap();
    assert_eq!(audiences(&vault), json!(["vault"]));
    // The agent requests this lifetime.
    account.token(json!({"expirationSeconds": 86_400})).unwrap();
}

fn assert_tokens_have_only_these_audiences(account: &Account, allowed: &Value) {
    for audiences in [json!(["vault"]), json!([allowed[0], "vault"])] {
        let result = account.token(json!({"audiences": audiences}));
        assert!(result.as_ref().is_err_and(|error| error.text.contains("vault")), "{result:?}");
        let message = "may not create tokens for the audiences";
        assert_refused("linkerd-cni-token", result, message);
    }
    for spec in [json!({"expirationSeconds": 86_400}), json!({"audiences": [allowed[0]]})] {
        assert_eq!(audiences(&account.token(spec).unwrap()), *allowed);
    }
}

/// Returns the audiences of a token.
fn audiences(request: &Value) -> Value {
    let claims = token_in(request).split('.').nth(1).unwrap();
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["aud"].take()
}

fn assert_token_without_node_is_refused() {
    let account = Account::without_node();
    let patch = account.patch_node(OWN, &json!({"spec": {"taints": []}}));
    let message = "the token names no node";
    assert_refused("linkerd-cni-token", account.token(json!({})), message);
    assert_refused("linkerd-cni-node", patch, message);
}

fn taints(node: &str) -> Vec<Value> {
    let mut node = api::get(&format!("/api/v1/nodes/{node}"));
    serde_json::from_value(node["spec"]["taints"].take()).unwrap()
}

/// Creates the nodes and pods of the test. Dropping the returned value deletes them.
fn create_objects() -> OnDrop<impl FnMut()> {
    delete_release_namespace();
    let objects = OnDrop(|| {
        let delete = "delete --ignore-not-found --force --grace-period=0 -f -";
        run_with_stdin(&mut command(delete), OBJECTS);
    });
    pods::create_namespace(NAMESPACE);
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

/// A client with a token of the ServiceAccount `linkerd-cni`.
struct Account(Api);

impl Account {
    /// Creates a token that is bound to a pod, as kubelet does. Such a token names the pod's node.
    fn bound_to_pod(name: &str) -> Account {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": name});
        Account::with_token(json!({"boundObjectRef": pod}))
    }

    /// Creates a token that is bound to no pod, so it names no node.
    fn without_node() -> Account {
        Account::with_token(json!({}))
    }

    fn with_token(spec: Value) -> Account {
        let request = request_token(api::admin(), "linkerd-cni", spec).unwrap();
        Account(Api::with_token(token_in(&request).to_owned()))
    }

    /// Requests a token of the plugin's account.
    fn token(&self, spec: Value) -> Result<Value, Error> {
        request_token(&self.0, "linkerd-cni-plugin", spec)
    }

    fn patch_node(&self, name: &str, patch: &Value) -> Result<Value, Error> {
        self.0.merge_patch(&format!("/api/v1/nodes/{name}"), patch)
    }

    fn evict(&self, pod: &str, uid: &str, query: &str) -> Result<Value, Error> {
        let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction"});
        eviction["metadata"] = json!({"name": pod, "namespace": NAMESPACE});
        if !uid.is_empty() {
            eviction["deleteOptions"] = json!({"preconditions": {"uid": uid}});
        }
        self.0.post(&format!("{}/eviction{query}", pod_path(pod)), &eviction)
    }
}

fn request_token(api: &Api, account: &str, spec: Value) -> Result<Value, Error> {
    let path = format!("{}/serviceaccounts/{account}/token", pods::namespace_path(NAMESPACE));
    let kind = "TokenRequest";
    api.post(&path, &json!({"apiVersion": "authentication.k8s.io/v1", "kind": kind, "spec": spec}))
}

fn token_in(request: &Value) -> &str {
    request["status"]["token"].as_str().unwrap()
}
