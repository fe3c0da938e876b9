use std::collections::VecDeque;

use serde::Deserialize;
use testkit::api::{Request, Response, Routes, Server, State};
use testkit::table;

use super::*;
use crate::kube::kubeconfig::ApiAccess;
use crate::kube::{Deadlines, SystemResolver};

const KEY: &str = "linkerd.io/cni-not-ready";

fn node(taints: Value) -> Value {
    json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints}})
}

/// An API server that sends these responses in order.
#[derive(Clone, Default)]
struct InOrder(VecDeque<(u16, Value)>);

impl Routes for InOrder {
    const HAS_TLS: bool = false;

    fn respond(state: &mut State<Self>, _: &Request) -> Response {
        let (code, body) = state.0.pop_front().unwrap();
        Response::new(code, body)
    }
}

const TABLES: &str = include_str!("tests/cases.yaml");

/// A row of `taints` in `cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaintsRow {
    #[serde(default)]
    taints: Value,
    /// Taints that the patch leaves. `None` if there is no patch.
    left: Option<Vec<Value>>,
}

/// A row of `patches` in `cases.yaml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatchRow {
    /// Status and body of each response.
    responses: Vec<(u16, Value)>,
    outcome: Value,
}

#[test]
fn removes_only_taints_with_the_key_whatever_their_effect() {
    for (name, row) in table::rows_of::<TaintsRow>(TABLES, "taints") {
        let node: Node = serde_json::from_value(node(row.taints)).unwrap();
        let patch = patch_without_taint(&node, KEY).unwrap_or_default();
        assert_eq!(patch["spec"]["taints"], json!(row.left), "{name}");
        assert!(patch.is_null() || patch["metadata"]["resourceVersion"] == "7", "{name}");
    }
}

#[test]
fn the_node_is_read_once_and_patched_once_if_it_has_the_taint() {
    for (name, row) in table::rows_of::<PatchRow>(TABLES, "patches") {
        let count = row.responses.len();
        let server = Server::<InOrder>::start();
        server.state().0.extend(row.responses);
        let access =
            ApiAccess { server: format!("http://{}", server.address), ..ApiAccess::default() };
        let deadlines = Deadlines::per_phase(Duration::from_secs(5));
        let client = Client::new::<SystemResolver>(&access, "test", deadlines).unwrap();
        let found = match remove_taint(&client, "n", KEY) {
            Ok(is_patched) => json!(is_patched),
            Err(error) => json!(error.code()),
        };
        assert_eq!(found, row.outcome, "{name}");
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
