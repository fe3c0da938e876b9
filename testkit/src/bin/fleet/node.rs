//! The processes of real nodes.

use std::fmt::Display;
use std::ops::Range;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, mem};

use anyhow::Context as _;
use linkerd2_cni::kube::Client;
use linkerd2_cni::kube::kubeconfig::{self, ApiAccess};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testkit::child::KilledOnDrop;

use crate::control_plane::{ControlPlane, command, spawn};
use crate::objects::{NAMESPACE, SERVICE_ACCOUNT, agent_pod_name, in_parallel, node_name};

const AGENT: &str = "linkerd2-cni-install";
const REPAIR_CONTROLLER: &str = "linkerd-cni-repair-controller";
/// User of the first node. Each node has a user of its own, because the kernel limits the inotify
/// instances of a user.
const FIRST_USER: u32 = 200_000;

/// Programs of a node: the agent and the repair controller.
const PROGRAMS_PER_NODE: usize = 2;

const CONFLIST: &str =
    r#"{"cniVersion": "1.0.0", "name": "primary", "plugins": [{"type": "bridge"}]}"#;

pub trait Nodes {
    /// Starts the programs of these nodes, as fast as this machine can. Programs that already run
    /// are not stopped.
    fn start(&mut self, nodes: Range<usize>) -> anyhow::Result<()>;

    /// Stops all programs of these nodes except those that were started last.
    fn stop_replaced(&mut self, nodes: Range<usize>) -> anyhow::Result<()>;

    /// Proportional set sizes of the first node's agent and repair controller in KiB.
    fn memory(&self) -> Option<[u64; 2]> {
        None
    }

    /// Returns for each node when its programs were started.
    fn start_times(&self) -> Vec<Vec<SystemTime>> {
        Vec::new()
    }
}

pub struct Fleet {
    state: PathBuf,
    port: u16,
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    /// The programs in the order in which they were started.
    processes: Vec<KilledOnDrop>,
    start_times: Vec<SystemTime>,
}

impl Fleet {
    pub fn prepare(
        control_plane: &ControlPlane,
        programs: &Path,
        state: &Path,
        nodes: usize,
    ) -> anyhow::Result<Fleet> {
        fs::create_dir_all(state.join("image"))?;
        // The self-test is off, so that the plugin is never run.
        let plugin = state.join("image/linkerd-cni");
        testkit::write_program(plugin, "stands for the plugin binary");
        for program in [AGENT, REPAIR_CONTROLLER] {
            fs::copy(programs.join(program), state.join(program))?;
        }
        in_parallel(nodes, |node| create_files(control_plane, state, node))?;
        Ok(Fleet {
            state: state.to_owned(),
            port: control_plane.port,
            nodes: (0..nodes).map(|_| Node::default()).collect(),
        })
    }

    fn spawn(&self, node: usize, program: &str) -> anyhow::Result<KilledOnDrop> {
        let dir = directory(&self.state, node);
        let values: [(&str, &dyn Display); 5] = [
            ("state", &self.state.display()),
            ("dir", &dir.display()),
            ("port", &self.port),
            ("node", &node_name(node)),
            ("pod", &agent_pod_name(node)),
        ];
        let mut command = command(&self.state.join(program), &self.state, &values)?;
        spawn(command.uid(user(node)))
    }
}

impl Nodes for Fleet {
    fn start(&mut self, nodes: Range<usize>) -> anyhow::Result<()> {
        for node in nodes {
            self.nodes[node].start_times.push(SystemTime::now());
            for program in [AGENT, REPAIR_CONTROLLER] {
                let process = self.spawn(node, program)?;
                self.nodes[node].processes.push(process);
            }
        }
        Ok(())
    }

    fn stop_replaced(&mut self, nodes: Range<usize>) -> anyhow::Result<()> {
        for node in &mut self.nodes[nodes] {
            // The last processes are those that replaced the others.
            let current = node.processes.split_off(node.processes.len() - PROGRAMS_PER_NODE);
            let mut replaced = mem::replace(&mut node.processes, current);
            for process in &replaced {
                kill(Pid::from_raw(process.0.id() as i32), Signal::SIGTERM)?;
            }
            for process in &mut replaced {
                process.0.wait()?;
            }
        }
        Ok(())
    }

    fn memory(&self) -> Option<[u64; 2]> {
        let processes = &self.nodes.first()?.processes;
        if processes.len() != PROGRAMS_PER_NODE {
            return None;
        }
        let agent = proportional_size(&processes[0])?;
        let controller = proportional_size(&processes[1])?;
        Some([agent, controller])
    }

    fn start_times(&self) -> Vec<Vec<SystemTime>> {
        self.nodes.iter().map(|node| node.start_times.clone()).collect()
    }
}

fn directory(state: &Path, node: usize) -> PathBuf {
    state.join("nodes").join(node_name(node))
}

fn user(node: usize) -> u32 {
    FIRST_USER + node as u32
}

/// Creates the files of a node, which belong to its user.
fn create_files(control_plane: &ControlPlane, state: &Path, node: usize) -> anyhow::Result<()> {
    let token = agent_token(&control_plane.admin, node)?;
    let dir = directory(state, node);
    let directories = ["host/bin", "host/net.d", "account", "run"].map(|name| dir.join(name));
    let access = ApiAccess { token: Some(token.clone()), ..control_plane.access.clone() };
    let files = [
        (dir.join("host/net.d/10-primary.conflist"), CONFLIST.as_bytes().to_vec()),
        (dir.join("host/bin/bridge"), Vec::new()),
        (dir.join("account/token"), token.into_bytes()),
        (dir.join("account/ca.crt"), access.ca.clone()),
        (dir.join("account/namespace"), NAMESPACE.as_bytes().to_vec()),
        (dir.join("repair-controller.kubeconfig"), kubeconfig::render(&access).into_bytes()),
    ];
    let user = Some(user(node));
    for directory in &directories {
        fs::create_dir_all(directory)?;
        chown(directory, user, None)?;
    }
    for (path, content) in &files {
        fs::write(path, content)?;
        chown(path, user, None)?;
    }
    chown(&dir, user, None)?;
    chown(dir.join("host"), user, None)?;
    Ok(())
}

/// Requests a token of the agent's ServiceAccount that is bound to the agent's pod.
pub fn agent_token(client: &Client, node: usize) -> anyhow::Result<String> {
    let name = agent_pod_name(node);
    let pod: Value = client.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}"))?;
    let uid = &pod["metadata"]["uid"];
    let pod_reference = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    let request = json!({"spec": {"expirationSeconds": 7200, "boundObjectRef": pod_reference}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}/token");
    let response: Value = client.post_and_decode(&path, &request)?;
    Ok(response["status"]["token"].as_str().context("a token")?.to_owned())
}

/// Returns the proportional set size in KiB.
fn proportional_size(process: &KilledOnDrop) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.0.id())).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
