//! How many requests the agent sends to the API server.

use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent_with_api::Scene;
use crate::api::Api;
use crate::node::Node;
use crate::until::until;

const CHECK: &str = "/api/v1/namespaces/linkerd-cni?";

/// Sends the agent the record of an ADD that failed with `code`.
fn report(node: &Node, code: u32) -> bool {
    let record = json!({
        "level": "error",
        "command": "ADD",
        "namespace": "ns",
        "pod": "web-1",
        "container_id": "c",
        "decision": "failed",
        "requests": 1,
        "ms": 7,
        "error": {"code": code, "msg": "no"},
    });
    let socket = UnixDatagram::unbound().unwrap();
    socket.set_nonblocking(true).unwrap();
    let sent = socket.send_to(record.to_string().as_bytes(), node.net(".linkerd-cni.sock"));
    sent.is_ok()
}

/// The same of one whose token or rights the API server refused.
pub fn report_rejection(node: &Node) {
    until("the agent's socket", || report(node, 102));
}

/// The same of one that could not reach the API server.
pub fn report_unreachable(node: &Node) {
    until("the agent's socket", || report(node, 101));
}

#[test]
fn idle_agent_sends_three_requests_at_its_start_and_then_none() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    let token = "POST /api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin/token";
    let check = "GET /api/v1/namespaces/linkerd-cni?resourceVersion=0";
    thread::sleep(Duration::from_secs(20));
    let daemonset =
        "GET /apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni?resourceVersion=0";
    assert_eq!(api.requests(), [token, daemonset, check]);
    // Records of other failures, and other programs' changes, are no reason to ask.
    assert!(report(&node, 101));
    node.rewrite_calico();
    agent.until_ready();
    assert_eq!(agent.stop(), Some(0));

    // The next agent takes over the token.
    api.state().requests.clear();
    let _agent = node.start_ready();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(api.requests(), [check, daemonset]);
}

#[test]
fn forbidden_token_request_is_repeated_with_a_growing_delay() {
    let api = Api::start();
    api.state().grant = 403;
    let node = Node::with_api(&api);
    let _agent = node.start();
    until("the first request", || api.asked("POST", "/token") >= 1);
    let begin = Instant::now();
    until("five requests", || api.asked("POST", "/token") >= 5);
    // 0.5, 1.5, 3.5 and 7.5 seconds after the first one, less the jitter.
    assert!(begin.elapsed() > Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(api.asked("GET", CHECK), 0);
}

#[test]
fn flood_of_records_about_rejected_tokens_causes_few_checks() {
    let Scene { api, node, agent } = Scene::start(&[]);
    report_rejection(&node);
    until("a check", || api.asked("GET", CHECK) > 1);
    let begin = Instant::now();
    let mut records = 0;
    while begin.elapsed() < Duration::from_secs(8) {
        records += u32::from(report(&node, 102));
        thread::sleep(Duration::from_millis(5));
    }
    assert!(records > 100);
    let checks = api.asked("GET", CHECK);
    let allowed = 2 + begin.elapsed().as_secs() / 10;
    assert!(checks as u64 <= allowed, "{checks} checks, one in 10 s at most");
    assert_eq!(agent.ready().0, 200);
}

#[test]
fn failed_token_check_is_repeated_with_a_growing_delay_and_the_node_stays_ready() {
    let Scene { api, node, mut agent } = Scene::start(&[]);
    api.state().namespace = Some((503, json!({"message": "overloaded"})));
    let asked = api.asked("GET", CHECK);
    report_rejection(&node);
    until("two more tries", || api.asked("GET", CHECK) >= asked + 3);
    assert_eq!(agent.ready().0, 200, "{:?}", agent.ready());
    let says = "WARN kubeconfig token: cannot check the token in the kubeconfig: ";
    assert_eq!(agent.log().matches(says).count(), 1, "{}", agent.log());
    api.state().namespace = None;
    until("an answer", || agent.log().contains("kubeconfig token: resolved"));
    agent.until_ready();
}
