//! What the plugin reports, in the agent's log and metrics.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::call::Call;
use crate::node::{CALICO, LIST, Node};
use crate::until::until;

const SOCKET: &str = ".linkerd-cni.sock";

fn is_there(node: &Node) -> bool {
    let file = fs::symlink_metadata(node.net(SOCKET));
    file.is_ok_and(|file| file.file_type().is_socket() && file.mode() & 0o777 == 0o600)
}

/// A call of the plugin for a pod without annotations of Linkerd's, or with one, which
/// it cannot ask anybody about.
fn add(node: &Node, pod: &str, meshed: bool) {
    let annotations = match meshed {
        true => json!({"linkerd.io/proxy-version": "x"}),
        false => json!({}),
    };
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod}");
    let netns = Path::new("/no/such/namespace");
    let call = Call::with_kubeconfig("ADD", netns, &node.net("kubeconfig.json"));
    let call = call.env("CNI_ARGS", args).env("LINKERD_CNI_RUN_DIR", node.root().join("run"));
    let outcome = call.annotated(annotations).linkerd("api-retry-seconds", 1).run();
    assert_eq!(outcome.code == Some(0), !meshed, "{}", outcome.stderr);
}

#[test]
fn plugin_calls_are_in_the_agents_log_and_metrics() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    until("the socket", || is_there(&node));
    add(&node, "web-1", false);
    add(&node, "web-2", true);
    let passed = "INFO linkerd-cni: ADD ns/web-1 container abc: \
                  skipped: not meshed (no annotation of a proxy), 0 requests, ";
    until("the first record", || agent.log().contains(passed));
    let failed = "ERROR linkerd-cni: ADD ns/web-2 container abc: failed, ";
    until("the second record", || agent.log().contains(failed));
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(failed)).unwrap();
    let why = "the CA of the API server contains no PEM certificate (code 100)";
    assert!(line.ends_with(why), "{line}");
    for result in ["skipped", "failed"] {
        let sample =
            format!("linkerd_cni_plugin_requests_total{{command=\"ADD\",result=\"{result}\"}}");
        assert_eq!(agent.metric(&sample), 1.0);
    }
    assert!(!log.contains("token-1"));
}

#[test]
fn a_deleted_record_socket_is_created_again() {
    let node = Node::with_calico();
    // What an agent left that was killed.
    drop(UnixDatagram::bind(node.net(SOCKET)).unwrap());
    let agent = node.start_ready();
    let heard = |pod: &str| {
        until("the socket", || is_there(&node));
        let named = format!("ns/{pod} ");
        until(pod, || {
            add(&node, pod, false);
            agent.log().contains(&named)
        });
    };
    heard("web-1");
    fs::remove_file(node.net(SOCKET)).unwrap();
    heard("web-2");
    node.remove_tree("etc");
    fs::create_dir(node.root().join("etc")).unwrap();
    node.write(LIST, CALICO);
    heard("web-3");
    let log = agent.log();
    let count = |text| log.matches(text).count();
    let failures = count("cannot receive plugin records");
    assert_eq!(failures, count("plugin records are received again"), "{log}");
}

#[test]
fn with_a_run_dir_the_record_socket_is_there_and_not_in_the_net_dir() {
    let node = Node::uninstalling_with_calico();
    let run_dir = node.root().join("run");
    fs::create_dir(&run_dir).unwrap();
    let vars = [("LINKERD_CNI_RUN_DIR", run_dir.to_str().unwrap())];
    // What an agent left that was killed.
    drop(UnixDatagram::bind(node.net(SOCKET)).unwrap());
    let mut agent = node.start_ready_with(&vars);
    until("the socket", || run_dir.join("records.sock").exists());
    until("the record", || {
        add(&node, "web", false);
        agent.log().contains("ns/web ")
    });
    assert_eq!(agent.stop(), Some(0), "{}", agent.log());
    assert!(!node.net(SOCKET).exists());
    assert_eq!(fs::read_dir(&run_dir).unwrap().count(), 0);
}

#[test]
fn uninstall_removes_the_record_socket_of_a_stopped_or_killed_agent() {
    let node = Node::uninstalling_with_calico();
    let before = node.tree();
    let mut agent = node.start_ready();
    until("the socket", || is_there(&node));
    node.assert_restored(&mut agent, &before);

    // One that was killed leaves it, and the next one's uninstall takes it.
    let mut agent = node.start_ready();
    until("the socket", || is_there(&node));
    agent.signal(Signal::SIGKILL);
    agent.wait();
    assert!(is_there(&node));
    let mut agent = node.start_ready();
    node.assert_restored(&mut agent, &before);
}

#[test]
fn the_record_socket_of_a_dead_agent_is_removed_also_by_a_failed_uninstall() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    agent.kill();

    // A config that names the plugin and cannot be corrected keeps the plugin on the node.
    node.write("05-broken.conflist", r#"{"plugins": [{"type": "linkerd-cni""#);
    assert!(node.net(SOCKET).exists());
    node.uninstall_ends_with(1);
    assert!(!node.net(SOCKET).exists() && node.bin("linkerd-cni").exists());
    // Another agent's socket stays.
    let alive = UnixDatagram::bind(node.net(SOCKET)).unwrap();
    node.uninstall_ends_with(1);
    assert!(node.net(SOCKET).exists());
    drop(alive);
}

#[test]
fn uninstall_keeps_the_record_socket_of_a_live_agent() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    agent.kill();
    std::fs::remove_file(node.net(SOCKET)).unwrap();
    let _alive = UnixDatagram::bind(node.net(SOCKET)).unwrap();
    node.uninstall();
    assert!(node.net(SOCKET).exists() && !node.bin("linkerd-cni").exists());
}

#[test]
fn a_flood_of_records_is_logged_at_a_limited_rate_and_invalid_records_are_not_logged() {
    let node = Node::with_calico();
    let mut agent = node.start_ready();
    until("the socket", || is_there(&node));
    let writer = UnixDatagram::unbound().unwrap();
    writer.set_nonblocking(true).unwrap();
    let send = |text: &str| writer.send_to(text.as_bytes(), node.net(SOCKET)).is_ok();
    let record = |pod: &str| {
        format!(
            r#"{{"level":"info","command":"ADD","namespace":"ns","pod":"{pod}",
            "container_id":"c","decision":"redirected","backend":"native","requests":2,"ms":3}}"#
        )
    };
    for bad in ["", "x", "{}", &record("a\\nb"), &record(&"a".repeat(20_000))] {
        until("room", || send(bad));
    }
    until("room", || send(&record("good")));
    until("the valid record is read", || agent.log().contains("ns/good "));
    assert_eq!(agent.log().matches("linkerd-cni: ").count(), 1, "{}", agent.log());

    let begin = Instant::now();
    let lines = || agent.log().matches("ns/flood ").count();
    until("a burst goes through", || {
        for _ in 0..64 {
            send(&record("flood"));
        }
        lines() >= 256
    });
    for _ in 0..400 {
        send(&record("flood"));
        thread::sleep(Duration::from_millis(2));
    }
    let allowed = 257 + begin.elapsed().as_millis() / 100;
    assert!(lines() as u128 <= allowed, "{} of {allowed}", lines());
    agent.until_ready();
}
