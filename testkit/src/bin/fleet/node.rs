//! The processes of the simulated nodes.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::Context as _;
use linkerd2_cni::kube::Client;
use linkerd2_cni::kube::kubeconfig;
use serde_json::{Value, json};

use testkit::child::KilledOnDrop;

use crate::control_plane::ControlPlane;
use crate::objects::{NAMESPACE, SERVICE_ACCOUNT, agent_pod_name, in_parallel, node_name};

pub const AGENT: &str = "linkerd2-cni-install";
pub const REPAIR_CONTROLLER: &str = "linkerd-cni-repair-controller";
/// User of the first node's processes. The kernel limits inotify instances per user, so each node
/// has a user of its own.
const FIRST_USER: u32 = 200_000;

const PLUGIN_ENTRY: &str = r#"{"name": "linkerd-cni", "type": "linkerd-cni",
  "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"},
  "linkerd": {"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102}}"#;
const CONFLIST: &str =
    r#"{"cniVersion": "1.0.0", "name": "primary", "plugins": [{"type": "bridge"}]}"#;

pub struct Fleet {
    state: PathBuf,
    port: u16,
    nodes: usize,
    /// Meshed pods on each node.
    pods: usize,
    processes: Vec<KilledOnDrop>,
}

impl Fleet {
    /// Lays out the directories of `nodes` nodes with `pods` meshed pods each, and with a token bound to the node's agent pod.
    pub fn prepare(
        control_plane: &ControlPlane,
        programs: &Path,
        state: &Path,
        nodes: usize,
        pods: usize,
    ) -> anyhow::Result<Fleet> {
        fs::create_dir_all(state.join("image"))?;
        // The self-test is off, so that the plugin is never run.
        let plugin = state.join("image/linkerd-cni");
        testkit::write_program(plugin, "stands for the plugin binary");
        for program in [AGENT, REPAIR_CONTROLLER] {
            fs::copy(programs.join(program), state.join(program))?;
        }
        in_parallel(nodes, |node| lay_out(control_plane, state, node))?;
        let processes = Vec::new();
        Ok(Fleet { state: state.to_owned(), port: control_plane.port, nodes, pods, processes })
    }

    /// Starts all processes, as fast as this machine can.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let started = Mutex::new(std::mem::take(&mut self.processes));
        let result = in_parallel(self.nodes, |node| {
            for command in [self.agent(node), self.repair_controller(node)] {
                let child = self.spawn(node, command)?;
                started.lock().unwrap().push(KilledOnDrop(child));
            }
            Ok(())
        });
        self.processes = started.into_inner().unwrap();
        result
    }

    /// Number of nodes whose agent has written the kubeconfig, and has copied all pods of the node.
    pub fn connected(&self) -> usize {
        let is_connected = |node: &usize| {
            let dir = self.directory(*node);
            let files = fs::read_dir(dir.join("run/pods")).into_iter().flatten();
            // Of the meshed pods and the agent's own, and the lock.
            dir.join("host/net.d/kubeconfig").exists() && files.count() >= self.pods + 2
        };
        (0..self.nodes).filter(is_connected).count()
    }

    /// Mean proportional set size of the processes of a program in KiB, from a sample of 20 nodes.
    pub fn memory(&self, program: &str) -> u64 {
        let pids = self.processes.iter().map(|process| process.0.id());
        let sizes = pids.filter_map(|pid| proportional_size(pid, program)).take(20);
        let sizes: Vec<u64> = sizes.collect();
        sizes.iter().sum::<u64>() / (sizes.len() as u64).max(1)
    }

    fn directory(&self, node: usize) -> PathBuf {
        directory(&self.state, node)
    }

    fn agent(&self, node: usize) -> Command {
        let dir = self.directory(node);
        let mut command = Command::new(self.state.join(AGENT));
        command
            .env("CONTAINER_MOUNT_PREFIX", dir.join("host"))
            .env("CONTAINER_CNI_BIN_DIR", self.state.join("image"))
            .env("DEST_CNI_BIN_DIR", "/bin")
            .env("DEST_CNI_NET_DIR", "/net.d")
            .env("KUBECONFIG_FILE_NAME", "kubeconfig")
            .env("CNI_NETWORK_CONFIG", PLUGIN_ENTRY)
            .env("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            .env("KUBERNETES_SERVICE_PORT", self.port.to_string())
            .env("LINKERD_CNI_SERVICE_ACCOUNT_DIR", dir.join("account"))
            .env("LINKERD_CNI_NAMESPACE", NAMESPACE)
            .env("LINKERD_CNI_POD_NAME", agent_pod_name(node))
            .env("LINKERD_CNI_NODE_NAME", node_name(node))
            .env("LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT", "linkerd-cni-plugin")
            .env("LINKERD_CNI_RUN_DIR", dir.join("run"));
        command
    }

    fn repair_controller(&self, node: usize) -> Command {
        let dir = self.directory(node);
        let mut command = Command::new(self.state.join(REPAIR_CONTROLLER));
        command
            .args(["--admin-addr", "127.0.0.1:0", "--mode", "in-place"])
            .args(["--node-name", &node_name(node)])
            .args(["--controller-pod-name", &agent_pod_name(node)])
            .arg("--kubeconfig")
            .arg(dir.join("repair-controller.kubeconfig"))
            .arg("--mount-prefix")
            .arg(dir.join("host"));
        command
    }

    fn spawn(&self, node: usize, mut command: Command) -> anyhow::Result<Child> {
        let program = Path::new(command.get_program()).file_name().unwrap();
        let log = self.state.join(program).with_extension("log");
        let log = File::options().create(true).append(true).open(log)?;
        command.uid(user(node)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command.spawn()?)
    }
}

fn directory(state: &Path, node: usize) -> PathBuf {
    state.join("nodes").join(node_name(node))
}

fn user(node: usize) -> u32 {
    FIRST_USER + node as u32
}

fn lay_out(control_plane: &ControlPlane, state: &Path, node: usize) -> anyhow::Result<()> {
    let token = agent_token(&control_plane.admin, node)?;
    let dir = directory(state, node);
    let directories = ["host/bin", "host/net.d", "account", "run"].map(|name| dir.join(name));
    let access = control_plane.access(&token);
    let files = [
        (dir.join("host/net.d/10-primary.conflist"), CONFLIST.as_bytes().to_vec()),
        (dir.join("host/bin/bridge"), Vec::new()),
        (dir.join("account/token"), token.into_bytes()),
        (dir.join("account/ca.crt"), control_plane.ca.clone()),
        (dir.join("account/namespace"), NAMESPACE.as_bytes().to_vec()),
        (dir.join("repair-controller.kubeconfig"), kubeconfig::render(&access).into_bytes()),
    ];
    for directory in &directories {
        fs::create_dir_all(directory)?;
    }
    for (path, content) in &files {
        fs::write(path, content)?;
    }
    let all = directories.iter().chain(files.iter().map(|(path, _)| path));
    for path in all.chain([&dir, &dir.join("host")]) {
        chown(path, Some(user(node)), None)?;
    }
    Ok(())
}

/// Requests a token as the kubelet does for the agent's pod.
fn agent_token(client: &Client, node: usize) -> anyhow::Result<String> {
    let name = agent_pod_name(node);
    let pod: Value = client.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}"))?;
    let uid = &pod["metadata"]["uid"];
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    let request = json!({"spec": {"expirationSeconds": 7200, "boundObjectRef": bound}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{SERVICE_ACCOUNT}/token");
    let response: Value = client.post_and_decode(&path, &request)?;
    Ok(response["status"]["token"].as_str().context("a token")?.to_owned())
}

/// Proportional set size of the process in KiB, if it runs `program`.
fn proportional_size(pid: u32, program: &str) -> Option<u64> {
    let executable = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if executable.file_name()? != program {
        return None;
    }
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
