//! The agent's container on a node: found, killed, rolled out, and its credential.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::kubectl::{apply, command, get, kubectl};
use crate::until::{until_some, until_within};

pub const KUBECONFIG: &str = "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig";

/// Makes the API server reject the plugin's token: deletes the plugin's ServiceAccount, and creates
/// it again.
pub fn revoke_token() {
    let account = "serviceaccount linkerd-cni-plugin -n linkerd-cni";
    let mut object = get(account);
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    kubectl(&format!("delete {account}"));
    apply(&object);
}

pub fn delete_by_force(agent: &Agent) {
    kubectl(&format!("delete pod {} -n linkerd-cni --force --grace-period=0", agent.pod));
}

/// A process that is stopped by SIGSTOP until the value is dropped.
pub struct Paused(Pid);

impl Paused {
    pub fn process(pid: Pid) -> Paused {
        kill(pid, Signal::SIGSTOP).unwrap();
        Paused(pid)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Waits until the API server rejects the token in `kubeconfig`. This takes a while after the token
/// was revoked, because the API server caches a token review for 10 s.
pub fn until_rejected(kubeconfig: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    fs::write(&path, kubeconfig).unwrap();
    until_within(Duration::from_secs(90), "the token is rejected", || {
        // While the API server is replaced, a request may get no response, so it has a timeout.
        // With `--raw`, kubectl makes no discovery, whose error for a rejected token has another
        // text.
        let mut get = command(
            "get --raw /api/v1/namespaces/linkerd-cni --context linkerd-cni-context \
             --request-timeout=5s",
        );
        let output = get.arg("--kubeconfig").arg(&path).output().unwrap();
        String::from_utf8_lossy(&output.stderr).contains("Unauthorized")
    });
}

pub fn token() -> Option<String> {
    token_in(&fs::read_to_string(KUBECONFIG).ok()?)
}

pub fn token_in(kubeconfig: &str) -> Option<String> {
    let kubeconfig: Value = serde_json::from_str(kubeconfig).ok()?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str();
    token.map(str::to_owned)
}

pub fn with_token(kubeconfig: &str, token: &str) -> String {
    let mut value: Value = serde_json::from_str(kubeconfig).unwrap();
    value["users"][0]["user"]["token"] = token.into();
    value.to_string()
}

pub struct Agent {
    pub pod: String,
    pub container: String,
    pub ready: bool,
    pub pid: Pid,
}

impl Agent {
    /// Resident memory in kB.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next());
        kilobytes.unwrap().parse().unwrap()
    }
}

/// Kills the agent, and waits until another one is ready.
pub fn kill_agent() {
    let agent = agent();
    kill(agent.pid, Signal::SIGKILL).unwrap();
    until_within(Duration::from_secs(60), "the next agent is ready", || {
        let next = find_agent();
        next.is_some_and(|next| next.container != agent.container && next.ready)
    });
}

/// Waits until exactly one agent runs. Returns this agent.
pub fn agent() -> Agent {
    until_some(Duration::from_secs(60), "one agent that runs", find_agent)
}

pub fn is_ready() -> bool {
    find_agent().is_some_and(|agent| agent.ready)
}

/// Returns the agent. `None` if the API server does not respond, or if there is not exactly one
/// agent besides those that are being deleted.
pub fn find_agent() -> Option<Agent> {
    let mut get = command("get pods -n linkerd-cni -l k8s-app=linkerd-cni -o json");
    let output = get.output().expect("kubectl runs");
    // The output is empty if the API server does not respond.
    let pods: Value = serde_json::from_slice(&output.stdout).ok()?;
    let mut agents = pods["items"].as_array()?.clone();
    agents.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    if agents.len() != 1 {
        return None;
    }
    let pod = &agents[0];
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == "install-cni")?;
    let container = status["containerID"].as_str()?.split_once("://")?.1;
    Some(Agent {
        pod: pod["metadata"]["name"].as_str()?.to_owned(),
        container: container.to_owned(),
        ready: status["ready"] == true,
        pid: process_of(container)?,
    })
}

/// Whether the process is an agent of this node. Agents of other nodes on this machine have another
/// net dir.
pub fn is_agent(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let net_dir = device_and_inode(&format!("/proc/{pid}/root/host/etc/cni/net.d"));
    // The kernel cuts the names of processes to 15 bytes.
    name.trim() == "linkerd2-cni-in" && net_dir == device_and_inode("/etc/cni/net.d")
}

fn device_and_inode(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Returns a process in a container, by the container's ID in the name of its control group.
/// CRI-O's conmon is left out: it runs outside of the container, but its control group also has the
/// ID.
pub fn process_of(container: &str) -> Option<Pid> {
    let conmon = format!("conmon-{container}");
    for pid in crate::pids() {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if groups.contains(container) && !groups.contains(&conmon) {
            return Some(Pid::from_raw(pid));
        }
    }
    None
}

/// Waits until the rollout of the DaemonSet has ended.
pub fn wait_for_rollout() {
    kubectl("rollout status daemonset/linkerd-cni -n linkerd-cni --timeout=60s");
}
