//! The agent's container on a node: found, killed, rolled out, and its credential.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::api::{self, Api};
use super::pods;
use crate::until::{until_some, until_within};

pub const KUBECONFIG: &str = "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig";

/// Path of the agent's DaemonSet.
pub const DAEMONSET: &str = "/apis/apps/v1/namespaces/linkerd-cni/daemonsets/linkerd-cni";
/// Path of the plugin's ServiceAccount.
pub const PLUGIN_ACCOUNT: &str =
    "/api/v1/namespaces/linkerd-cni/serviceaccounts/linkerd-cni-plugin";
/// Path of the agents' pods.
const PODS: &str = "/api/v1/namespaces/linkerd-cni/pods?labelSelector=k8s-app=linkerd-cni";

/// Makes the API server reject the plugin's token: deletes the plugin's ServiceAccount, and creates
/// it again.
pub fn revoke_token() {
    api::create(&delete_plugin_account());
}

/// Deletes the plugin's ServiceAccount. Returns the object, to create it again.
pub fn delete_plugin_account() -> Value {
    let mut account = api::get(PLUGIN_ACCOUNT);
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        account["metadata"].as_object_mut().unwrap().remove(field);
    }
    api::delete(PLUGIN_ACCOUNT);
    account
}

pub fn delete_by_force(agent: &Agent) {
    api::delete(&format!("{}/{}?gracePeriodSeconds=0", pods::path("linkerd-cni"), agent.pod));
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
    let api = Api::with_token(token_in(kubeconfig).unwrap());
    until_within(Duration::from_secs(90), "the token is rejected", || {
        let namespace = api.get("/api/v1/namespaces/linkerd-cni");
        namespace.is_err_and(|error| error.code == Some(401))
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
    let pods = api::admin().get(PODS).ok()?;
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

/// Returns the agents' pods, also those that are being deleted.
pub fn agent_pods() -> Vec<Value> {
    api::list(PODS)
}

/// Returns the log of the only agent.
pub fn log() -> String {
    pods::log("linkerd-cni", &agent().pod, "install-cni").unwrap()
}

/// Waits until the rollout of the DaemonSet has ended, as `kubectl rollout status` does.
pub fn wait_for_rollout() {
    until_within(Duration::from_secs(60), "the DaemonSet is rolled out", || {
        let daemonset = api::admin().get(DAEMONSET);
        daemonset.is_ok_and(|daemonset| is_rolled_out(&daemonset))
    });
}

fn is_rolled_out(daemonset: &Value) -> bool {
    let status = &daemonset["status"];
    // A number of 0 may be missing.
    let count = |name: &str| status[name].as_u64().unwrap_or_default();
    let desired = count("desiredNumberScheduled");
    status["observedGeneration"] == daemonset["metadata"]["generation"]
        && count("updatedNumberScheduled") >= desired
        && count("numberAvailable") >= desired
}
