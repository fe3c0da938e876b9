use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::*;
use crate::kube::Deadlines;
use crate::kube::kubeconfig::ApiAccess;

const KEY: &str = "linkerd.io/cni-not-ready";

fn node(taints: Value) -> Value {
    json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints}})
}

/// Starts a server that sends `responses` in order. Its thread returns the requests.
fn serve(responses: Vec<(u16, Value)>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let access = ApiAccess {
        server: format!("http://{}", listener.local_addr().unwrap()),
        ..ApiAccess::default()
    };
    let client = Client::new(&access, "test", Deadlines::each(Duration::from_secs(5))).unwrap();
    let mut responses = VecDeque::from(responses);
    let server = thread::spawn(move || {
        let mut requests = Vec::new();
        while let Some((code, body)) = responses.pop_front() {
            let (stream, _) = listener.accept().unwrap();
            requests.push(read(&mut BufReader::new(&stream)));
            let body = body.to_string();
            let head = format!("HTTP/1.1 {code} X\r\nConnection: close\r\n");
            let length = body.len();
            (&stream)
                .write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
                .unwrap();
        }
        requests
    });
    (client, server)
}

/// Reads a request, and returns method, path, content type and body in one line.
fn read(reader: &mut impl BufRead) -> String {
    let mut lines = reader.by_ref().lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    let mut text = first.trim_end_matches(" HTTP/1.1").to_owned();
    let mut length = 0;
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap(),
            Some(("content-type", value)) => text += &format!(" {value}"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    format!("{text} {}", String::from_utf8(body).unwrap()).trim_end().to_owned()
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
        let node: NodeTaints = serde_json::from_value(node(taints)).unwrap();
        let wanted = left
            .map(|left| json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": left}}));
        assert_eq!(patch(&node, KEY), wanted, "{name}");
    }
}

#[test]
fn a_conflicting_patch_is_repeated_and_nothing_else_is() {
    let tainted = || (200, node(json!([{"key": KEY, "effect": "NoSchedule"}])));
    let error = |code: u16| (code, json!({"message": "no"}));
    let (done, conflict) = ((200, json!({})), error(409));
    let conflicts = (0..MAX_ATTEMPTS).flat_map(|_| [tainted(), conflict.clone()]).collect();
    for (name, responses, is_ready, expected) in [
        ("patched", vec![tainted(), done.clone()], true, Ok(Removal::Removed)),
        (
            "patched after a conflict",
            vec![tainted(), conflict.clone(), tainted(), done],
            true,
            Ok(Removal::Removed),
        ),
        (
            "removed by another client",
            vec![tainted(), conflict, (200, node(json!([])))],
            true,
            Ok(Removal::Absent),
        ),
        ("not ready after the read", vec![tainted()], false, Ok(Removal::NotReady)),
        ("forbidden", vec![error(403)], true, Err(Some(403))),
        ("conflicts", conflicts, true, Err(Some(409))),
    ] {
        let count = responses.len();
        let (client, server) = serve(responses);
        let found = remove(&client, "n", KEY, || is_ready).map_err(|error| error.code());
        assert_eq!(found, expected, "{name}");
        let requests = server.join().unwrap();
        assert_eq!(requests.len(), count, "{name}");
        let body = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}});
        let patch = format!("PATCH /api/v1/nodes/n application/merge-patch+json {body}");
        for (index, request) in requests.iter().enumerate() {
            let expected = if index % 2 == 0 { "GET /api/v1/nodes/n" } else { &patch };
            assert_eq!(request, expected, "{name}");
        }
    }
}
