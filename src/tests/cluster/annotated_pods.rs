//! The policy that has Multus call the plugin for meshed pods, on a real API server. A webhook of
//! the test stands for the proxy injector, which changes pods after policies have run.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::api::{Response, Routes, Server, State};
use testkit::chart::yaml;
use testkit::server::Request;
use testkit::table;

use crate::api;
use crate::chart::Applied;
use crate::helm::{CHART, Helm, NAMESPACE};
use crate::node::Node;
use crate::pods;
use crate::until::until;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Label of the pods that the injector changes.
const INJECTED: &str = "annotated-pods-test";
const PATCH: &str =
    r#"[{"op":"add","path":"/spec/containers/-","value":{"name":"linkerd-proxy","image":"none"}}]"#;

/// Adds a proxy to each pod.
#[derive(Clone, Default)]
struct Injector;

impl Routes for Injector {
    fn respond(_: &mut State<Self>, request: &Request) -> Response {
        let uid = &request.body["request"]["uid"];
        let patch = BASE64_STANDARD.encode(PATCH);
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch},
        });
        Response::new(200, review)
    }
}

#[test]
fn policy_annotates_meshed_and_injected_pods() {
    let _node = Node::exclusive();
    let helm = Helm::new();
    let values = "--set=networkAttachmentDefinition.annotatePods=true";
    let chart = ["template", "linkerd-cni", CHART, "-n", NAMESPACE, values];
    let policies = ["--kube-version=1.37.0", "--show-only=templates/mutating*"];
    let _policy = Applied::new(helm.must(&[&chart[..], &policies].concat()));
    let injector = Server::<Injector>::start();
    let _webhook = register_webhook(&injector);
    let meshed = json!([{"name": "app"}, {"name": "linkerd-proxy"}]);
    let unmeshed = json!([{"name": "app"}]);
    until("policy and webhook are in effect", || {
        let pod = admit(json!({}), &unmeshed, &[], true);
        pod["spec"]["containers"].as_array().unwrap().len() == 2 && networks(&pod) != Value::Null
    });

    for (name, row) in table::rows_of::<NetworksRow>(DATA, "networks") {
        let annotations = match &row.before {
            Some(before) => json!({NETWORKS: before}),
            None => json!({}),
        };
        for (containers, is_injected) in [(&meshed, false), (&unmeshed, true)] {
            let pod = admit(annotations.clone(), containers, &[], is_injected);
            assert_eq!(networks(&pod), row.after, "{name}, injected: {is_injected}");
        }
        let pod = admit(annotations, &unmeshed, &[], false);
        assert_eq!(networks(&pod), json!(row.before), "{name}, unmeshed");
    }
    let sidecar = json!({"name": "linkerd-proxy", "restartPolicy": "Always"});
    let pod = admit(json!({}), &unmeshed, &[("initContainers", json!([sidecar]))], false);
    assert_eq!(networks(&pod), "default/linkerd-cni");
    // Pods that do not need the plugin.
    let init = json!([{"name": "linkerd-init"}]);
    for field in [("hostNetwork", json!(true)), ("initContainers", init)] {
        let pod = admit(json!({}), &meshed, &[field], false);
        assert_eq!(networks(&pod), Value::Null);
    }
}

const DATA: &str = include_str!("annotated_pods.yaml");

/// A row of `networks` in `annotated_pods.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworksRow {
    before: Option<String>,
    after: String,
}

fn networks(pod: &Value) -> Value {
    pod["metadata"]["annotations"][NETWORKS].clone()
}

/// Returns the pod as the API server would create it.
fn admit(
    annotations: Value,
    containers: &Value,
    more: &[(&str, Value)],
    is_injected: bool,
) -> Value {
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
    }
    for field in ["containers", "initContainers"] {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten() {
            container["image"] = json!("none");
        }
    }
    let path = format!("{}?dryRun=All", pods::path("default"));
    api::admin().post(&path, &pod).unwrap()
}

/// Makes the API server call the injector for pods with the label [`INJECTED`].
fn register_webhook(injector: &Server<Injector>) -> Applied {
    let ca = BASE64_STANDARD.encode(injector.ca());
    let url = format!("https://{}/", injector.address);
    let mut configuration = yaml(DATA)["webhook"].take();
    configuration["webhooks"][0]["clientConfig"] = json!({"url": url, "caBundle": ca});
    Applied::new(configuration.to_string())
}
