//! The cluster's only node: this machine's CNI files and the API server's audit log.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use serde_json::Value;

use crate::until::until;

const DIRECTORIES: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/bin"];
/// Where scripts/cluster keeps the cluster.
const CLUSTER: &str = "/var/lib/linkerd2-cni-cluster";
const CONTAINERD: &str = "/run/linkerd2-cni-cluster/containerd.sock";

/// Tests of this program run on threads, but there is only one node.
static NODE: Mutex<()> = Mutex::new(());

pub struct Node {
    _alone: MutexGuard<'static, ()>,
    audit_log: PathBuf,
    /// Its length at the start, as it holds earlier tests too.
    logged: usize,
    /// The same of kubelet's log.
    kubelet_logged: usize,
}

/// Each file's mode, size and hash, as contents would drown a failure's message.
pub type Files = BTreeMap<PathBuf, (u32, usize, u64)>;

impl Node {
    /// The node for this test alone, as long as the value lives.
    pub fn here() -> Self {
        let alone = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            std::env::var_os("KUBECONFIG").is_some(),
            "KUBECONFIG is not set: run scripts/cluster up and export what it prints"
        );
        let length = |name: &str| {
            let log = fs::metadata(Path::new(CLUSTER).join(name));
            log.map_or(0, |log| log.len() as usize)
        };
        let audit_log = Path::new(CLUSTER).join("audit.log");
        let node = Node {
            _alone: alone,
            logged: length("audit.log"),
            kubelet_logged: length("log/kubelet"),
            audit_log,
        };
        for path in DIRECTORIES.map(Path::new).into_iter().chain([&*node.audit_log]) {
            assert!(
                path.exists(),
                "there is no {}: the cluster's node must be this machine, see scripts/cluster",
                path.display()
            );
        }
        let left = Path::new("/opt/cni/bin/linkerd-cni");
        assert!(
            !left.exists(),
            "linkerd-cni is on the node already: run scripts/quickstart --down or helm uninstall first"
        );
        node
    }

    /// What is in the node's two directories. A file that goes meanwhile is left out; the
    /// agent's socket has a mode and no content.
    pub fn files(&self) -> Files {
        let mut files = Files::new();
        for directory in DIRECTORIES {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let Ok(metadata) = fs::metadata(&path) else {
                    continue;
                };
                let mode = metadata.permissions().mode();
                let bytes = fs::read(&path).unwrap_or_default();
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                files.insert(path, (mode, bytes.len(), hasher.finish()));
            }
        }
        files
    }

    /// Our entry in the configuration that the runtime loads, the first one by name.
    pub fn linkerd_entry(&self) -> Value {
        self.entry().expect("linkerd-cni last in the first conflist")
    }

    /// The same, if it is there.
    pub fn entry(&self) -> Option<Value> {
        let lists = self.files();
        let is_list = |path: &&PathBuf| path.extension().is_some_and(|ext| ext == "conflist");
        let first = lists.keys().find(is_list)?;
        let mut list: Value = serde_json::from_slice(&fs::read(first).ok()?).ok()?;
        let last = list["plugins"].as_array_mut()?.pop()?;
        (last["type"] == "linkerd-cni").then_some(last)
    }

    /// Stops the API server, calls `meanwhile`, and starts it again, also on a panic.
    /// Others start anew with it, as they would else wait up to a minute before they
    /// try again.
    pub fn without_api_server<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        struct Restart;
        impl Drop for Restart {
            fn drop(&mut self) {
                for component in ["kube-scheduler", "kube-controller-manager", "kubelet"] {
                    end(component);
                }
                let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/cluster");
                let up = Command::new(cluster).arg("up").output().unwrap();
                let said = String::from_utf8_lossy(&up.stderr);
                assert!(up.status.success() || thread::panicking(), "{said}");
            }
        }
        let _restart = Restart;
        end("kube-apiserver");
        meanwhile()
    }

    /// A pod that kubelet runs by itself, until the value is dropped.
    pub fn static_pod(&self, pod: &Value) -> StaticPod {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = Path::new(CLUSTER).join(format!("static-pods/{name}.json"));
        fs::write(&path, pod.to_string()).unwrap();
        StaticPod { path, name: name.to_owned() }
    }

    /// What kubelet wrote since the test began.
    pub fn kubelet_log(&self) -> String {
        let log = fs::read(Path::new(CLUSTER).join("log/kubelet")).unwrap();
        let new = log.get(self.kubelet_logged..).unwrap_or_default();
        String::from_utf8_lossy(new).into_owned()
    }

    /// Whether some configuration has an entry of ours.
    pub fn is_chained(&self) -> bool {
        let texts = self.files().into_keys().map(fs::read_to_string);
        texts.flatten().any(|text| text.contains(r#""linkerd-cni""#) && text.contains("plugins"))
    }

    /// How often the plugin asked the API server about a namespace or a pod in it.
    pub fn api_requests(&self, namespace: &str) -> usize {
        let ours =
            |event: &Value| is_plugins(event) && event["objectRef"]["namespace"] == namespace;
        let events = self.audit_events();
        events.iter().filter(|event| ours(event)).count()
    }

    /// Entries of the audit log since the test began whose user agent starts with `program`.
    pub fn requests_of(&self, program: &str) -> Vec<Value> {
        let is_from = |event: &Value| {
            let agent = event["userAgent"].as_str().unwrap_or_default();
            agent.starts_with(program)
        };
        let mut events = self.audit_events();
        events.retain(is_from);
        events
    }

    /// Requests of the release's accounts since the test began, the plugin's left out: verb, URI
    /// and program of each.
    pub fn agent_requests(&self) -> Vec<String> {
        let accounts = "system:serviceaccount:linkerd-cni:";
        let is_releases = |event: &&Value| {
            let user = event["user"]["username"].as_str().unwrap_or_default();
            let agent = event["userAgent"].as_str().unwrap_or_default();
            let is_agents = agent.starts_with("linkerd2-cni-install/");
            (user.starts_with(accounts) || is_agents) && !is_plugins(event)
        };
        let events = self.audit_events();
        let shown = events.iter().filter(is_releases).map(|event| {
            let field = |name: &str| event[name].as_str().unwrap_or("-").to_owned();
            let code = &event["responseStatus"]["code"];
            let (verb, uri, agent) = (field("verb"), field("requestURI"), field("userAgent"));
            format!("{verb} {uri} {code} {agent}")
        });
        shown.collect()
    }

    /// What the audit log got since the test began.
    fn audit_events(&self) -> Vec<Value> {
        let log = fs::read_to_string(&self.audit_log).unwrap();
        let new = log.get(self.logged..).expect("an audit log that only grows");
        // The last line may still be being written.
        new.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

fn is_plugins(event: &Value) -> bool {
    let agent = event["userAgent"].as_str().unwrap_or_default();
    agent.starts_with("linkerd-cni/")
}

/// Kills a component of the cluster.
fn end(component: &str) {
    let pid = fs::read_to_string(Path::new(CLUSTER).join("pid").join(component)).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    let gone = format!("/proc/{pid}/exe");
    until("its end", || fs::read_link(&gone).is_err());
}

/// A pod of a file of kubelet's. It needs no API server.
pub struct StaticPod {
    path: PathBuf,
    name: String,
}

impl StaticPod {
    /// Its IPv4 address, by what the runtime remembers of ADD: kubelet takes a minute
    /// to tell an API server that is back.
    pub fn address(&self) -> String {
        let results = fs::read_dir("/var/lib/cni/results").unwrap();
        let texts = results.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        let cached = texts.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
        let mut ours = cached.filter(|cached| {
            let args = cached["cniArgs"].as_array().into_iter().flatten();
            let name = args.filter(|arg| arg[0] == "K8S_POD_NAME");
            let mut names = name.filter_map(|arg| arg[1].as_str());
            // The loopback interface has a result of its own.
            cached["ifName"] == "eth0" && names.any(|name| name.starts_with(&self.name))
        });
        let found = ours.find_map(|cached| {
            let address = cached["result"]["ips"][0]["address"].as_str()?;
            Some(address.split_once('/')?.0.to_owned())
        });
        found.expect("the runtime remembers the pod's ADD")
    }

    /// Whether its container runs, by the runtime's word.
    pub fn runs(&self) -> bool {
        let ctr = |args: &[&str]| {
            let output = Command::new("ctr")
                .args(["--address", CONTAINERD, "--namespace", "k8s.io"])
                .args(args)
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let kind = r#"labels."io.cri-containerd.kind"==container"#;
        let name = format!(r#"{kind},labels."io.kubernetes.pod.name"~={}"#, self.name);
        let containers = ctr(&["containers", "list", "--quiet", &name]);
        let tasks = ctr(&["tasks", "list"]);
        let running = |id: &str| {
            let mut lines = tasks.lines();
            lines.any(|line| line.starts_with(id) && line.contains("RUNNING"))
        };
        containers.lines().any(running)
    }
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let end = Instant::now() + Duration::from_secs(30);
        while self.runs() && Instant::now() < end {
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// A pod's network namespace.
pub struct Netns(String);

/// The namespace that has this address.
pub fn netns_of(ip: &str) -> Netns {
    let names = fs::read_dir("/run/netns").unwrap();
    let mut names = names.map(|name| Netns(name.unwrap().file_name().into_string().unwrap()));
    names
        .find(|netns| {
            let addresses = netns.output(&["ip", "-o", "address"]);
            addresses.contains(&format!(" {ip}/"))
        })
        .unwrap_or_else(|| panic!("no namespace has {ip}"))
}

impl Netns {
    /// Runs a program there, which has to succeed.
    pub fn must(&self, args: &[&str]) {
        let exec = ["netns", "exec", &self.0];
        let done = Command::new("ip").args(exec).args(args).status().unwrap();
        assert!(done.success(), "{args:?} in {}", self.0);
    }

    fn output(&self, args: &[&str]) -> String {
        let exec = ["netns", "exec", &self.0];
        let output = Command::new("ip").args(exec).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}
