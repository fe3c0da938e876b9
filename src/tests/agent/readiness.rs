//! Tests `/ready`, `/live` and `/status`: the addresses that serve them, hanging reconcile passes,
//! and unwritable outputs.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::{Agent, get};
use crate::child::{KilledOnDrop, has_strace};
use crate::node::{CALICO, LIST, Node, PROGRAM};
use crate::until::until;
use crate::unwritable::{Unwritable, closed, full_device, full_pipe};

/// Returns whether the address serves `/live`.
fn serves(host: &str, port: u16) -> bool {
    let address = format!("{host}:{port}").parse().unwrap();
    get(address, "/live").is_some_and(|(status, _)| status == 200)
}

#[test]
fn probes_are_served_on_ipv4_and_ipv6_unless_the_address_selects_one() {
    for (address, on_ipv6) in [("[::]:0", true), (":0", true), ("0.0.0.0:0", false)] {
        let node = Node::with_calico();
        let agent = node.start_ready_with(&[("LINKERD_CNI_ADMIN_ADDR", address)]);
        assert!(serves("127.0.0.1", agent.port()), "{address}");
        assert_eq!(serves("[::1]", agent.port()), on_ipv6, "{address}");
    }
}

#[test]
fn status_contains_the_active_conflist_and_the_problems() {
    let node = Node::with_calico();
    let agent = node.start_ready();
    let status = || -> serde_json::Value {
        let (code, body) = agent.get("/status");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    until("the status names the conflist", || status()["conflist"] == LIST);
    assert_eq!(status()["ready"], true);
    assert_eq!(status()["version"], env!("CARGO_PKG_VERSION"));
    // This conflist sorts first. It has no plugins, so the plugin entry cannot be chained to it.
    node.write("00-broken.conflist", "{}");
    until("the problem is shown", || status()["problems"].to_string().contains("00-broken"));
}

/// Simulates a node whose containers use all inotify instances (`fs.inotify.max_user_instances`).
#[test]
fn missing_inotify_instance_is_reported_in_log_status_and_metric() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    let mut agent = node.start_with_fault("inotify_init1:error=EMFILE", &[]);
    agent.until_ready();
    let why = "all inotify instances are in use (fs.inotify.max_user_instances)";
    until("the problem is logged", || agent.log().contains(why));
    let (_, body) = agent.get("/status");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(status["problems"]["inotify"].as_str().unwrap().contains(why), "{body}");
    assert!(agent.metric("linkerd_cni_agent_reconcile_errors_total") > 0.0);
    // The agent polls instead, so it is ready.
    assert_eq!(status["ready"], true, "{body}");
}

#[test]
fn probes_are_served_despite_listener_faults_and_each_fault_is_logged_once() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    let mut agent = node.start_with_fault("accept4:error=EMFILE:when=1..5", &[]);
    // The first request succeeds only after the agent has retried to accept its connection.
    agent.until_ready();
    let log = agent.log();
    for line in ["cannot accept a connection", "accepts connections again"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    // Simulate a kernel without IPv6. The socket of the admin server is the first one that is
    // bound.
    let vars = [("LINKERD_CNI_ADMIN_ADDR", "[::]:0")];
    let agent = node.start_with_fault("bind:error=EAFNOSUPPORT:when=1", &vars);
    until("the listener", || agent.log().contains(" on 0.0.0.0:"));
    assert!(serves("127.0.0.1", agent.port()));
}

/// Delays each `openat` of the agent's main thread, like a hanging file system. Dropping the value
/// ends the delay.
fn hang_file_system(agent: &Agent) -> KilledOnDrop {
    // Without -f, strace does not delay the other threads.
    let strace = "-qq -o /dev/null -e trace=openat -e inject=openat:delay_enter=900000000 -p";
    let pid = agent.pid().to_string();
    KilledOnDrop(Command::new("strace").args(strace.split(' ')).arg(pid).spawn().unwrap())
}

#[test]
fn hanging_pass_fails_ready_immediately_and_live_after_a_minute() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    let mut agent = node.start_ready_with(&[("LINKERD_CNI_RESYNC_SECONDS", "1")]);
    let begin = Instant::now();
    let hung = hang_file_system(&agent);
    until("not ready", || agent.ready().0 == 500);
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    let (_, body) = agent.ready();
    assert!(body.starts_with("not ready: no reconcile pass has finished for "), "{body}");
    assert!(agent.get("/metrics").1.contains("linkerd_cni_agent_ready 0\n"));
    assert_eq!(agent.get("/live"), (200, "alive\n".into()));
    until("not alive", || agent.get("/live").0 == 500);
    let (_, body) = agent.get("/live");
    assert!(body.starts_with("not alive: a reconcile pass has been running for "), "{body}");
    drop(hung);
    agent.until_ready();
    assert_eq!(agent.get("/live").0, 200);
}

#[test]
fn probes_are_served_while_the_first_pass_hangs() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    // Let the first fsync succeed, which syncs the directory of the record socket. The second one
    // syncs the plugin binary.
    let vars = [("LINKERD_CNI_RESYNC_SECONDS", "1")];
    let agent = node.start_with_fault("fsync:delay_enter=900000000:when=2+", &vars);
    // The agent reports this only if a pass hangs.
    until("the hanging pass is reported", || {
        agent.ready().1.contains("no reconcile pass has finished for ")
    });
    assert_eq!(agent.ready().0, 500);
    assert_eq!(agent.get("/live").0, 200);
    // The binary still has its temporary name.
    let names: Vec<String> = node.tree().into_keys().collect();
    assert!(names[0].starts_with("bin/.linkerd-cni."), "{names:?}");
    assert_eq!(names[1..], ["etc/.linkerd-cni.sock", "etc/10-calico.conflist"]);
    assert_eq!(node.text(LIST), CALICO);
}

/// stdout and stderr are not writable if the runtime's shim hangs. The agent cannot log its address
/// then, so the test sets it.
#[test]
fn agent_installs_reconciles_and_uninstalls_with_closed_or_full_outputs() {
    for (output, level) in [
        (full_device(), "info"),
        (closed(), "info"),
        (closed(), "trace"),
        (full_pipe(), "info"),
        (full_pipe(), "trace"),
    ] {
        let node = Node::uninstalling_with_calico();
        let before = node.tree();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut agent = start_with_output(&node, &output, address, level);
        let case = format!("{} at level {level}", output.name);
        let ready = || get(address, "/ready").is_some_and(|(status, _)| status == 200);
        until(&format!("ready with {case}"), ready);

        node.rewrite_calico();
        until(&format!("ready again with {case}"), ready);
        let (_, metrics) = get(address, "/metrics").unwrap();
        let none_dropped = metrics.contains("\nlinkerd_cni_agent_log_lines_dropped_total 0\n");
        assert_eq!(none_dropped, output.name == "closed", "{case}");
        node.assert_restored(&mut agent, &before);
    }
}

fn start_with_output(node: &Node, output: &Unwritable, address: SocketAddr, level: &str) -> Agent {
    let mut command = output.as_stderr_of(PROGRAM);
    node.set(&mut command);
    command
        .env("LINKERD_CNI_ADMIN_ADDR", address.to_string())
        .env("LINKERD_CNI_LOG_LEVEL", level)
        .stdout(output.stdio());
    let no_log = node.root().join("no-log");
    fs::write(&no_log, "").unwrap();
    Agent::new(command.spawn().unwrap(), no_log)
}
