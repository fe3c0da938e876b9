use std::collections::VecDeque;

use testkit::api::{Request, Response, Routes, Server, State};
use testkit::chart::yaml;

use super::*;
use crate::kube::kubeconfig::ApiAccess;
use crate::kube::{Deadlines, SystemResolver};

const KEY: &str = "linkerd.io/cni-not-ready";

fn node(taints: Value) -> Value {
    json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints}})
}

/// Sends these responses in order.
#[derive(Clone, Default)]
struct InOrder(VecDeque<(u16, Value)>);

impl Routes for InOrder {
    const HAS_TLS: bool = false;

    fn respond(state: &mut State<Self>, _: &Request) -> Response {
        let (code, body) = state.0.pop_front().unwrap();
        Response::new(code, body)
    }
}

#[test]
fn removes_only_taints_with_the_key_whatever_their_effect() {
    for (name, case) in yaml(include_str!("tests/cases.yaml"))["taints"].as_object().unwrap() {
        let node: Node = serde_json::from_value(node(case["taints"].clone())).unwrap();
        let patch = patch_without_taint(&node, KEY).unwrap_or_default();
        assert_eq!(patch["spec"]["taints"], case["left"], "{name}");
        assert!(patch.is_null() || patch["metadata"]["resourceVersion"] == "7", "{name}");
    }
}

#[test]
fn an_attempt_is_one_read_and_one_patch_if_the_node_has_the_taint() {
    for (name, case) in yaml(include_str!("tests/cases.yaml"))["patches"].as_object().unwrap() {
        let responses: Vec<(u16, Value)> =
            serde_json::from_value(case["responses"].clone()).unwrap();
        let count = responses.len();
        let server = Server::<InOrder>::start();
        server.state().0.extend(responses);
        let access =
            ApiAccess { server: format!("http://{}", server.address), ..ApiAccess::default() };
        let deadlines = Deadlines::per_phase(Duration::from_secs(5));
        let client = Client::new::<SystemResolver>(&access, "test", deadlines).unwrap();
        let found = match remove_taint(&client, "n", KEY) {
            Ok(is_patched) => json!(is_patched),
            Err(error) => json!(error.code()),
        };
        assert_eq!(found, case["outcome"], "{name}");
        let requests = server.received(|_| true);
        assert_eq!(requests.len(), count, "{name}");
        let left = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}});
        let expected =
            [("GET", "", &Value::Null), ("PATCH", "application/merge-patch+json", &left)];
        for (request, expected) in requests.iter().zip(expected) {
            let found = (&*request.method, request.header("content-type"), &request.body);
            assert_eq!(found, expected, "{name}");
            assert_eq!(request.path, "/api/v1/nodes/n", "{name}");
        }
    }
}
