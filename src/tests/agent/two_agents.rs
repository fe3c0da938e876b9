//! Tests two agents of this project on one node, as during a rolling update with `maxSurge`. They
//! have different images, accounts or settings.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::Agent;
use crate::agent_with_api::in_parallel;
use crate::node::{CALICO, LIST, Node, PLUGIN, TEMPLATE};
use crate::until::until;

const VARS: [(&str, &str); 2] = [
    ("LINKERD_CNI_NAMESPACE", "linkerd-cni"),
    // With this value, an agent that cannot reach the API server exits one second after SIGTERM.
    ("LINKERD_CNI_TERMINATION_GRACE_SECONDS", "6"),
];

/// Number of files that an agent writes to install the plugin: binary, kubeconfig and conflist.
const FIRST_WRITES: u64 = 3;

/// Returns the number of files that the agent has written.
fn writes(agent: &Agent) -> u64 {
    let metrics = agent.get("/metrics").1;
    let values = metrics.lines().filter_map(|line| line.split_once("_writes_total "));
    values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
}

/// Differences between the two agents. With one of the run dirs, the entries differ, too: this
/// happens when upstream's chart with this image is upgraded to this chart, or back.
const DIFFERENCES: [&str; 5] = ["image", "account", "entry", "newer's run dir", "older's run dir"];

fn start_old(what: &str) -> (Node, Agent) {
    let node = Node::with_calico();
    let run_dir = node.root().join("run").display().to_string();
    fs::create_dir(&run_dir).unwrap();
    let run_dir = if what == "older's run dir" { &*run_dir } else { "" };
    let old = node.start_ready_with(&[&VARS[..], &[("LINKERD_CNI_RUN_DIR", run_dir)]].concat());
    (node, old)
}

/// Starts the newer agent, with the image and the account of another node.
fn start_new(node: &Node, other: &Node, what: &str) -> Agent {
    let image = other.root().join("image");
    let mut plugin = PLUGIN.to_vec();
    plugin.push(0);
    fs::write(image.join("linkerd-cni"), plugin).unwrap();
    other.rotate("token-2");
    let (name, value) = match what {
        "image" => ("CONTAINER_CNI_BIN_DIR", image.display().to_string()),
        "account" => ("LINKERD_CNI_SERVICE_ACCOUNT_DIR", other.sa().display().to_string()),
        _ => ("CNI_NETWORK_CONFIG", TEMPLATE.replace("4143", "5143")),
    };
    let run_dir = node.root().join("run").display().to_string();
    let run_dir = if what == "newer's run dir" { &*run_dir } else { "" };
    let own = [(name, &*value), ("LINKERD_CNI_RUN_DIR", run_dir)];
    node.start_ready_with(&[&VARS[..], &own].concat())
}

fn is_new(node: &Node, what: &str) -> bool {
    match what {
        "image" => {
            let length = fs::metadata(node.bin("linkerd-cni")).map_or(0, |file| file.len());
            length == PLUGIN.len() as u64 + 1
        }
        "account" => node.token() == "token-2",
        _ => node.text(LIST).contains("5143"),
    }
}

#[test]
fn only_the_newer_of_two_ready_agents_writes() {
    in_parallel(DIFFERENCES, |what| {
        let ((node, mut old), other) = (start_old(what), Node::new());
        let mut new = start_new(&node, &other, what);
        old.until_ready();
        assert!(is_new(&node, what), "{what}");
        let files = node.tree();
        thread::sleep(Duration::from_secs(1));
        assert_eq!(node.tree(), files, "{what}");
        assert_eq!(writes(&old), FIRST_WRITES, "{what}: {}", old.log());
        assert!(writes(&new) <= FIRST_WRITES, "{what}: {}", new.log());
        for agent in [&old, &new] {
            assert_eq!(agent.ready().0, 200, "{what}: {}", agent.log());
            assert!(!agent.log().contains("overwritten"), "{what}: {}", agent.log());
        }
        // When the rollout ends, the newer agent does not have to write anything.
        let written = writes(&new);
        assert_eq!(old.stop(), Some(0), "{}", old.log());
        new.until_ready();
        assert_eq!((writes(&new), is_new(&node, what)), (written, true), "{what}");
        new.kill();
        node.uninstall();
        assert_eq!(node.text(LIST), CALICO);
    });
}

#[test]
fn older_agent_takes_over_when_the_newer_agent_exits() {
    in_parallel(
        DIFFERENCES.iter().flat_map(|what| [(what, false), (what, true)]),
        |(what, killed)| {
            let ((node, mut old), other) = (start_old(what), Node::new());
            let mut new = start_new(&node, &other, what);
            assert!(is_new(&node, what), "{what}");
            if killed {
                new.kill();
            } else {
                assert_eq!(new.stop(), Some(0), "{}", new.log());
            }
            until("the older agent's files", || !is_new(&node, what));
            old.until_ready();
            assert!(node.chained(LIST));
        },
    );
}

#[test]
fn older_agent_restores_missing_files_while_a_newer_agent_hangs() {
    let ((node, old), other) = (start_old("entry"), Node::new());
    let mut new = start_new(&node, &other, "entry");
    until("the older agent yields", || old.log().contains("a newer agent runs"));
    // Make the newer agent hang.
    new.signal(nix::sys::signal::Signal::SIGSTOP);
    fs::remove_file(node.bin("linkerd-cni")).unwrap();
    fs::remove_file(node.net("kubeconfig.json")).unwrap();
    node.write(LIST, CALICO);
    until("the plugin is installed", || node.is_installed());
    new.kill();
}

/// The agent watches the run dir. A pass that changed this directory would trigger the next pass.
#[test]
fn agent_with_a_run_dir_runs_no_pass_while_nothing_changes() {
    let (_node, agent) = start_old("older's run dir");
    let reads = || {
        let io = fs::read_to_string(format!("/proc/{}/io", agent.pid())).unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    // A pass reads about 30 times. Wait until the passes that the agent's own writes caused are
    // over.
    let is_idle = || {
        let before = reads();
        thread::sleep(Duration::from_secs(1));
        reads() - before < 100
    };
    until("the agent is idle", is_idle);
    assert!(is_idle(), "the agent runs passes endlessly");
}

/// Sends the record of a redirected pod.
fn send_record(socket: &Path, pod: &str) {
    let record = json!({
        "level": "info", "command": "ADD", "namespace": "emojivoto", "pod": pod,
        "pod_uid": "c0ffee00-0000-4000-8000-000000000001", "container_id": "c",
        "decision": "redirected", "backend": "native", "requests": 0, "retries": 0, "ms": 1,
    });
    // The socket may be missing.
    let _ = UnixDatagram::unbound().unwrap().send_to(record.to_string().as_bytes(), socket);
}

/// At the end of a rollback, the remaining agent must receive the plugin's records.
#[test]
fn older_agent_takes_over_the_record_socket_within_milliseconds() {
    let (node, old) = start_old("older's run dir");
    let run_dir = node.root().join("run");
    let vars = [&VARS[..], &[("LINKERD_CNI_RUN_DIR", run_dir.to_str().unwrap())]].concat();
    let mut times = Vec::new();
    for pod in ["a", "b", "c", "d", "e"] {
        let mut new = node.start_ready_with(&vars);
        assert_eq!(new.stop(), Some(0), "{}", new.log());
        let begin = Instant::now();
        until("the record is logged", || {
            send_record(&run_dir.join("records.sock"), pod);
            old.log().contains(&format!("emojivoto/{pod}"))
        });
        times.push(begin.elapsed());
    }
    times.sort();
    println!("{times:?}");
    // Check the median, because a single takeover may take longer on a busy machine.
    assert!(times[2] < Duration::from_millis(500), "{times:?}");
}
