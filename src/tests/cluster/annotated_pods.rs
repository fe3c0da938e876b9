//! The policy that has Multus call the plugin for meshed pods, on a real API server. A webhook of the test stands for
//! the proxy injector, which changes pods after policies have run.

use serde_json::{Value, json};
use testkit::api::{Response, Routes, Server, State};
use testkit::server::Request;

use crate::chart::Applied;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::kubectl::{fed, piped};
use crate::node::Node;
use crate::pods::command;
use crate::until::until;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Label of the pods that the webhook injects.
const INJECTED: &str = "annotated-pods-test";
/// `[{"op":"add","path":"/spec/containers/-","value":{"name":"linkerd-proxy","image":"none"}}]`
const PATCH: &str = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NwZWMvY29udGFpbmVycy8tIiwidmFsdWUiOnsibmFtZSI6ImxpbmtlcmQtcHJveHkiLCJpbWFnZSI6Im5vbmUifX1d";

/// The webhook.
#[derive(Clone, Default)]
struct Injector;

impl Routes for Injector {
    fn respond(_: &mut State<Self>, request: &Request) -> Response {
        let uid = &request.body["request"]["uid"];
        let patch = json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": PATCH});
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": patch,
        });
        Response::new(200, review)
    }
}

#[test]
fn the_policy_annotates_each_meshed_pod_also_if_the_injector_adds_the_proxy() {
    let _node = Node::exclusive();
    let helm = Helm::new();
    let values = "--set=networkAttachmentDefinition.annotatePods=true";
    let chart = ["template", "linkerd-cni", CHART, "-n", NAMESPACE, values];
    let policies = ["--kube-version=1.35.0", "--show-only=templates/mutating*"];
    let policy = Applied(helm.must(&[&chart[..], &policies].concat()));
    piped("apply -f -", &policy.0);
    let injector = Server::<Injector>::start();
    let _webhook = register(&injector);
    let meshed = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    let unmeshed = json!([{"name": "app"}]);
    until("policy and webhook are in effect", || {
        let pod = admitted(json!({}), unmeshed.clone(), &[], true);
        pod["spec"]["containers"].as_array().unwrap().len() == 2 && networks(&pod) != Value::Null
    });

    let json_list = r#"[{"name":"b"}]"#;
    let json_both = r#"[{"name":"b"},{"name":"linkerd-cni","namespace":"default"}]"#;
    let own = "default/linkerd-cni";
    for (before, after) in [
        (None, own),
        (Some("a/b, c"), "a/b, c,default/linkerd-cni"),
        (Some(json_list), json_both),
        (Some("[]"), r#"[{"name":"linkerd-cni","namespace":"default"}]"#),
        (Some("a/linkerd-cni-2"), "a/linkerd-cni-2,default/linkerd-cni"),
        // Named already.
        (Some(own), own),
        (Some("a, linkerd-cni@eth1"), "a, linkerd-cni@eth1"),
        (Some(json_both), json_both),
    ] {
        let annotations = before.map_or(json!({}), |before| json!({NETWORKS: before}));
        for (containers, is_injected) in [(&meshed, false), (&unmeshed, true)] {
            let pod = admitted(annotations.clone(), containers.clone(), &[], is_injected);
            assert_eq!(networks(&pod), after, "{before:?}, injected: {is_injected}");
        }
        let pod = admitted(annotations, unmeshed.clone(), &[], false);
        assert_eq!(networks(&pod), json!(before), "unmeshed");
    }
    let sidecar = json!({"name": "linkerd-proxy", "restartPolicy": "Always"});
    let pod = admitted(json!({}), unmeshed.clone(), &[("initContainers", json!([sidecar]))], false);
    assert_eq!(networks(&pod), own);
    // Pods that do not need the plugin.
    let init = json!([{"name": "linkerd-init"}]);
    for field in [("hostNetwork", json!(true)), ("initContainers", init)] {
        let pod = admitted(json!({}), meshed.clone(), &[field], false);
        assert_eq!(networks(&pod), Value::Null);
    }
}

fn networks(pod: &Value) -> Value {
    pod["metadata"]["annotations"][NETWORKS].clone()
}

/// Returns the pod that the API server would create.
fn admitted(
    annotations: Value,
    mut containers: Value,
    more: &[(&str, Value)],
    is_injected: bool,
) -> Value {
    let set_image = |containers: &mut Value| {
        for container in containers.as_array_mut().unwrap() {
            container["image"] = json!("none");
        }
    };
    set_image(&mut containers);
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "admitted", "namespace": "default", "annotations": annotations,
            "labels": {INJECTED: is_injected.to_string()},
        },
        "spec": {"containers": containers},
    });
    for (field, value) in more {
        pod["spec"][field] = value.clone();
        if value.is_array() {
            set_image(&mut pod["spec"][field]);
        }
    }
    let mut create = command("create --dry-run=server -o json -f -");
    let output = fed(&mut create, &pod.to_string());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Has the API server call the webhook for new pods with the label. Dropping the value ends that.
fn register(injector: &Server<Injector>) -> Applied {
    // kubectl reads base64 of a Secret's text.
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": INJECTED, "namespace": "default"},
        "stringData": {"ca": injector.ca()},
    });
    let secret = piped("create --dry-run=server -o json -f -", &secret.to_string());
    let secret: Value = serde_json::from_str(&secret).unwrap();
    let url = format!("https://{}/", injector.address);
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": INJECTED},
        "webhooks": [{
            "name": "annotated-pods.example.com", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "rules": [rule],
            "objectSelector": {"matchLabels": {INJECTED: "true"}},
            "clientConfig": {"url": url, "caBundle": secret["data"]["ca"]},
        }],
    });
    let applied = Applied(configuration.to_string());
    piped("apply -f -", &applied.0);
    applied
}
