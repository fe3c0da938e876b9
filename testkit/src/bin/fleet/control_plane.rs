//! etcd and kube-apiserver, as processes of this program on free ports of the loopback interface.

use std::fmt::Display;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use linkerd2_cni::kube::kubeconfig::{self, ApiAccess};
use linkerd2_cni::kube::{Client, Deadlines, SystemResolver};
use testkit::chart::yaml;
use testkit::child::KilledOnDrop;

const ADMIN_TOKEN: &str = "fleet-admin";
const READY_TIMEOUT: Duration = Duration::from_secs(300);

pub struct ControlPlane {
    /// Directory of logs, and of the kubeconfig of the administrator.
    pub state: PathBuf,
    pub port: u16,
    pub access: ApiAccess,
    pub admin: Client,
    apiserver_command: Command,
    apiserver: KilledOnDrop,
    /// Dropped after the API server.
    _etcd: KilledOnDrop,
}

impl ControlPlane {
    /// Starts both processes, with the certificates and keys in `pki`.
    pub fn start(pki: &Path, state: &Path) -> anyhow::Result<ControlPlane> {
        let [etcd, peer, port] = free_ports()?;
        fs::write(state.join("tokens.csv"), format!("{ADMIN_TOKEN},admin,0,system:masters\n"))?;
        fs::write(state.join("audit.yaml"), include_str!("audit.yaml"))?;
        let values: [(&str, &dyn Display); 5] = [
            ("state", &state.display()),
            ("pki", &pki.display()),
            ("etcd", &etcd),
            ("peer", &peer),
            ("port", &port),
        ];
        let etcd_process = spawn(&mut command(Path::new("etcd"), state, &values)?)?;
        let mut apiserver_command = command(Path::new("kube-apiserver"), state, &values)?;
        let apiserver = spawn(&mut apiserver_command)?;
        let access = ApiAccess {
            server: format!("https://127.0.0.1:{port}"),
            ca: fs::read(pki.join("ca.crt"))?,
            token: Some(ADMIN_TOKEN.to_owned()),
            ..ApiAccess::default()
        };
        fs::write(state.join("admin.kubeconfig"), kubeconfig::render(&access))?;
        let deadlines = Deadlines::per_phase(Duration::from_secs(60));
        let admin = Client::new::<SystemResolver>(&access, "fleet", deadlines)?;
        let mut control_plane = ControlPlane {
            state: state.to_owned(),
            port,
            access,
            admin,
            apiserver_command,
            apiserver,
            _etcd: etcd_process,
        };
        control_plane.wait_until_ready()?;
        Ok(control_plane)
    }

    /// Kills the API server, which breaks all connections at the same instant, and starts another.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.apiserver.0.kill()?;
        self.apiserver.0.wait()?;
        self.apiserver = spawn(&mut self.apiserver_command)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.admin.read_list("/readyz").is_err() {
            let exit_status = self.apiserver.0.try_wait()?;
            ensure!(exit_status.is_none(), "kube-apiserver ended; see its log");
            ensure!(begin.elapsed() < READY_TIMEOUT, "kube-apiserver is not ready");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Returns the command of a program, with the arguments and variables in `programs.yaml`, and with
/// a log in the directory `logs`. In the arguments, `{NAME}` stands for the value of this name.
pub fn command(
    program: &Path,
    logs: &Path,
    values: &[(&str, &dyn Display)],
) -> anyhow::Result<Command> {
    let name = program.file_name().unwrap().to_string_lossy();
    let mut command = Command::new(program);
    for word in yaml(include_str!("programs.yaml"))[&*name].as_array().context("a program")? {
        let mut word = word.as_str().unwrap().to_owned();
        for (name, value) in values {
            word = word.replace(&format!("{{{name}}}"), &value.to_string());
        }
        match word.split_once('=') {
            Some((name, value)) if !word.starts_with("--") => command.env(name, value),
            _ => command.arg(word),
        };
    }
    let log = File::options().create(true).append(true).open(logs.join(format!("{name}.log")))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

pub fn spawn(command: &mut Command) -> anyhow::Result<KilledOnDrop> {
    let child = command.spawn();
    child.map(KilledOnDrop).with_context(|| format!("cannot start {:?}", command.get_program()))
}

fn free_ports() -> anyhow::Result<[u16; 3]> {
    // All listeners are open at the same time, so that the ports differ.
    let mut listeners = Vec::new();
    let mut ports = [0; 3];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
