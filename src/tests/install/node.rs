//! A host as a temporary tree, and the agent on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Stands for the plugin. It is never run here.
pub const PLUGIN: &[u8] = &[7; 300_000];

pub const TEMPLATE: &str = r#"{
  "name": "linkerd-cni",
  "type": "linkerd-cni",
  "kubernetes": {
      "kubeconfig": "__KUBECONFIG_FILEPATH__"
  },
  "linkerd": {"incoming-proxy-port": 4143}
}"#;

pub const CALICO: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "mtu": 1e3,
      "ipam": {"type": "calico-ipam"}
    },
    {
      "type": "portmap",
      "snat": true
    }
  ]
}"#;

/// A network that is not a list.
pub const CONF: &str =
    "{\"type\": \"bridge\", \"name\": \"net\", \"cniVersion\": \"0.4.0\",\n \"n\": 1e3}\n";

/// Waits for `condition`, much longer than it should take.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(3));
    }
}

pub struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    /// Image, host directories and a service account as kubelet lays it out.
    pub fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { dir };
        for name in ["image", "bin", "etc", "sa"] {
            fs::create_dir(node.root().join(name)).unwrap();
        }
        let plugin = node.root().join("image/linkerd-cni");
        fs::write(&plugin, PLUGIN).unwrap();
        fs::set_permissions(plugin, PermissionsExt::from_mode(0o755)).unwrap();
        node.rotate("token-1");
        symlink("..data/token", node.sa().join("token")).unwrap();
        symlink("..data/ca.crt", node.sa().join("ca.crt")).unwrap();
        node
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn net(&self, name: &str) -> PathBuf {
        self.root().join("etc").join(name)
    }

    pub fn bin(&self, name: &str) -> PathBuf {
        self.root().join("bin").join(name)
    }

    pub fn sa(&self) -> PathBuf {
        self.root().join("sa")
    }

    /// Writes in place.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.net(name), text).unwrap();
    }

    /// Writes beside and renames, keeping the mode.
    pub fn replace(&self, path: &Path, bytes: &[u8]) {
        let beside = path.with_extension("new");
        fs::write(&beside, bytes).unwrap();
        if let Ok(there) = fs::metadata(path) {
            fs::set_permissions(&beside, there.permissions()).unwrap();
        }
        fs::rename(beside, path).unwrap();
    }

    /// Swaps `..data`, as kubelet does.
    pub fn rotate(&self, token: &str) {
        let ca = fs::read_to_string(self.sa().join("ca.crt")).unwrap_or_else(|_| "CA\n".into());
        self.swap(token, &ca);
    }

    /// Another CA, with the same token.
    pub fn certify(&self, ca: &str) {
        let token = fs::read_to_string(self.sa().join("token")).unwrap();
        self.swap(token.trim(), ca);
    }

    fn swap(&self, token: &str, ca: &str) {
        let dir = tempfile::Builder::new()
            .prefix("..turn")
            .tempdir_in(self.sa())
            .unwrap()
            .keep();
        fs::write(dir.join("token"), format!("{token}\n")).unwrap();
        fs::write(dir.join("ca.crt"), ca).unwrap();
        let old = fs::read_link(self.sa().join("..data"));
        symlink(dir.file_name().unwrap(), self.sa().join("..data_tmp")).unwrap();
        fs::rename(self.sa().join("..data_tmp"), self.sa().join("..data")).unwrap();
        if let Ok(old) = old {
            fs::remove_dir_all(self.sa().join(old)).unwrap();
        }
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.net(name)).unwrap_or_default()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap_or_default()
    }

    pub fn kubeconfig(&self) -> Value {
        self.json("kubeconfig.json")
    }

    /// The token in the kubeconfig.
    pub fn token(&self) -> String {
        let token = &self.kubeconfig()["users"][0]["user"]["token"];
        token.as_str().unwrap_or_default().to_owned()
    }

    pub fn types(&self, name: &str) -> Vec<String> {
        let list = self.json(name);
        let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
        let kinds = plugins.iter().filter_map(|plugin| plugin["type"].as_str());
        kinds.map(str::to_owned).collect()
    }

    pub fn chained(&self, name: &str) -> bool {
        let types = self.types(name);
        types.len() > 1 && types.last().is_some_and(|kind| kind == "linkerd-cni")
    }

    pub fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.net(name)).unwrap().ino()
    }

    /// Names, modes and contents of the host's two directories.
    pub fn tree(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut tree = BTreeMap::new();
        for dir in ["bin", "etc"] {
            for entry in fs::read_dir(self.root().join(dir)).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let content = if metadata.is_symlink() {
                    fs::read_link(&path)
                        .unwrap()
                        .into_os_string()
                        .into_encoded_bytes()
                } else if metadata.is_file() {
                    fs::read(&path).unwrap()
                } else {
                    Vec::new()
                };
                let name = path.strip_prefix(self.root()).unwrap();
                tree.insert(name.display().to_string(), (metadata.mode(), content));
            }
        }
        tree
    }

    /// DESIGN's promise 5, as a runtime sees it.
    pub fn assert_not_stranded(&self) {
        let mut networks = 0;
        for name in ["10-calico.conflist", "20-net.conf", "20-net.conflist"] {
            if !self.net(name).exists() {
                continue;
            }
            let text = self.text(name);
            serde_json::from_str::<Value>(&text).unwrap();
            networks += 1;
            if text.contains("linkerd-cni") {
                assert_eq!(fs::read(self.bin("linkerd-cni")).unwrap(), PLUGIN, "{name}");
                assert!(self.kubeconfig()["users"].is_array(), "{name}");
            }
        }
        assert!(networks >= 2);
    }

    pub fn start(&self) -> Agent {
        self.start_with(&[])
    }

    pub fn start_with(&self, vars: &[(&str, &str)]) -> Agent {
        self.start_args(&[], vars)
    }

    pub fn start_owned(&self, vars: &[(&str, String)]) -> Agent {
        let vars: Vec<(&str, &str)> = vars.iter().map(|(k, v)| (*k, v.as_str())).collect();
        self.start_with(&vars)
    }

    pub fn start_args(&self, args: &[&str], vars: &[(&str, &str)]) -> Agent {
        let (log, path) = tempfile::NamedTempFile::new_in(self.root())
            .unwrap()
            .keep()
            .unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_linkerd2-cni-install"))
            .args(args)
            .env_clear()
            .env("CONTAINER_MOUNT_PREFIX", self.root())
            .env("CONTAINER_CNI_BIN_DIR", self.root().join("image"))
            .env("DEST_CNI_BIN_DIR", "/bin/")
            .env("DEST_CNI_NET_DIR", "etc")
            .env("KUBECONFIG_FILE_NAME", "kubeconfig.json")
            .env("CNI_NETWORK_CONFIG", TEMPLATE)
            .env("KUBERNETES_SERVICE_HOST", "fd00::1")
            .env("KUBERNETES_SERVICE_PORT", "443")
            .env("LINKERD_CNI_SERVICE_ACCOUNT_DIR", self.sa())
            .env("LINKERD_CNI_ADMIN_ADDR", "127.0.0.1:0")
            .envs(vars.iter().copied())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { child, log: path }
    }
}

/// A running agent; dropped, it is killed.
pub struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Whether SIGTERM is blocked, which is how it gets to the agent's own loop.
    pub fn takes_signals(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = u64::from_str_radix(blocked.unwrap_or_default().trim(), 16).unwrap_or(0);
        mask & (1 << (Signal::SIGTERM as i32 - 1)) != 0
    }

    /// SIGTERM, then the exit status.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "still running:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn until_ready(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.ready().0 != 200 {
            assert!(Instant::now() < end, "{:?}\n{}", self.ready(), self.log());
            thread::sleep(Duration::from_millis(3));
        }
    }

    pub fn ready(&self) -> (u16, String) {
        self.get("/ready")
    }

    /// Status and body; status 0 as long as nobody listens.
    pub fn get(&self, path: &str) -> (u16, String) {
        let log = self.log();
        let address = log
            .lines()
            .find_map(|line| line.split_once("/live, /ready and /metrics on "));
        let Some((_, address)) = address else {
            return (0, String::new());
        };
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status.unwrap_or(0), body.to_owned())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
