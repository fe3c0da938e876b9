//! What `linkerd cni check` says of one agent. The other objects of its cluster are healthy, and a script stands for
//! kubectl: src/tests/cluster has the checks with a real one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::until::until;

const BIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/agent/catalogue/bin");
const CHECK_TIMEOUT: &str = "--wait=0s";

/// The problems in the output of `linkerd cni check -o short`, each with its lines. Waits until `/ready` of the agent
/// has this body, or is ready if `None`: during a reconcile pass it may say something else.
pub fn problems(agent: &Agent, not_ready: Option<&str>) -> Vec<String> {
    let wanted = not_ready.map(|body| body.trim_start_matches("not ready: ").trim_end());
    let mut status = String::new();
    until("the state that was captured", || {
        status = agent.get("/status").1;
        let body: Value = serde_json::from_str(&status).unwrap_or_default();
        body["notReady"].as_str() == wanted && body["version"].is_string()
    });
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("api");
    serve(UnixListener::bind(&socket).unwrap(), status, not_ready.is_none());
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"))
        .args(["check", "-o", "short", CHECK_TIMEOUT])
        .env("PATH", format!("{BIN}:/usr/bin:/bin"))
        .env("API_SOCKET", &socket)
        .output()
        .unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let mut problems: Vec<String> = Vec::new();
    for line in report.lines().map(|line| line.replace('\t', "        ")) {
        match problems.last_mut() {
            _ if line.starts_with(['×', '‼']) => problems.push(format!("{line}\n")),
            Some(problem) if line.starts_with(' ') => problem.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    problems
}

/// Responds as `kubectl proxy` does, until the test's process ends.
fn serve(listener: UnixListener, status: String, is_ready: bool) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            respond(stream.unwrap(), &status, is_ready);
        }
    });
}

fn respond(mut stream: UnixStream, status: &str, is_ready: bool) {
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).unwrap();
    // The first connection shows only that the socket is open.
    let Some(path) = line.split_whitespace().nth(1).and_then(|path| path.split('?').next()) else {
        return;
    };
    let (code, body) = match object(path, status, is_ready) {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", json!({"reason": "NotFound", "message": path}).to_string()),
    };
    let _ = write!(stream, "HTTP/1.0 {code}\r\n\r\n{body}");
}

/// An object of a cluster of one node with a healthy installation. `status` is what the agent reports.
fn object(path: &str, status: &str, is_ready: bool) -> Option<String> {
    let spec = json!({
        "serviceAccountName": "linkerd-cni",
        "nodeName": "node-1",
        "containers": [{
            "name": "install-cni",
            "ports": [{"name": "install-admin", "containerPort": 9991}],
            "env": [{"name": "LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "value": "linkerd-cni-plugin"}],
        }],
    });
    // The DaemonSet, which also stands for objects whose metadata alone count.
    let set = json!({
        "metadata": {"name": "linkerd-cni", "namespace": "linkerd-cni", "generation": 1,
            "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
        "spec": {"template": {"spec": spec}},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1},
    });
    let ready = if is_ready { "True" } else { "False" };
    let object = match path.rsplit('/').next()? {
        "status" => return Some(status.to_owned()),
        "version" => json!({"gitVersion": "v1.36.0"}),
        "nodes" => json!({"items": [{"metadata": {"name": "node-1"}, "spec": {}}]}),
        "daemonsets" => json!({"items": [set]}),
        "pods" if path.contains("/linkerd-cni/") => json!({"items": [{
            "metadata": {"name": "linkerd-cni-x", "uid": "x"},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }]}),
        "pods" | "events" | "configmaps" => json!({"items": []}),
        "linkerd-cni-config" => {
            let entry = crate::cni::upstream_entry().to_string();
            json!({"metadata": {}, "data": {"cni_network_config": entry}})
        }
        "linkerd-cni" | "linkerd-cni-plugin" | "linkerd-cni-agent" => set,
        _ => return None,
    };
    Some(object.to_string())
}
