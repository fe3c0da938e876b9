//! Captures the output of `linkerd cni check` about one agent. A script replaces kubectl, and all
//! other objects of the cluster are healthy. src/tests/cluster has the checks with a real kubectl.

use std::os::unix::net::UnixListener;
use std::process::Command;

use serde_json::Value;
use testkit::healthy_cluster::HealthyCluster;

use crate::agent::Agent;
use crate::fault_page;
use crate::until::until;

const BIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/agent/catalogue/bin");
const CHECK_TIMEOUT: &str = "--wait=0s";

/// Returns the problems in the output of `linkerd cni check -o short`, each with its lines.
///
/// First waits until `/ready` of the agent has the body `not_ready`, or is ready if `None`, because
/// it may have another body during a reconcile pass.
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
    HealthyCluster { namespace: "linkerd-cni", nodes: 1, status, is_ready: not_ready.is_none() }
        .serve(UnixListener::bind(&socket).unwrap());
    let output = Command::new(env!("CARGO_BIN_EXE_linkerd-cni-cli"))
        .args(["check", "-o", "short", CHECK_TIMEOUT])
        .env("PATH", format!("{BIN}:/usr/bin:/bin"))
        .env("API_SOCKET", &socket)
        .output()
        .unwrap();
    let mut problems = fault_page::problems(&String::from_utf8(output.stdout).unwrap());
    // These agents watch no pods, and their nodes have no plugins of the primary CNI.
    problems.retain(|problem| {
        !problem.contains("(watchPods: false)")
            && !problem.contains("does not watch the pods of its node")
            && !problem.contains("cniDirectories: ")
    });
    problems
}
