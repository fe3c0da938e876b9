//! The cluster's only node, which is this machine: its CNI files, logs and static pods.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::active;
use super::api;
use super::containers::{address_of, running};
use super::families::setting;
use super::helm::NAMESPACE;
use super::pods::namespace_path;
use crate::OnDrop;
use crate::child::must;
use crate::until::until;

const DIRECTORIES: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/bin"];
const CLUSTER: &str = "/var/lib/linkerd2-cni-cluster";
pub const COPY: &str = "/run/linkerd-cni/pods";

/// Locked by the test that uses the node, because the tests run on threads of one process.
static NODE: Mutex<()> = Mutex::new(());
/// Number of tests that wait for the node.
static WAITING: AtomicUsize = AtomicUsize::new(0);

pub struct Node {
    _exclusive: MutexGuard<'static, ()>,
    begin: Instant,
    audit_log: NewLines,
    kubelet_log: NewLines,
}

/// The lines of a log file since the test began.
struct NewLines {
    path: PathBuf,
    /// Length of the file when the test began. 0 if the file was missing.
    begin: usize,
}

impl NewLines {
    fn from_now(name: &str) -> NewLines {
        let path = Path::new(CLUSTER).join(name);
        let begin = match fs::metadata(&path) {
            Ok(file) => file.len() as usize,
            Err(_) => 0,
        };
        NewLines { path, begin }
    }

    fn read(&self) -> String {
        let log = fs::read(&self.path).unwrap();
        String::from_utf8_lossy(log.get(self.begin..).unwrap_or_default()).into_owned()
    }
}

/// Mode, owner, size and hash of each file. The content is hashed, because whole contents would
/// make the message of a failed assertion unreadable.
pub type Files = BTreeMap<PathBuf, (u32, u32, u64, u64)>;
/// Files of this size and more, such as the plugins of the primary CNI, are compared by size and
/// time instead of content.
const HASH_LIMIT: u64 = 1 << 20;

impl Node {
    /// Waits until no other test uses the node. Fails if the plugin is installed on the node.
    pub fn exclusive() -> Self {
        WAITING.fetch_add(1, Ordering::SeqCst);
        let exclusive = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        WAITING.fetch_sub(1, Ordering::SeqCst);
        let node = Node {
            _exclusive: exclusive,
            begin: Instant::now(),
            audit_log: NewLines::from_now("audit.log"),
            kubelet_log: NewLines::from_now("log/kubelet"),
        };
        let [net_dir, bin_dir] = DIRECTORIES.map(Path::new);
        for path in [net_dir, bin_dir, &node.audit_log.path] {
            assert!(path.exists(), "{} is missing; see scripts/cluster", path.display());
        }
        assert!(
            std::env::var_os("KUBECONFIG").is_some(),
            "KUBECONFIG is not set: run scripts/cluster up and export what it prints"
        );
        assert!(
            !Path::new("/opt/cni/bin/linkerd-cni").exists(),
            "linkerd-cni is already on the node: run scripts/quickstart --down or helm uninstall \
             first"
        );
        node
    }

    pub fn files(&self) -> Files {
        files_of("")
    }

    /// Returns the plugin entry. Fails unless it is the last one in the active network config.
    pub fn linkerd_entry(&self) -> Value {
        self.entry().expect("the plugin entry is last in the active network config")
    }

    /// Returns the plugin entry. `None`: the last plugin in the active network config is another
    /// one.
    pub fn entry(&self) -> Option<Value> {
        let last_plugin = active::plugins().pop()?;
        if last_plugin["type"] != "linkerd-cni" {
            return None;
        }
        Some(last_plugin)
    }

    /// Calls `action` while the API server is down.
    pub fn without_api_server<T>(&self, action: impl FnOnce() -> T) -> T {
        let _restart = OnDrop(restart_api_server);
        kill_component("kube-apiserver");
        action()
    }

    /// Starts a static pod. Dropping the returned value deletes it.
    pub fn static_pod(&self, pod: &Value) -> StaticPod {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = Path::new(CLUSTER).join(format!("static-pods/{name}.json"));
        fs::write(&path, pod.to_string()).unwrap();
        StaticPod { path, name: name.to_owned() }
    }

    pub fn kubelet_log(&self) -> String {
        self.kubelet_log.read()
    }

    /// Whether any network config has the plugin entry.
    pub fn is_chained(&self) -> bool {
        let entries = fs::read_dir(DIRECTORIES[0]).unwrap().flatten();
        let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts.any(|text| text.contains(r#""linkerd-cni""#) && text.contains("plugins"))
    }

    /// Returns the number of requests that the plugin sent since the test began, for a namespace
    /// and the pods in it.
    pub fn api_requests(&self, namespace: &str) -> usize {
        self.count_requests("linkerd-cni/", |request| {
            request["objectRef"]["namespace"] == namespace
        })
    }

    /// Returns how often the agent has listed Events since the test began.
    pub fn event_lists(&self) -> usize {
        self.count_requests("linkerd2-cni-install", |request| {
            request["verb"] == "list" && request["objectRef"]["resource"] == "events"
        })
    }

    /// Counts the requests in the API server's audit log that a program sent. `program` is the
    /// beginning of its user agent.
    fn count_requests(&self, program: &str, is_counted: impl Fn(&Value) -> bool) -> usize {
        let log = self.audit_log.read();
        let lines = log.lines().filter(|line| line.contains(program));
        // The last line may be incomplete.
        let requests = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        requests.filter(|request| is_sent_by(request, program) && is_counted(request)).count()
    }
}

/// Returns the node objects of the cluster.
pub fn list() -> Vec<Value> {
    api::list("/api/v1/nodes")
}

/// Returns the name of the first node object.
pub fn name() -> String {
    list()[0]["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Returns the versions of Kubernetes, container runtime, kernel and operating system, as the node
/// reports them, and the cluster's settings.
pub fn versions() -> Value {
    let nodes = list();
    let info = &nodes[0]["status"]["nodeInfo"];
    json!({
        "nodes": nodes.len(), "kubernetes": info["kubeletVersion"],
        "runtime": info["containerRuntimeVersion"],
        "kernel": info["kernelVersion"], "system": info["osImage"],
        "network": setting("CLUSTER_NETWORK"), "families": setting("CLUSTER_FAMILIES"),
        "proxy_mode": setting("CLUSTER_PROXY_MODE"),
    })
}

/// Whether the user agent of a request in the audit log begins with `program`.
fn is_sent_by(request: &Value, program: &str) -> bool {
    request["userAgent"].as_str().is_some_and(|agent| agent.starts_with(program))
}

pub fn files_of(root: &str) -> Files {
    files_in(root, &DIRECTORIES)
}

pub fn files_in(root: &str, directories: &[&str]) -> Files {
    let mut files = Files::new();
    for directory in directories {
        for entry in fs::read_dir(format!("{root}{directory}")).unwrap() {
            let entry = entry.unwrap();
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let mut hasher = DefaultHasher::new();
            if metadata.is_symlink() {
                fs::read_link(entry.path()).unwrap_or_default().hash(&mut hasher);
            } else if metadata.len() < HASH_LIMIT {
                fs::read(entry.path()).unwrap_or_default().hash(&mut hasher);
            } else {
                (metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
            }
            let path = Path::new(directory).join(entry.file_name());
            let size = if metadata.is_file() { metadata.len() } else { 0 };
            files.insert(path, (metadata.mode(), metadata.uid(), size, hasher.finish()));
        }
    }
    files
}

impl Drop for Node {
    /// Prints the duration of the test. It is written to stderr itself, because libtest captures
    /// what `print!` prints. After the last test, deletes the release's namespace. The tests before
    /// do not delete it, because a deletion takes 5 s.
    fn drop(&mut self) {
        if WAITING.load(Ordering::SeqCst) == 0 {
            let _ = api::admin().delete_and_wait(&namespace_path(NAMESPACE));
        }
        let current = thread::current();
        let name = current.name().unwrap_or_default();
        let _ = writeln!(io::stderr(), "{:>6.1} s {name}", self.begin.elapsed().as_secs_f64());
    }
}

/// Starts a killed API server again. Restarts its clients, too, because they could wait up to a
/// minute before they reconnect.
pub fn restart_api_server() {
    for component in ["kube-scheduler", "kube-controller-manager", "kubelet"] {
        kill_component(component);
    }
    start_missing_components();
}

pub fn start_missing_components() {
    let cluster = crate::repository().join("scripts/cluster");
    let up = Command::new(cluster).arg("up").output().unwrap();
    let error = String::from_utf8_lossy(&up.stderr);
    // This runs when a value is dropped. If a panic drops it, another panic would abort the
    // program.
    assert!(up.status.success() || thread::panicking(), "{error}");
}

/// Replaces a file by renaming `NAME.SUFFIX` over it, as another program does. Errors after the
/// write are ignored, because an agent may delete `NAME.SUFFIX` as a leftover.
pub fn replace(path: &Path, suffix: &str, content: impl AsRef<[u8]>, mode: u32) {
    let name = path.file_name().unwrap().to_str().unwrap();
    let temp_path = path.with_file_name(format!("{name}.{suffix}"));
    fs::write(&temp_path, content).unwrap();
    let _ = fs::set_permissions(&temp_path, fs::Permissions::from_mode(mode));
    let _ = fs::rename(&temp_path, path);
}

pub fn pid_of(component: &str) -> Pid {
    let pid = fs::read_to_string(Path::new(CLUSTER).join("pid").join(component)).unwrap();
    Pid::from_raw(pid.trim().parse().unwrap())
}

pub fn kill_component(component: &str) {
    let pid = pid_of(component);
    let result = kill(pid, Signal::SIGKILL);
    assert!(matches!(result, Ok(()) | Err(Errno::ESRCH)), "kill {component}: {result:?}");
    let program = format!("/proc/{pid}/exe");
    until("the component has ended", || fs::read_link(&program).is_err());
}

pub struct StaticPod {
    path: PathBuf,
    name: String,
}

/// Returns the names of the files in the node's copy of its pods.
pub fn copied_pods() -> Vec<String> {
    let entries = fs::read_dir(COPY).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

impl StaticPod {
    pub fn address(&self) -> String {
        address_of(&self.name).expect("the runtime has the pod's ADD result")
    }

    pub fn runs(&self) -> bool {
        !running("container", &self.name).is_empty()
    }
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.runs() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Name of a network namespace.
pub struct Netns(String);

/// Returns the network namespace of the pod with this address.
pub fn netns_of(ip: &str) -> Netns {
    let address = format!(" {ip}/");
    for entry in fs::read_dir("/run/netns").unwrap() {
        let netns = Netns(entry.unwrap().file_name().into_string().unwrap());
        if netns.output(&["ip", "-o", "address"]).contains(&address) {
            return netns;
        }
    }
    panic!("no netns has {ip}")
}

impl Netns {
    pub fn must(&self, args: &[&str]) {
        must(Command::new("ip").args(["netns", "exec", &self.0]).args(args));
    }

    pub fn rules(&self) -> String {
        self.output(&["nft", "list", "ruleset"])
    }

    pub fn output(&self, args: &[&str]) -> String {
        let output = Command::new("ip").args(["netns", "exec", &self.0]).args(args).output();
        let output = output.unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}
