//! How many requests an idle agent sends to a real API server.

use std::thread;
use std::time::{Duration, Instant};

use crate::helm::Helm;
use crate::node::Node;

#[test]
fn an_idle_agent_sends_at_most_one_request_in_three_minutes() {
    let node = Node::here();
    let before = node.files();
    let helm = Helm::with_local_repository();
    helm.run("install", &[]);
    let sent = idle(&node, Duration::from_secs(180), || {});
    assert!(sent.len() <= 1, "{sent:#?}");
    helm.uninstall();
    assert_eq!(node.files(), before);
}

/// Waits for `span`, in which nobody asks the agent for anything, though `meanwhile` may start
/// and delete pods. Returns what the agent sent.
#[allow(clippy::print_stdout, reason = "shows the figures")]
pub fn idle(node: &Node, span: Duration, meanwhile: impl FnOnce()) -> Vec<String> {
    let begin = Instant::now();
    let started = node.agent_requests();
    println!("until ready the agent sent {}: {started:#?}", started.len());
    meanwhile();
    thread::sleep(span.saturating_sub(begin.elapsed()));
    let sent = node.agent_requests().split_off(started.len());
    println!("in {:.0?} the idle agent sent {}: {sent:#?}", begin.elapsed(), sent.len());
    sent
}
