use std::collections::VecDeque;

use testkit::api::{Request, Response, Routes, Server, State};

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
    let other =
        json!({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "t"});
    let startup_taint = |effect: &str| json!({"key": KEY, "value": "true", "effect": effect});
    for (name, taints, left) in [
        ("no list", Value::Null, None),
        ("an empty list", json!([]), None),
        ("another taint", json!([other]), None),
        ("the startup taint", json!([startup_taint("NoSchedule")]), Some(json!([]))),
        (
            "the startup taint twice and another taint",
            json!([startup_taint("NoSchedule"), other, startup_taint("NoExecute")]),
            Some(json!([other])),
        ),
    ] {
        let node: Node = serde_json::from_value(node(taints)).unwrap();
        let wanted = left
            .map(|left| json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": left}}));
        assert_eq!(no_taint().patch(&node, SystemTime::now()), wanted, "{name}");
    }
}

#[test]
fn a_conflicting_patch_is_repeated_and_nothing_else_is() {
    let tainted = || (200, node(json!([{"key": KEY, "effect": "NoSchedule"}])));
    let error = |code: u16| (code, json!({"message": "no"}));
    let (done, conflict) = ((200, json!({})), error(409));
    let conflicts = (0..MAX_ATTEMPTS).flat_map(|_| [tainted(), conflict.clone()]).collect();
    for (name, responses, is_ready, expected) in [
        ("patched", vec![tainted(), done.clone()], true, Ok(Outcome::Patched)),
        (
            "patched after a conflict",
            vec![tainted(), conflict.clone(), tainted(), done],
            true,
            Ok(Outcome::Patched),
        ),
        (
            "removed by another client",
            vec![tainted(), conflict, (200, node(json!([])))],
            true,
            Ok(Outcome::Unchanged),
        ),
        ("not ready after the read", vec![tainted()], false, Ok(Outcome::Obsolete)),
        ("forbidden", vec![error(403)], true, Err(Some(403))),
        ("conflicts", conflicts, true, Err(Some(409))),
    ] {
        let count = responses.len();
        let server = Server::<InOrder>::start();
        server.state().0.extend(responses);
        let access =
            ApiAccess { server: format!("http://{}", server.address), ..ApiAccess::default() };
        let deadlines = Deadlines::each(Duration::from_secs(5));
        let client = Client::new::<SystemResolver>(&access, "test", deadlines).unwrap();
        let found = update(&client, "n", &no_taint(), || is_ready).map_err(|error| error.code());
        assert_eq!(found, expected, "{name}");
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
    let ready = |times| own("True", READY[0], READY[1], times);
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
