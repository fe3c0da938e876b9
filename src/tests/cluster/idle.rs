//! Number of requests that an idle agent sends to a real API server.
//!
//! The agent runs beside the other tests: its release has other names, its own namespace and its own directories, in
//! which the other tests change nothing.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::kubectl::piped;
use crate::node::{AuditLog, Node};
use crate::pods::{command, kubectl};
use crate::until::until_within;

const NAMESPACE: &str = "idle";
const DIRECTORY: &str = "/run/linkerd2-cni-idle";
const SPAN: Duration = Duration::from_secs(300);

#[test]
fn an_idle_agent_sends_at_most_one_request_in_five_minutes() {
    let log = AuditLog::from_now();
    let agent = Agent::install();
    until_within(Duration::from_secs(120), "the agent is ready", || {
        let ready = "jsonpath={.status.numberReady}";
        kubectl(&format!("get daemonset idle-linkerd-cni -n {NAMESPACE} -o {ready}")) == "1"
    });
    let started = log.requests_of_accounts_in(NAMESPACE);
    println!("until ready the agent sent {}: {started:#?}", started.len());
    assert!(!started.is_empty(), "the agent requests a token when it starts");

    let begin = Instant::now();
    while begin.elapsed() < SPAN {
        thread::sleep(Duration::from_secs(1));
    }
    let sent = log.requests_of_accounts_in(NAMESPACE).split_off(started.len());
    println!("in {SPAN:.0?} the idle agent sent {}: {sent:#?}", sent.len());
    assert!(sent.len() <= 1, "{sent:#?}");
    // Other tests stop the API server, which the deletion needs.
    let node = Node::exclusive();
    drop(agent);
    drop(node);
}

/// The installed agent. Dropping the value uninstalls it.
struct Agent {
    objects: String,
}

impl Agent {
    fn install() -> Agent {
        let directory = Path::new(DIRECTORY);
        for name in ["bin", "net.d"] {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
        let plugin = json!({"type": "bridge"});
        let conflist = json!({"cniVersion": "1.0.0", "name": "idle", "plugins": [plugin]});
        fs::write(directory.join("net.d/10-idle.conflist"), conflist.to_string()).unwrap();
        // The agent waits for the primary CNI's plugin in the directory.
        fs::write(directory.join("bin/bridge"), "#!/bin/sh\n").unwrap();

        let agent = Agent { objects: objects() };
        kubectl(&format!("create namespace {NAMESPACE}"));
        piped("apply -f -", &agent.objects);
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !thread::panicking() {
            // The agent uninstalls once it sees that its DaemonSet is deleted.
            let delete = ["delete", "daemonset", "--all", "-n", NAMESPACE];
            let _ = command(&delete).args(["--cascade=foreground", "--timeout=60s"]).output();
        }
        piped("delete --ignore-not-found --wait=false -f -", &self.objects);
        let _ = command(&format!("delete namespace {NAMESPACE} --timeout=60s")).output();
        for directory in [DIRECTORY, "/run/idle-linkerd-cni"] {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// The chart's objects with names that no other release has, and without the label by which other tests find the
/// chart's objects.
fn objects() -> String {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/linkerd2-cni");
    // Pods of other tests and their restarts of the API server would cause requests of a watch: the fleet counts those.
    let values = format!(
        "watchPods=false,repairController.enabled=false,destCNINetDir={DIRECTORY}/net.d,destCNIBinDir={DIRECTORY}/bin"
    );
    let rendered = Command::new("helm")
        .args(["template", "linkerd-cni", chart.to_str().unwrap(), "-n", NAMESPACE])
        .args(["--kube-version", "1.36.0", "--skip-tests", "--set", &values])
        .output()
        .unwrap();
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    let lines = rendered.lines().filter(|line| !line.contains("linkerd.io/cni-resource"));
    let renamed = lines.map(|line| match line.trim_start().starts_with('"') {
        // The plugin entry in the ConfigMap.
        true => line.to_owned(),
        false => line.replace("linkerd-cni", "idle-linkerd-cni"),
    });
    renamed.collect::<Vec<_>>().join("\n")
}
