//! The node and the release that the actions disturb.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use testkit::OnDrop;
use testkit::cluster::active::{self, State};
use testkit::cluster::agent;
use testkit::cluster::helm::{Helm, NAMESPACE};
use testkit::cluster::kubectl::command;
use testkit::cluster::node::Node;

use crate::api::Api;
use crate::ledger::{self, Invariant};

/// Longest time until the node is healthy again. It is long, because kubelet restarts a container
/// after up to 40 s, and the API server caches a token review for 10 s.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(150);

/// Ports of `/ready`.
const CONTROLLER_PORT: u16 = 9990;
const AGENT_PORT: u16 = 9991;

pub struct World {
    pub helm: Helm,
    pub api: Api,
    pub rng: StdRng,
    /// The conflist that the primary CNI has written.
    pub original: String,
    pub node: Node,
}

/// Makes a file or directory immutable until the value is dropped.
pub fn make_immutable(path: PathBuf) -> OnDrop<impl FnMut()> {
    change_attribute("+i", &path);
    OnDrop(move || change_attribute("-i", &path))
}

/// Changes an attribute of a file. An error is ignored, because another program may have removed
/// the file.
fn change_attribute(flag: &str, path: &Path) {
    let _ = Command::new("chattr").arg(flag).arg(path).stderr(Stdio::null()).status();
}

impl World {
    /// Waits until the node is healthy. Records a violation if this takes too long since `begin`.
    pub fn wait_for_recovery(&self, begin: Instant) {
        self.wait_for_recovery_and(begin, || true);
    }

    /// Waits until `is_over` returns true and the node is healthy. Records a violation if this
    /// takes too long since `begin`.
    pub fn wait_for_recovery_and(&self, begin: Instant, is_over: impl Fn() -> bool) {
        while !(is_over() && self.is_healthy()) {
            if begin.elapsed() > RECOVERY_TIMEOUT {
                let state = self.state();
                let description = format!("not recovered after {RECOVERY_TIMEOUT:?}: {state}");
                ledger::record_violation(Invariant::Recovery, description);
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        ledger::record_recovery(begin.elapsed());
    }

    /// Whether the plugin is installed, and the agent and the repair controller are ready.
    fn is_healthy(&self) -> bool {
        if active::state("") != State::Installed {
            return false;
        }
        let Some(address) = self.agent_address() else {
            return false;
        };
        let is_ready = |port: u16| self.api.is_ok(&format!("http://{address}:{port}/ready"));
        is_ready(CONTROLLER_PORT) && is_ready(AGENT_PORT)
    }

    /// Returns the address of the agent's pod. `None` if there is not exactly one such pod.
    fn agent_address(&self) -> Option<String> {
        let path =
            format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=k8s-app%3Dlinkerd-cni");
        let response = self.api.get(&path)?;
        let pods = response["items"].as_array()?;
        if pods.len() != 1 || !pods[0]["metadata"]["deletionTimestamp"].is_null() {
            return None;
        }
        Some(pods[0]["status"]["podIP"].as_str()?.to_owned())
    }

    /// Describes the node, for a violation.
    fn state(&self) -> String {
        let agent = agent::find_agent().map(|agent| (agent.pod, agent.ready));
        let line = format!("logs -n {NAMESPACE} -l k8s-app=linkerd-cni --tail=15 --prefix");
        let log = match command(&line).arg("--all-containers").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(_) => String::new(),
        };
        let files = active::state("");
        format!("files {files:?}, agent and its readiness {agent:?}, its log: {log}")
    }
}
