//! etcd and kube-apiserver, as processes of this program on free ports of the loopback interface.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use linkerd2_cni::kube::kubeconfig::{self, ApiAccess};
use linkerd2_cni::kube::{Client, Deadlines, SystemResolver};
use testkit::child::KilledOnDrop;

/// Token of the administrator, in the API server's token file.
const ADMIN_TOKEN: &str = "fleet-admin";
/// Longest time until a restarted API server is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(300);

pub struct ControlPlane {
    /// Directory of logs, and of the kubeconfig of the administrator.
    pub state: PathBuf,
    /// Directory with certificates and keys.
    pki: PathBuf,
    etcd_port: u16,
    pub port: u16,
    /// Access of the administrator.
    pub access: ApiAccess,
    pub admin: Client,
    apiserver: KilledOnDrop,
    /// Dropped after the API server.
    _etcd: KilledOnDrop,
}

impl ControlPlane {
    /// Starts both processes. `pki` has `ca.crt`, `apiserver.crt`, `apiserver.key`, `tokens.pub` and
    /// `tokens.key`.
    pub fn start(pki: &Path, state: &Path) -> anyhow::Result<ControlPlane> {
        let [etcd_port, peer_port, port] = free_ports()?;
        let _etcd = start_etcd(state, etcd_port, peer_port)?;
        fs::write(state.join("tokens.csv"), format!("{ADMIN_TOKEN},admin,0,system:masters\n"))?;
        fs::write(state.join("audit.yaml"), AUDIT_POLICY)?;
        let apiserver = start_apiserver(pki, state, etcd_port, port)?;
        let access = ApiAccess {
            server: format!("https://127.0.0.1:{port}"),
            ca: fs::read(pki.join("ca.crt"))?,
            token: Some(ADMIN_TOKEN.to_owned()),
            ..ApiAccess::default()
        };
        fs::write(state.join("admin.kubeconfig"), kubeconfig::render(&access))?;
        let deadlines = Deadlines::each(Duration::from_secs(60));
        let admin = Client::new::<SystemResolver>(&access, "fleet", deadlines)?;
        let [state, pki] = [state, pki].map(Path::to_owned);
        let mut control_plane =
            ControlPlane { state, pki, etcd_port, port, access, admin, apiserver, _etcd };
        control_plane.wait_until_ready()?;
        Ok(control_plane)
    }

    /// Kills the API server, which breaks all connections at the same instant, and starts another.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.apiserver.0.kill()?;
        self.apiserver.0.wait()?;
        self.apiserver = start_apiserver(&self.pki, &self.state, self.etcd_port, self.port)?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.admin.read_list("/readyz").is_err() {
            let ended = self.apiserver.0.try_wait()?;
            ensure!(ended.is_none(), "kube-apiserver ended; see its log");
            ensure!(begin.elapsed() < READY_TIMEOUT, "kube-apiserver is not ready");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

const AUDIT_POLICY: &str = include_str!("audit.yaml");

/// `--unsafe-no-fsync`: the disk is not what is measured. `--watch-progress-notify-interval`: as
/// kubeadm sets it. Without it the API server sends no bookmarks while no pod changes.
fn start_etcd(state: &Path, port: u16, peer_port: u16) -> anyhow::Result<KilledOnDrop> {
    let url = format!("http://127.0.0.1:{port}");
    let peer_url = format!("http://127.0.0.1:{peer_port}");
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(state.join("etcd"))
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
        .args(["--initial-cluster", &format!("default={peer_url}")])
        // Its default of 100,000 writes is kept in memory.
        .args(["--snapshot-count", "5000"])
        .args(["--unsafe-no-fsync", "--quota-backend-bytes", "8000000000"])
        // Experimental before etcd 3.6, which still takes this name.
        .args(["--experimental-watch-progress-notify-interval", "5s"]);
    spawn(command, &state.join("etcd.log"))
}

fn start_apiserver(
    pki: &Path,
    state: &Path,
    etcd_port: u16,
    port: u16,
) -> anyhow::Result<KilledOnDrop> {
    let mut command = Command::new("kube-apiserver");
    command
        .args(["--bind-address", "127.0.0.1", "--secure-port", &port.to_string()])
        .args(["--etcd-servers", &format!("http://127.0.0.1:{etcd_port}")])
        .args(["--authorization-mode", "Node,RBAC", "--service-cluster-ip-range", "10.96.0.0/16"])
        .args(["--audit-log-maxsize", "10000"])
        .args(["--service-account-issuer", "https://kubernetes.default.svc.cluster.local"]);
    for (flag, file) in [
        ("--tls-cert-file", pki.join("apiserver.crt")),
        ("--tls-private-key-file", pki.join("apiserver.key")),
        ("--service-account-key-file", pki.join("tokens.pub")),
        ("--service-account-signing-key-file", pki.join("tokens.key")),
        ("--token-auth-file", state.join("tokens.csv")),
        ("--audit-policy-file", state.join("audit.yaml")),
        ("--audit-log-path", state.join("audit.log")),
    ] {
        command.arg(flag).arg(file);
    }
    spawn(command, &state.join("kube-apiserver.log"))
}

fn spawn(mut command: Command, log: &Path) -> anyhow::Result<KilledOnDrop> {
    let log = File::options().create(true).append(true).open(log)?;
    command.stdout(log.try_clone()?).stderr(log);
    let child = command.spawn();
    child.map(KilledOnDrop).with_context(|| format!("cannot start {:?}", command.get_program()))
}

/// Ports that are free now.
fn free_ports() -> anyhow::Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}
