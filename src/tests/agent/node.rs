//! A temporary directory that stands for a host, and agents that run on it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use serde_json::Value;
use testkit::write_program;

use crate::agent::Agent;
use crate::api::{Api, DaemonSetState, POD};
use crate::until::until;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_linkerd2-cni-install");

/// Command prefix that runs a program with exactly the capabilities that the chart grants to the
/// agent's container. Needs root.
pub const CAPABILITIES: [&str; 4] = [
    "setpriv",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all,+dac_override,+chown,+sys_admin,+net_admin",
];

/// Content of the plugin binary in these tests: a script that responds to VERSION, padded to the
/// size of a binary.
pub const PLUGIN: &[u8] = &padded_script();

const PLUGIN_SCRIPT: &[u8] = b"#!/bin/sh\necho '{\"supportedVersions\": [\"1.1.0\"]}'\nexit 0\n";

const fn padded_script() -> [u8; 300_000] {
    let mut plugin = [b'#'; 300_000];
    let mut at = 0;
    while at < PLUGIN_SCRIPT.len() {
        plugin[at] = PLUGIN_SCRIPT[at];
        at += 1;
    }
    plugin
}

pub const TEMPLATE: &str = include_str!("template.json");

pub const CALICO: &str = include_str!("10-calico.conflist");

pub const LIST: &str = "10-calico.conflist";

/// A network config with a single plugin.
pub const CONF: &str =
    "{\"type\": \"bridge\", \"name\": \"net\", \"cniVersion\": \"0.4.0\",\n \"n\": 1e3}\n";

const NO_VARS: &[(&str, &str)] = &[];

/// Modes and contents of files, by name.
pub type Tree = BTreeMap<String, (u32, Vec<u8>)>;

pub struct Node {
    dir: tempfile::TempDir,
    /// Environment variables of each agent, in addition to those of [`Node::set`]. If they do not
    /// name an API server, the agent cannot reach one.
    pub vars: Vec<(&'static str, String)>,
}

impl Node {
    /// Creates the agent's image, the host's directories, and a token directory with the layout of
    /// the kubelet's.
    pub fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let node = Node { dir, vars: Vec::new() };
        for name in ["image", "bin", "etc", "sa"] {
            fs::create_dir(node.root().join(name)).unwrap();
        }
        write_program(node.root().join("image/linkerd-cni"), PLUGIN);
        node.rotate("token-1");
        symlink("..data/token", node.sa().join("token")).unwrap();
        symlink("..data/ca.crt", node.sa().join("ca.crt")).unwrap();
        node
    }

    pub fn with_calico() -> Node {
        let node = Node::new();
        node.write(LIST, CALICO);
        node
    }

    pub fn with_api(api: &Api) -> Node {
        let mut node = Node::with_calico();
        node.use_api(api);
        node.vars = api.vars().to_vec();
        node.vars.push(("LINKERD_CNI_POD_NAME", POD.into()));
        node
    }

    /// Creates a node whose DaemonSet is being deleted. Every agent on it uninstalls when it is
    /// stopped, even if it finds the kubeconfig of an earlier agent.
    pub fn uninstalling() -> Node {
        let mut node = Node::new();
        let api = Api::start();
        api.state().daemon_set = DaemonSetState::BeingDeleted;
        api.state().delete_pod(30);
        node.use_api(&api);
        node.vars = api.address_vars().to_vec();
        node.vars.push(("LINKERD_CNI_POD_NAME", POD.into()));
        node
    }

    pub fn uninstalling_with_calico() -> Node {
        let node = Node::uninstalling();
        node.write(LIST, CALICO);
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

    /// Removes a directory and its contents. Retries while an agent still writes files there.
    pub fn remove_tree(&self, name: &str) {
        let path = self.root().join(name);
        until(&format!("{name} removed"), || {
            let _ = fs::remove_dir_all(&path);
            !path.exists()
        });
    }

    /// Writes a file without replacing its inode.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.net(name), text).unwrap();
    }

    /// Replaces a file by renaming a new one over it. Keeps the mode.
    pub fn replace(&self, path: &Path, bytes: &[u8]) {
        let temporary = path.with_extension("new");
        fs::write(&temporary, bytes).unwrap();
        if let Ok(existing) = fs::metadata(path) {
            fs::set_permissions(&temporary, existing.permissions()).unwrap();
        }
        fs::rename(temporary, path).unwrap();
    }

    /// Replaces the agent's token, and keeps the CA.
    pub fn rotate(&self, token: &str) {
        let ca = fs::read_to_string(self.sa().join("ca.crt")).unwrap_or_else(|_| "CA\n".into());
        self.swap(token, &ca);
    }

    /// Replaces the CA with that of `api`, and keeps the token.
    pub fn use_api(&self, api: &Api) {
        let token = fs::read_to_string(self.sa().join("token")).unwrap();
        self.swap(token.trim(), &api.ca());
        fs::write(self.sa().join("namespace"), "linkerd-cni\n").unwrap();
    }

    /// Replaces token and CA by swapping the link `..data`, as the kubelet does.
    fn swap(&self, token: &str, ca: &str) {
        let dir = tempfile::Builder::new().prefix("..turn").tempdir_in(self.sa()).unwrap().keep();
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

    pub fn is_installed(&self) -> bool {
        self.chained(LIST)
            && self.bin("linkerd-cni").exists()
            && self.net("kubeconfig.json").exists()
    }

    pub fn is_uninstalled(&self) -> bool {
        self.text(LIST) == CALICO
            && !self.bin("linkerd-cni").exists()
            && !self.net("kubeconfig.json").exists()
    }

    pub fn has_own_binary(&self) -> bool {
        fs::read(self.bin("linkerd-cni")).is_ok_and(|bytes| bytes == PLUGIN)
    }

    pub fn inode(&self, name: &str) -> u64 {
        fs::metadata(self.net(name)).unwrap().ino()
    }

    /// Reads all files of the host's CNI bin dir and net dir.
    pub fn tree(&self) -> Tree {
        let mut tree = BTreeMap::new();
        for dir in ["bin", "etc"] {
            for entry in fs::read_dir(self.root().join(dir)).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let content = if metadata.is_symlink() {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
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

    /// Stops the agent, and asserts that it restores the host's directories to `before`.
    pub fn assert_restored(&self, agent: &mut Agent, before: &Tree) {
        assert_eq!(agent.stop(), Some(0), "{}", agent.log());
        assert_eq!(self.tree(), *before, "{}", agent.log());
    }

    /// Asserts that binary and kubeconfig are complete if a network config names the plugin. Reads
    /// the config first, like a container runtime. Ignores a config that changed during the check.
    pub fn assert_not_stranded(&self) {
        let networks = || -> Vec<String> {
            let entries = fs::read_dir(self.net("")).unwrap().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.ends_with(".conf") || name.ends_with(".conflist")).collect()
        };
        for name in networks() {
            let text = self.text(&name);
            let missing = self.missing_for(&text);
            assert!(missing.is_none() || self.text(&name) != text, "{name}: {missing:?}");
        }
        assert!(networks().len() >= 2 || networks().len() >= 2);
    }

    /// Returns what a runtime that loads this network config would miss: the file, or valid JSON.
    fn missing_for(&self, text: &str) -> Option<String> {
        if text.is_empty() {
            return None;
        }
        if let Err(error) = serde_json::from_str::<Value>(text) {
            return Some(format!("{error} in {text}"));
        }
        if !text.contains("linkerd-cni") {
            return None;
        }
        if !self.has_own_binary() {
            return Some("binary".into());
        }
        let kubeconfig = self.text("kubeconfig.json");
        let whole = self.kubeconfig()["users"].is_array();
        (!whole).then(|| format!("kubeconfig: {kubeconfig}"))
    }

    pub fn start(&self) -> Agent {
        self.start_with(NO_VARS)
    }

    pub fn start_with(&self, vars: &[(impl AsRef<str>, impl AsRef<str>)]) -> Agent {
        let vars: Vec<_> =
            vars.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
        self.start_args(&[], &vars)
    }

    /// Starts the agent and waits until it is ready.
    pub fn start_ready(&self) -> Agent {
        self.start_ready_with(NO_VARS)
    }

    pub fn start_ready_with(&self, vars: &[(impl AsRef<str>, impl AsRef<str>)]) -> Agent {
        let mut agent = self.start_with(vars);
        agent.until_ready();
        agent
    }

    /// Installs the plugin with an agent, and kills the agent.
    pub fn install(&self) {
        self.start_ready().kill();
    }

    /// Starts the agent under strace, which injects this fault. Killing strace kills the agent.
    pub fn start_with_fault(&self, fault: &str, vars: &[(&str, &str)]) -> Agent {
        let (call, _) = fault.split_once(':').unwrap();
        let strace = format!(
            "strace -f -qq -o /dev/null -e trace={call} -e inject={fault} setpriv --pdeathsig KILL"
        );
        self.start_under(&strace.split(' ').collect::<Vec<_>>(), &[], vars)
    }

    /// Starts the agent. If the test runs as root, the agent has only the capabilities that the
    /// chart grants.
    pub fn start_args(&self, args: &[&str], vars: &[(&str, &str)]) -> Agent {
        if geteuid().is_root() {
            self.start_under(&CAPABILITIES, args, vars)
        } else {
            self.start_under(&[], args, vars)
        }
    }

    /// Uninstalls with the agent's subcommand, as an administrator does.
    pub fn uninstall(&self) {
        self.uninstall_ends_with(0);
    }

    /// Runs the agent's subcommand `uninstall`, and asserts its exit status. Returns the log.
    pub fn uninstall_ends_with(&self, status: i32) -> String {
        let mut uninstall = self.start_args(&["uninstall"], &[]);
        assert_eq!(uninstall.wait(), Some(status), "{}", uninstall.log());
        uninstall.log()
    }

    /// Rewrites the network config like the primary CNI does. Waits until the agent has chained the
    /// plugin again.
    pub fn rewrite_calico(&self) {
        self.replace(&self.net(LIST), CALICO.as_bytes());
        until("the plugin is chained again", || self.chained(LIST));
    }

    /// Overwrites `file` with `text` after each write of the agent, until `is_seen` returns true.
    pub fn until_contended(&self, file: &str, text: &str, mut is_seen: impl FnMut() -> bool) {
        let path = self.root().join(file);
        let good = fs::read(&path).unwrap();
        until("the contention is seen", || {
            if fs::read(&path).is_ok_and(|found| found == good) {
                self.replace(&path, text.as_bytes());
            }
            is_seen()
        });
    }

    /// Starts the agent through another program, such as strace.
    pub fn start_under(&self, by: &[&str], args: &[&str], vars: &[(&str, &str)]) -> Agent {
        let (log, path) = tempfile::NamedTempFile::new_in(self.root()).unwrap().keep().unwrap();
        let mut words = by.iter().copied().chain([PROGRAM]).chain(args.iter().copied());
        // Use an absolute path. For a name, the standard library would have to fork this large
        // program, to search the PATH of the agent.
        let mut command = Command::new(Path::new("/usr/bin").join(words.next().unwrap()));
        self.set(&mut command);
        let child = command.args(words).envs(vars.iter().copied()).stderr(log).spawn().unwrap();
        Agent::new(child, path)
    }

    /// Starts the agent as a user who can read all files of the node but owns none. Needs root.
    pub fn start_as_nobody(&self) -> Agent {
        fs::set_permissions(self.root(), PermissionsExt::from_mode(0o755)).unwrap();
        for entry in fs::read_dir(self.sa()).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        self.start_under(&nobody, &[], &[])
    }

    /// Returns the agent's termination grace period, in seconds.
    fn grace(&self) -> &'static str {
        let has_api = self.vars.iter().any(|(name, _)| *name == "KUBERNETES_SERVICE_HOST");
        if has_api { "30" } else { "6" }
    }

    /// Sets an agent's environment for this node.
    pub fn set(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", self.root())
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
            // Without an API server, the agent leaves everything in place one second after SIGTERM.
            .env("LINKERD_CNI_TERMINATION_GRACE_SECONDS", self.grace())
            // The agent would keep the binary in a container of CRI-O, in which the tests may run.
            .env("LINKERD_CNI_KEEP_BINARY", "false")
            .envs(self.vars.iter().cloned());
    }
}
