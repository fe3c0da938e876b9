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

fn no_taint() -> Wanted {
    Wanted::NoTaint(KEY.into())
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
    for case in yaml(include_str!("tests/cases.yaml"))["taints"].as_array().unwrap() {
        let node: Node = serde_json::from_value(node(case[0].clone())).unwrap();
        let patch = no_taint().patch(&node, SystemTime::now()).unwrap_or_default();
        assert_eq!(patch["spec"]["taints"], case[1], "{case}");
        assert!(patch.is_null() || patch["metadata"]["resourceVersion"] == "7", "{case}");
    }
}

#[test]
fn only_a_patch_that_conflicts_is_retried() {
    for (name, case) in yaml(include_str!("tests/cases.yaml"))["patches"].as_object().unwrap() {
        let responses: Vec<(u16, Value)> =
            serde_json::from_value(case["responses"].clone()).unwrap();
        assert!(case["outcome"] != 409 || responses.len() == 2 * LAST_ATTEMPTS as usize);
        let count = responses.len();
        let server = Server::<InOrder>::start();
        server.state().0.extend(responses);
        let access =
            ApiAccess { server: format!("http://{}", server.address), ..ApiAccess::default() };
        let deadlines = Deadlines::each(Duration::from_secs(5));
        let client = Client::new::<SystemResolver>(&access, "test", deadlines).unwrap();
        let found = match update(&client, "n", &no_taint(), LAST_ATTEMPTS) {
            Ok(is_patched) => json!(is_patched),
            Err(error) => json!(error.code()),
        };
        assert_eq!(found, case["outcome"], "{name}");
        let requests = server.received(|_| true);
        assert_eq!(requests.len(), count, "{name}");
        let left = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}});
        for (index, request) in requests.iter().enumerate() {
            let found = (&*request.method, request.header("content-type"), &request.body);
            let expected = match index % 2 {
                0 => ("GET", "", &Value::Null),
                _ => ("PATCH", "application/merge-patch+json", &left),
            };
            assert_eq!(found, expected, "{name}");
            assert_eq!(request.path, "/api/v1/nodes/n", "{name}");
        }
    }
}

#[test]
fn the_condition_alone_is_written_and_keeps_its_transition_time_while_its_status_is_the_same() {
    let kubelets = json!({"type": "Ready", "status": "True", "later": 1});
    let own = |status: &str, reason: &str, message: &str, times: [&str; 2]| {
        json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": times[0], "lastTransitionTime": times[1],
        })
    };
    let (old, now) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
    let ready = |times| own(READY[0], READY[1], READY[2], times);
    let not_ready = |why, times| own("False", NOT_READY, why, times);
    let bad = |why: &str| Wanted::NotReady(why.into());
    let long = "ü".repeat(MESSAGE_LIMIT);
    for (before, wanted, after) in [
        (None, Wanted::Ready, Some(vec![ready([now, now])])),
        (Some(ready([old, old])), Wanted::Ready, None),
        (Some(ready([old, old])), bad("x"), Some(vec![not_ready("x", [now, now])])),
        (Some(not_ready("x", [old, old])), bad("x"), None),
        (Some(not_ready("x", [old, old])), bad("y"), Some(vec![not_ready("y", [now, old])])),
        (Some(not_ready("x", [old, old])), Wanted::Ready, Some(vec![ready([now, now])])),
        (None, bad(&long), Some(vec![not_ready(&long[..MESSAGE_LIMIT], [now, now])])),
        (None, Wanted::NoCondition, None),
        (Some(ready([old, old])), Wanted::NoCondition, Some(vec![])),
    ] {
        let all: Vec<&Value> = before.iter().chain([&kubelets]).collect();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"resourceVersion": "7"}, "status": {"conditions": all, "images": []},
        }))
        .unwrap();
        let time = humantime::parse_rfc3339(now).unwrap();
        let expected = after.map(|own| {
            let all = [vec![kubelets.clone()], own].concat();
            json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions": all}})
        });
        assert_eq!(wanted.patch(&node, time), expected, "{before:?} {wanted:?}");
    }
}
