//! What `/ready` and `/live` depend on besides the node's files: the address that they are served
//! on, and passes that end.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::{Agent, get};
use crate::child::{KilledOnDrop, has_strace};
use crate::node::{CALICO, LIST, Node, PROGRAM};
use crate::until::until;
use crate::unwritable::{Unwritable, closed, full_device, full_pipe};

/// Whether the address serves `/live`.
fn serves(host: &str, port: u16) -> bool {
    let address = format!("{host}:{port}").parse().unwrap();
    get(address, "/live").is_some_and(|(status, _)| status == 200)
}

#[test]
fn the_probes_are_served_on_both_families_unless_the_address_selects_one() {
    for (address, on_ipv6) in [("[::]:0", true), (":0", true), ("0.0.0.0:0", false)] {
        let node = Node::with_calico();
        let agent = node.start_ready_with(&[("LINKERD_CNI_ADMIN_ADDR", address)]);
        assert!(serves("127.0.0.1", agent.port()), "{address}");
        assert_eq!(serves("[::1]", agent.port()), on_ipv6, "{address}");
    }
}

#[test]
fn the_status_names_the_active_conflist_while_it_calls_the_plugin() {
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
    // This conflist sorts first. It has no plugin, so the plugin entry cannot be chained to it.
    node.write("00-broken.conflist", "{}");
    until("the problem is shown", || status()["problems"].to_string().contains("00-broken"));
}

/// On a node whose containers have all of `fs.inotify.max_user_instances`.
#[test]
fn main_loop_problem_is_in_log_status_and_metric() {
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
    // The agent polls, so it stays ready.
    assert_eq!(status["ready"], true, "{body}");
}

#[test]
fn probes_are_served_despite_listener_faults_that_are_logged_once() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    let mut agent = node.start_with_fault("accept4:error=EMFILE:when=1..5", &[]);
    // The first request waits until its connection is accepted.
    agent.until_ready();
    let log = agent.log();
    for line in ["cannot accept a connection", "accepts connections again"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    // Without IPv6 in the kernel. The admin listener is the first socket that is bound.
    let vars = [("LINKERD_CNI_ADMIN_ADDR", "[::]:0")];
    let agent = node.start_with_fault("bind:error=EAFNOSUPPORT:when=1", &vars);
    until("the listener", || agent.log().contains(" on 0.0.0.0:"));
    assert!(serves("127.0.0.1", agent.port()));
}

/// Delays each `openat` of the agent's main thread, as a file system does that hangs. Dropping the
/// value ends the delay.
fn hang_files_of(agent: &Agent) -> KilledOnDrop {
    // strace runs without -f, so the other threads go on.
    let strace = "-qq -o /dev/null -e trace=openat -e inject=openat:delay_enter=900000000 -p";
    let pid = agent.pid().to_string();
    KilledOnDrop(Command::new("strace").args(strace.split(' ')).arg(pid).spawn().unwrap())
}

#[test]
fn a_hanging_pass_fails_ready_at_once_and_live_after_a_minute() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    let mut agent = node.start_ready_with(&[("LINKERD_CNI_RESYNC_SECONDS", "1")]);
    let begin = Instant::now();
    let hung = hang_files_of(&agent);
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
fn the_probes_are_served_while_the_first_pass_hangs() {
    if !has_strace() {
        return;
    }
    let node = Node::with_calico();
    // The plugin binary is synced after the directory of the socket for plugin records.
    let vars = [("LINKERD_CNI_RESYNC_SECONDS", "1")];
    let agent = node.start_with_fault("fsync:delay_enter=900000000:when=2+", &vars);
    // The age of a pass grows only while the pass hangs.
    until("the hang is noticed", || {
        agent.ready().1.contains("no reconcile pass has finished for ")
    });
    assert_eq!(agent.ready().0, 500);
    assert_eq!(agent.get("/live").0, 200);
    // The binary does not have its name yet.
    let names: Vec<String> = node.tree().into_keys().collect();
    assert!(names[0].starts_with("bin/.linkerd-cni."), "{names:?}");
    assert_eq!(names[1..], ["etc/.linkerd-cni.sock", "etc/10-calico.conflist"]);
    assert_eq!(node.text(LIST), CALICO);
}

/// An agent whose stdout and stderr take nothing, as under a runtime's shim that hangs. It cannot
/// log its address.
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
