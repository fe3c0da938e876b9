//! Pods as the container runtime knows them, for tests without an API server.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

const CONTAINERD: &str = "/run/linkerd2-cni-cluster/containerd.sock";
/// Directory of the ADD results that libcni caches for the runtime.
const RESULTS: &str = "/var/lib/cni/results";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub address: String,
    pub netns: PathBuf,
    /// Whether the network config that ADD used has the plugin entry.
    pub has_entry: bool,
}

/// Returns the sandboxes by the names of their pods.
pub fn sandboxes() -> BTreeMap<String, Sandbox> {
    let mut calls: Vec<(SystemTime, Value)> = cached_adds().collect();
    calls.sort_by_key(|(written_at, _)| *written_at);
    let mut sandboxes = BTreeMap::new();
    for (_, call) in calls {
        if let (Some(name), Some(sandbox)) = (pod_of(&call), parse_sandbox(&call)) {
            // The newest result of a pod replaces earlier ones, because the runtime may not have
            // deleted an earlier sandbox of the pod yet.
            sandboxes.insert(name.to_owned(), sandbox);
        }
    }
    sandboxes
}

/// Returns the cached ADD calls for the interface eth0, not those for the loopback interface. Each
/// has the time at which it was written.
fn cached_adds() -> impl Iterator<Item = (SystemTime, Value)> {
    let entries = fs::read_dir(RESULTS).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().ends_with("-eth0"));
    files.filter_map(|entry| {
        let written_at = entry.metadata().ok()?.modified().ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        Some((written_at, serde_json::from_str(&text).ok()?))
    })
}

/// Returns the name of the pod of a cached ADD.
fn pod_of(call: &Value) -> Option<&str> {
    let mut args = call["cniArgs"].as_array()?.iter();
    let name = args.find(|arg| arg[0] == "K8S_POD_NAME")?;
    name[1].as_str()
}

fn parse_sandbox(call: &Value) -> Option<Sandbox> {
    let result = &call["result"];
    let address = result["ips"][0]["address"].as_str()?.split('/').next()?;
    let mut interfaces = result["interfaces"].as_array()?.iter();
    let netns = interfaces.find_map(|interface| interface["sandbox"].as_str())?;
    let config = STANDARD.decode(call["config"].as_str()?).ok()?;
    Some(Sandbox {
        address: address.to_owned(),
        netns: PathBuf::from(netns),
        has_entry: String::from_utf8_lossy(&config).contains("\"linkerd-cni\""),
    })
}

/// Returns the IPv4 address of the pod whose name starts with `name`. `None` if the pod has no
/// network. The address is read from the result of ADD, because kubelet takes up to a minute to
/// report it to an API server that was restarted.
pub fn address_of(name: &str) -> Option<String> {
    let mut sandboxes = sandboxes().into_iter();
    sandboxes.find(|(pod, _)| pod.starts_with(name)).map(|(_, sandbox)| sandbox.address)
}

/// Returns the name of the process that responds on port 8080 of the pod: the first word of its
/// line.
pub fn answer_of(ip: &str) -> Option<String> {
    let address: SocketAddr = format!("{ip}:8080").parse().ok()?;
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    line.split_whitespace().next().map(str::to_owned)
}

/// Returns a cached ADD of the pod whose name starts with `name`.
pub fn cached_add(name: &str) -> Option<Value> {
    let mut calls = cached_adds().map(|(_, call)| call);
    calls.find(|call| pod_of(call).is_some_and(|pod| pod.starts_with(name)))
}

/// Kills the only sandbox of the pod whose name starts with `name`.
pub fn kill_sandbox(name: &str) {
    let sandboxes = running("sandbox", name);
    assert_eq!(sandboxes.len(), 1, "sandboxes of {name}: {sandboxes:?}");
    ctr(&["--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", &sandboxes[0]]);
}

/// Returns the IDs of the running containers of the pod whose name starts with `name`. `kind` is
/// `sandbox` or `container`.
pub fn running(kind: &str, name: &str) -> Vec<String> {
    let filter = format!(
        r#"labels."io.cri-containerd.kind"=={kind},labels."io.kubernetes.pod.name"~={name}"#
    );
    let containers = ctr(&["--namespace", "k8s.io", "containers", "list", "--quiet", &filter]);
    let tasks = ctr(&["--namespace", "k8s.io", "tasks", "list"]);
    containers.lines().filter(|id| is_running(id, &tasks)).map(str::to_owned).collect()
}

/// Whether `tasks`, a list of containerd's tasks, shows that the container runs.
fn is_running(id: &str, tasks: &str) -> bool {
    tasks.lines().any(|line| line.starts_with(id) && line.contains("RUNNING"))
}

/// Runs containerd's `ctr`, and returns its stdout.
pub fn ctr(args: &[&str]) -> String {
    let output = Command::new("ctr").args(["--address", CONTAINERD]).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
