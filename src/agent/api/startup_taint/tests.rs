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
fn patch_contains_the_resource_version_of_the_node() {
    let tainted = node(json!([{"key": KEY, "effect": "NoSchedule"}]));
    let (client, server) = serve(vec![(200, tainted), (200, json!({}))]);
    assert_eq!(remove(&client, "n", KEY, || true).unwrap(), Removal::Removed);
    let body = json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": []}});
    assert_eq!(
        server.join().unwrap(),
        [
            "GET /api/v1/nodes/n".to_owned(),
            format!("PATCH /api/v1/nodes/n application/merge-patch+json {body}"),
        ]
    );
}

#[test]
fn reads_the_node_again_after_a_conflict() {
    let tainted = node(json!([{"key": KEY, "effect": "NoSchedule"}]));
    let conflict = (409, json!({"message": "changed"}));
    let responses =
        vec![(200, tainted.clone()), conflict.clone(), (200, tainted.clone()), (200, json!({}))];
    let (client, server) = serve(responses);
    assert_eq!(remove(&client, "n", KEY, || true).unwrap(), Removal::Removed);
    assert_eq!(server.join().unwrap().len(), 4);

    let (client, server) = serve(vec![(200, tainted), conflict, (200, node(json!([])))]);
    // Another client removed the taint.
    assert_eq!(remove(&client, "n", KEY, || true).unwrap(), Removal::Absent);
    server.join().unwrap();
}

#[test]
fn a_node_that_becomes_not_ready_after_it_was_read_keeps_its_taint() {
    let tainted = node(json!([{"key": KEY, "effect": "NoSchedule"}]));
    let (client, server) = serve(vec![(200, tainted)]);
    assert_eq!(remove(&client, "n", KEY, || false).unwrap(), Removal::NotReady);
    assert_eq!(server.join().unwrap(), ["GET /api/v1/nodes/n"]);
}

#[test]
fn fails_at_once_if_forbidden_and_after_max_attempts_on_conflicts() {
    let tainted = (200, node(json!([{"key": KEY, "effect": "NoSchedule"}])));
    let error_response = |code: u16| (code, json!({"message": "no"}));
    let (client, server) = serve(vec![error_response(403)]);
    let error = remove(&client, "n", KEY, || true).unwrap_err();
    assert_eq!(error.code(), Some(403));
    server.join().unwrap();

    let responses = (0..MAX_ATTEMPTS).flat_map(|_| [tainted.clone(), error_response(409)]);
    let (client, server) = serve(responses.collect());
    let error = remove(&client, "n", KEY, || true).unwrap_err();
    assert_eq!(error.code(), Some(409));
    assert_eq!(server.join().unwrap().len(), 2 * MAX_ATTEMPTS as usize);
}
