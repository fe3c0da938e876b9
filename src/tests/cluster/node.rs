//! The cluster's only node: this machine's CNI files and the API server's audit log.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

const DIRECTORIES: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/bin"];
const AUDIT_LOG: &str = "/var/lib/linkerd2-cni-cluster/audit.log";

/// Tests of this program run on threads, but there is only one node.
static NODE: Mutex<()> = Mutex::new(());

pub struct Node {
    _alone: MutexGuard<'static, ()>,
    audit_log: PathBuf,
    /// Its length at the start, as it holds earlier tests too.
    logged: usize,
}

/// Each file's mode, size and hash, as contents would drown a failure's message.
type Files = BTreeMap<PathBuf, (u32, usize, u64)>;

impl Node {
    /// The node for this test alone, as long as the value lives.
    pub fn here() -> Self {
        let alone = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            std::env::var_os("KUBECONFIG").is_some(),
            "KUBECONFIG is not set: run scripts/cluster up and export what it prints"
        );
        let audit_log = std::env::var_os("CLUSTER_AUDIT_LOG").unwrap_or_else(|| AUDIT_LOG.into());
        let node = Node {
            _alone: alone,
            logged: fs::read(&audit_log).map_or(0, |log| log.len()),
            audit_log: audit_log.into(),
        };
        for path in DIRECTORIES
            .map(Path::new)
            .into_iter()
            .chain([&*node.audit_log])
        {
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

    pub fn files(&self) -> Files {
        let mut files = Files::new();
        for directory in DIRECTORIES {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                let bytes = fs::read(&path).unwrap();
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                files.insert(path, (mode, bytes.len(), hasher.finish()));
            }
        }
        files
    }

    /// Our entry in the configuration that the runtime loads, the first one by name.
    pub fn linkerd_entry(&self) -> Value {
        self.entry()
            .expect("linkerd-cni last in the first conflist")
    }

    /// The same, if it is there.
    pub fn entry(&self) -> Option<Value> {
        let lists = self.files();
        let is_list = |path: &&PathBuf| path.extension().is_some_and(|ext| ext == "conflist");
        let first = lists.keys().find(is_list)?;
        let mut list: Value = serde_json::from_slice(&fs::read(first).unwrap()).unwrap();
        let last = list["plugins"].as_array_mut()?.pop()?;
        (last["type"] == "linkerd-cni").then_some(last)
    }

    /// How often the plugin asked the API server about a namespace or a pod in it.
    pub fn api_requests(&self, namespace: &str) -> usize {
        let log = fs::read_to_string(&self.audit_log).unwrap();
        let ours = |event: &Value| {
            let agent = event["userAgent"].as_str().unwrap_or_default();
            agent.starts_with("linkerd-cni/") && event["objectRef"]["namespace"] == namespace
        };
        // The last line may still be being written.
        let new = log
            .get(self.logged..)
            .expect("an audit log that only grows");
        let events = new.lines().filter_map(|l| serde_json::from_str(l).ok());
        events.filter(ours).count()
    }
}
